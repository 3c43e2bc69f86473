"""Draws small changes of the installed code by chance: which do the tests notice? `make mutants-sample SEED=7
COUNT=200`.

Lines are drawn evenly from every folder and language; operators.py has the changes. What is drawn follows from the seed
and the installed code alone. Which tests enter which functions is recorded once for each test file, in build/.

Writes benchmarks/results/mutants-sample-SEED.json and benchmarks/MUTANTS.md. Status 1: a change survives.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import re
import resource
import runpy
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .operators import Change, changes
from .report import SAMPLES, change_key, judged, outcome, write_page
from .run import (
    BUILDING_SECONDS,
    FAULTS,
    PATIENCE,
    ROOT,
    SPARE_SECONDS,
    copy_repository,
    import_libraries,
    in_fork,
    run_tests,
    used_seconds,
    written,
)

LANGUAGES = {".py": "Python", ".cpp": "C++", ".h": "C++", ".js": "JavaScript"}
RECORDS = "build/functions-of-tests.json"
RECORDING_SECONDS = 1800
NO_TESTS_OF_CODE = ("mutation", "peer")  # folders: this one, and what `make test` leaves out
UNKNOWN_SECONDS = 120  # of tests that are not recorded


def rooms(root: Path) -> dict[str, list[str]]:
    """The files of each folder and language that are installed."""
    package = root / "reluformer"
    folders = [package.name, *(link.name for link in package.iterdir() if (link / "__init__.py").is_file())]
    listed = subprocess.check_output(
        ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", *folders], text=True
    )
    found: dict[str, list[str]] = {}
    for name in sorted(set(listed.splitlines())):
        path = Path(name)
        if path.suffix in LANGUAGES and (root / path).is_file():
            found.setdefault(f"{path.parent} ({LANGUAGES[path.suffix]})", []).append(name)
    return found


def draws(root: Path, files: list[str], room: str, seed: int) -> Iterator[tuple[str, Change]]:
    """Changes of a room without end to them but that of its lines: first a line is drawn, then an operator, then a
    change."""
    lines: dict[tuple[str, int], list[Change]] = {}
    for name in files:
        for change in changes(name, (root / name).read_text(encoding="utf-8")):
            lines.setdefault((name, change.line), []).append(change)
    chance, left = random.Random(f"{seed} {room}"), sorted(lines)
    while left:
        name, line = left.pop(chance.randrange(len(left)))
        here = lines[name, line]
        operator = chance.choice(sorted({change.operator for change in here}))
        yield name, chance.choice([change for change in here if change.operator == operator])


def described(name: str, source: str, change: Change) -> dict[str, Any]:
    """The row of a change: lines before and after it, and the line above them."""
    data = source.encode()
    start, end = data.rfind(b"\n", 0, change.start) + 1, (data + b"\n").index(b"\n", change.end)
    after = data[start : change.start] + change.text.encode() + data[change.end : end]
    lines_before = data[:start].decode().splitlines()
    return {
        "file": name,
        "line": change.line,
        "operator": change.operator,
        "above": next((line.strip() for line in reversed(lines_before) if line.strip()), ""),
        "before": " ".join(data[start:end].decode().split()),
        "after": " ".join(after.decode().split()),
    }


def changed_source(source: str, change: Change) -> str:
    data = source.encode()
    return (data[: change.start] + change.text.encode() + data[change.end :]).decode()


class Functions:
    """A plugin of pytest: for each test its seconds and the functions of the package that it enters, as
    `file.py:Class.method`.

    What fixtures of several tests enter is shared by all tests of the file.
    """

    def __init__(self, copy: Path, output: Path):
        self.copy, self.output = copy, output
        self.codes: dict[int, Any] = {}
        self.tests: dict[str, dict[str, Any]] = {}
        self.shared: set[str] = set()
        self.passed: set[str] = set()

    def _enter(self, frame, event, argument) -> None:
        self.codes[id(frame.f_code)] = frame.f_code

    def _names(self) -> set[str]:
        entered = list(self.codes.values())  # before others are: a trace sees this function, too
        codes = [code for code in entered if code.co_filename.startswith(str(self.copy))]
        return {f"{Path(code.co_filename).name}:{code.co_qualname}" for code in codes}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.codes, started = {}, _own_seconds()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            seconds = round(_own_seconds() - started, 2)
            self.tests[item.nodeid] = {"seconds": seconds, "functions": sorted(self._names())}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        before, self.codes = self.codes, {} if fixturedef.scope != "function" else self.codes
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self.shared |= self._names()
                self.codes = before | self.codes

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self):
        tests = {name: row for name, row in self.tests.items() if name in self.passed}
        self.output.write_text(json.dumps({"tests": tests, "shared": sorted(self.shared)}))


def _own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime + used_seconds()


class Recorded:
    """What `Functions` has of each test file that was asked for, kept for later runs until that file changes."""

    def __init__(self, root: Path, copy: Path):
        self.copy, self.path = copy, root / RECORDS
        self.kept = json.loads(self.path.read_text()) if self.path.is_file() else {}

    def _key(self, name: str, which: str) -> str:
        digest = hashlib.sha256((self.copy / name).read_bytes()).hexdigest()[:16]
        return f"{name} {which} {digest}"

    def has(self, name: str, which: str) -> bool:
        """Whether a file is recorded."""
        return self._key(name, which) in self.kept

    def of(self, name: str, which: str) -> dict[str, Any]:
        """What is recorded of a file, which is recorded now if it is not yet."""
        key = self._key(name, which)
        if key not in self.kept:
            output = self.copy / "functions.json"
            output.unlink(missing_ok=True)
            plugin = Functions(self.copy, output)
            tests = f"--maxfail=1000 {shlex.quote(name.removeprefix('tests/'))}"
            found = run_tests(self.copy, tests, RECORDING_SECONDS, [plugin], which)
            if not output.is_file():
                raise SystemExit(f"{name}: cannot be recorded: {found}")
            self.kept[key] = json.loads(output.read_text())
            seconds = sum(test["seconds"] for test in self.kept[key]["tests"].values())
            print(f"recorded {len(self.kept[key]['tests'])} tests, {seconds:.0f} s: {name}: {found}", flush=True)
            self.path.parent.mkdir(exist_ok=True)
            self.path.write_text(json.dumps(self.kept))
        return self.kept[key]


def function_at(source: str, line: int) -> str | None:
    """The qualified name of the innermost function around a line of Python; None outside of functions."""
    name = None

    def visit(node: ast.AST, prefix: str) -> None:
        nonlocal name
        for child in ast.iter_child_nodes(node):
            below = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                below = f"{prefix}{child.name}."
                if not isinstance(child, ast.ClassDef):
                    if child.body[0].lineno <= line <= child.end_lineno:
                        name = below[:-1]
                    below = f"{below}<locals>."
            visit(child, below)

    visit(ast.parse(source), "")
    return name


def test_files(root: Path, name: str) -> list[str]:
    """The files of tests for a file of Python: those of its name, those that name it, others of its folder, of its root
    folder, and of folders that mirror none, as of robustness."""
    path = Path(name)
    top = root / "tests" if path.parts[0] == "reluformer" else root / "tests" / path.parts[0]
    found = [*top.glob("test_*.py" if path.parts[0] == "reluformer" else "**/test_*.py")]
    others = (folder for folder in (root / "tests").iterdir() if not (root / folder.name).exists())
    found += (file for folder in others if folder.name not in NO_TESTS_OF_CODE for file in folder.glob("test_*.py"))

    # a package's own files are known by the name of the package
    module = path.parent.name if path.stem.startswith("__") else path.stem

    def distance(file: Path) -> tuple[bool, bool, bool, bool, str]:
        of, stem = file.stem.removeprefix("test_"), module.strip("_")
        same_name = of.startswith(stem) or stem.startswith(of)
        named = re.search(rf"\b{module}\b", file.read_text(encoding="utf-8")) is not None
        own_folder = file.parent == root / "tests" / path.parent
        return not same_name, not named, not own_folder, top not in file.parents, str(file)

    return [str(file.relative_to(root)) for file in sorted(found, key=distance)]


def covering(record: dict[str, Any], name: str, function: str | None) -> list[str]:
    """The tests that enter a function, the quickest first; without a function, all: a table of a module is read without
    that one of its functions is entered."""
    key = f"{Path(name).name}:{function}"

    def enters(functions: list[str]) -> bool:
        if function is None:
            return True
        # a lambda's own name, or that of a function inside, says that the function was entered before
        return key in functions or any(entered.startswith(f"{key}.<locals>") for entered in functions)

    tests = record["tests"]
    every = enters(record["shared"])
    return sorted(
        (test for test in tests if every or enters(tests[test]["functions"])), key=lambda test: tests[test]["seconds"]
    )


class Trial:
    """Runs the tests for one change after another."""

    def __init__(self, root: Path, copy: Path, seconds: float):
        self.root, self.copy, self.recorded, self.seconds = root, copy, Recorded(root, copy), seconds
        path = root / FAULTS
        self.groups = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else []
        self.limits: dict[tuple[str, str], float] = {}
        self.failing: dict[tuple[str, str], str] = {}
        self.clean: dict[str, bool] = {}

    def compiles(self, name: str, source: str) -> bool:
        """Whether the changed file, which stands in the copy, is compiled, and for this processor."""
        match LANGUAGES[Path(name).suffix]:
            case "Python":
                try:
                    compile(source, name, "exec")
                except (SyntaxError, ValueError):
                    return False
                return True
            case "JavaScript":
                command = ["node", "--input-type=module", "--check"]
                return (
                    subprocess.run(command, input=source, text=True, capture_output=True, check=False).returncode == 0
                )
        folder = next(folder for folder in Path(name).parents if (self.root / folder / "__main__.py").is_file())
        module = ".".join(("reluformer", *folder.parts))

        def build() -> int:
            try:
                runpy.run_module(module, run_name="__main__")
            except SystemExit as ended:
                return int(ended.code or 0)
            return 0

        objects = Path(os.environ["OBJECTS"])  # of cached_compiler.py
        before = len(list(objects.glob("*")))
        built = in_fork(self.copy, build, BUILDING_SECONDS * PATIENCE) == "passed"
        # Code for another processor changes no object: no test sees it here.
        return built and len(list(objects.glob("*"))) > before

    def _named(self, name: str) -> list[tuple[str, str]]:
        """Tests, and which of them, of a file of C++ or JavaScript: what faults.yaml names for it, for its folder, else
        for the folder around it. A script that has none of its own is tested in a browser, too, by the slow ones of its
        root folder."""
        language = LANGUAGES[Path(name).suffix]
        groups = [group for group in self.groups if LANGUAGES.get(Path(group["file"]).suffix) == language]
        own = [group for group in groups if group["file"] == name]
        around = ([group for group in groups if folder in Path(group["file"]).parents] for folder in Path(name).parents)
        near = next(filter(None, around), [])
        named = [(tests, "not slow") for tests in dict.fromkeys(group["tests"] for group in [*own, *near])]
        if not own and language == "JavaScript":
            files = sorted((self.root / "tests" / Path(name).parts[0]).glob("test_*.py"))
            named.append((" ".join(str(file.relative_to(self.root / "tests")) for file in files), "slow"))
        return named

    def try_change(self, name: str, change: Change) -> dict[str, Any] | None:
        """What `run` returns, and the `seconds`; None of a change that does not compile."""
        source = (self.copy / name).read_text(encoding="utf-8")
        changed = changed_source(source, change)
        self.prepare(name)
        started = used_seconds()
        with written(self.copy / name, changed):
            compiles = self.compiles(name, changed)
        if not compiles:
            return None
        found = self.run(name, source, changed, change.line)
        return {**found, "seconds": round(used_seconds() - started, 1)}

    def prepare(self, name: str) -> None:
        """What has to be known of the tests before the change is written."""
        if not name.endswith(".py"):
            for tests, which in self._named(name):
                if (tests, which) not in self.limits:
                    started = time.monotonic()
                    if (found := run_tests(self.copy, tests, RECORDING_SECONDS, (), which)) != "passed":
                        self.failing[tests, which] = found
                        print(f"fail without a change: {found}", flush=True)
                    self.limits[tests, which] = (time.monotonic() - started) * PATIENCE + BUILDING_SECONDS

    def run(self, name: str, source: str, changed: str, line: int) -> dict[str, Any]:
        """What was `found`, and how many files of tests were `left_out`."""
        if not name.endswith(".py"):
            for tests, which in self._named(name):
                if found := self.failing.get((tests, which)):
                    return {"found": f"not run: fails without a change: {found}", "left_out": 0}
                with written(self.copy / name, changed):
                    found = run_tests(self.copy, tests, self.limits[tests, which], (), which)
                if found != "passed":
                    return {"found": _killed(found), "left_out": 0}
            return {"found": "passed", "left_out": 0}
        found, ran, left_out = self._by_functions(name, source, changed, line, "not slow")
        if not ran:  # slow ones of its folder alone: those of others take an hour
            found, ran, left_out = self._by_functions(name, source, changed, line, "slow")
        if not ran and (files := test_files(self.root, name)):
            # a function that was renamed since its tests were recorded, or that other processes enter
            found = self._whole(files[0], name, changed) or found
        return {"found": found, "left_out": left_out}

    def _whole(self, file: str, name: str, changed: str) -> str | None:
        """What a file of tests that is not recorded finds; None where only a recording tells whether the change is the
        cause."""
        with written(self.copy / name, changed):
            found = run_tests(
                self.copy, shlex.quote(file.removeprefix("tests/")), RECORDING_SECONDS, cpu_seconds=UNKNOWN_SECONDS
            )
        if "::" not in found:  # hangs or cannot be collected, perhaps also without the change
            return found if found == "passed" else None
        test = shlex.quote(found.split("[")[0])
        if test not in self.clean:
            self.clean[test] = run_tests(self.copy, test, RECORDING_SECONDS) == "passed"
        return found if self.clean[test] else None

    def _by_functions(self, name: str, source: str, changed: str, line: int, which: str) -> tuple[str, int, int]:
        function, ran, left_out, used = function_at(source, line), 0, 0, 0.0
        for index, file in enumerate(test_files(self.root, name)):
            if which == "slow" and Path(file).parent != Path("tests", name).parent:
                continue
            found = None
            if index == 0 and which == "not slow" and not self.recorded.has(file, which):
                # the file of its name, which most often notices: then nothing needs to be recorded
                found = self._whole(file, name, changed)
            if found == "passed":
                ran += 1
                continue
            if found is not None:
                return found, 1, 0
            if used > self.seconds:
                left_out += 1
                continue
            is_new = not self.recorded.has(file, which)
            record = self.recorded.of(file, which)
            if is_new:
                used += sum(test["seconds"] for test in record["tests"].values())
            tests = covering(record, name, function)
            if not tests:
                continue
            seconds = sum(record["tests"][test]["seconds"] for test in tests)
            chosen = " ".join(shlex.quote(test.removeprefix("tests/")) for test in tests)
            limit = seconds * PATIENCE + SPARE_SECONDS
            with written(self.copy / name, changed):
                found = run_tests(self.copy, chosen, limit * 10, (), which, cpu_seconds=limit)
            ran += len(tests)
            used += seconds
            if found != "passed":
                return _killed(found), ran, left_out
        return "passed" if ran else "not run: no test enters it", ran, left_out


def _killed(found: str) -> str:
    """Tests that cannot be set up or collected notice a change, too."""
    return found.replace("not run", "error", 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, required=True, help="changes that are drawn")
    parser.add_argument("--new", action="store_true", help="those without a result; others' results stay")
    parser.add_argument("--again", action="store_true", help="those that survived, too, as after mending tests")
    parser.add_argument(
        "--seconds",
        type=float,
        default=600,
        help="stop looking for other tests of a change once recording and running have taken so many; the result "
        "counts the files left out",
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="of the repository")
    options = parser.parse_args()
    import_libraries()
    output = options.root / SAMPLES.format(options.seed)
    known, progress = {}, output.with_suffix(".progress")  # of a run that was interrupted
    for path in (output, progress) if options.new or options.again else ():
        if path.is_file():
            known |= {change_key(row): row for row in json.loads(path.read_text(encoding="utf-8"))["changes"]}
    rows, drawn_again = try_changes(
        options.root, options.seed, options.count, known, options.again, progress, options.seconds
    )
    # Only now: what is imported in this process is not imported anew after a fork.
    from reluformer.records.records import run_record, write_json

    write_json(output, {**run_record(None, None, options.seed), "drawn_again": drawn_again, "changes": rows})
    progress.unlink(missing_ok=True)
    write_page(options.root)
    reasons = judged(options.root)
    return int(any(outcome(row, reasons) == "survived" for row in rows))


def try_changes(
    root: Path,
    seed: int,
    count: int,
    known: dict[tuple[str, ...], dict[str, Any]],
    again: bool,
    progress: Path,
    seconds: float,
) -> tuple[list[dict[str, Any]], int]:
    """The rows of all changes, and how many did not compile; `known` rows are kept, those that survived not if
    `again`."""
    rows: list[dict[str, Any]] = []
    drawn_again, reasons = 0, judged(root)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        copy_repository(root, copy)
        os.environ |= {"TORCH_EXTENSIONS_DIR": str(copy / "libraries"), "OBJECTS": str(copy / "objects")}
        trial, drawing = (
            Trial(root, copy, seconds),
            {room: draws(root, files, room, seed) for room, files in rooms(root).items()},
        )
        while len(rows) < count and drawing:
            for room in list(drawing)[: count - len(rows)]:
                row = None
                while row is None and (drawn := next(drawing[room], None)):
                    name, change = drawn
                    row = {"room": room, **described(name, (root / name).read_text(encoding="utf-8"), change)}
                    earlier = known.get(change_key(row))
                    if earlier and not (again and outcome(earlier, reasons) == "survived"):
                        row = earlier
                    elif (tried := trial.try_change(name, change)) is None:
                        drawn_again, row = drawn_again + 1, None
                    else:
                        row |= {**tried, "at_first": earlier["at_first"] if earlier else tried["found"]}
                        print(_line(len(rows) + 1, row), flush=True)
                if row is None:
                    del drawing[room]
                else:
                    rows.append(row)
                    known.pop(change_key(row), None)
                    # with those that are known and not drawn again yet, for a run that is interrupted twice
                    progress.write_text(json.dumps({"changes": [*rows, *known.values()]}), encoding="utf-8")
    return rows, drawn_again


def _line(number: int, row: dict[str, Any]) -> str:
    change = f"{row['file']}:{row['line']}: {row['before']} → {row['after']}"
    return f"{number}: {row['seconds']} s {change}: {row['found']}"


if __name__ == "__main__":
    raise SystemExit(main())
