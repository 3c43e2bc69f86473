"""Plants faults in a copy of this repository, one at a time, and runs the tests of the file: `make mutants`.

Torch and Transformers are imported once, and every mutant is tried in a process forked from that one, so that most take
seconds. Threads do not survive a fork: everything runs on one. What survives the tests of its file meets those of the whole
folder before it counts as a survivor. What was found is kept beside the result, and the same command goes on where it stopped.

Status 1: a fault survives that is not explained in explained.yaml, or what is explained there is no mutant any more.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tests.mutation.mutants import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
# Beyond this many times what the tests need without a fault, and some seconds, a mutant hangs.
PATIENCE, SPARE_SECONDS = 4, 20
# For a list that grows in a loop without end: bytes of addresses.
MOST_MEMORY = 16 * 2**30
# Threads that are started anew after a fork: pyarrow's allocator.
_SURVIVE_A_FORK = ("jemalloc_bg_thd",)
# Imported anew in every child: what may be mutated, and what refers to it.
_OF_THE_COPY = ("reluformer", "tests", "conftest", "test_", "pytest", "_pytest", "__")


class Copy:
    """The repository in a folder of its own: what git knows of, and the folder `site` in which it is laid out as installed."""

    def __init__(self, root: Path, folder: Path):
        self.folder, self.site = folder, folder / "site"
        listed = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard"],
            capture_output=True,
            text=True,
            check=True,
        )
        for name in filter(lambda name: (root / name).is_file(), listed.stdout.splitlines()):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, folder / name)
        for package, source in package_folders(folder / "setup.py").items():
            installed = self.site / package.replace(".", "/")
            installed.mkdir(parents=True)
            for path in filter(Path.is_file, (folder / source).iterdir()):
                (installed / path.name).symlink_to(path)
        self._time = time.time()

    def write(self, file: str, source: str) -> None:
        """With a time of change that no compiled file has."""
        (self.folder / file).write_text(source, encoding="utf-8")
        self._time += 2
        os.utime(self.folder / file, (self._time, self._time))

    def test(self, arguments: list[str], seconds: float, log: Path) -> tuple[int | None, float]:
        """Status and seconds of pytest in a forked process; None for the status: it took longer and was ended."""
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            self._child(arguments, log)
        while time.monotonic() - started < seconds:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status), time.monotonic() - started
            time.sleep(0.05)
        with suppress(ProcessLookupError):  # before the child has its own group
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None, time.monotonic() - started

    def _child(self, arguments: list[str], log: Path) -> None:
        status = 3
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(self.folder)
            sys.path[:0] = [str(self.site), str(self.folder)]
            for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
                del sys.modules[name]
            os.environ["PYTHONPATH"] = str(self.site)
            import pytest

            status = int(pytest.main(["-x", "--hypothesis-seed=0", "-p", "no:cacheprovider", "--tb=line", *arguments]))
            (log.with_suffix(".modules")).write_text("\n".join(sys.modules), encoding="utf-8")
        finally:
            sys.stdout.flush()
            os._exit(status)


def package_folders(setup_file: Path) -> dict[str, str]:
    """Package → folder, which setup.py renames on installation."""
    for node in ast.parse(setup_file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "PACKAGE_FOLDERS":
            return ast.literal_eval(node.value)
    raise ValueError(f"{setup_file}: PACKAGE_FOLDERS expected, which names the folder of every package")


def plan_tests(plan: dict[str, Any]) -> dict[str, list[list[str]]]:
    """File → the arguments of pytest for its tests and, where the plan has them, for those that its survivors meet."""
    selected = f"-knot ({' or '.join(['slow', *plan['tests_left_out']])})"
    return {
        f"{group['folder']}/{name}.py": [
            [selected, *(f"tests/{test}" for test in group[stage])] for stage in ("tests", "then") if stage in group
        ]
        for group in plan["files"]
        for name in group["files"]
    }


def draw(root: Path, files: list[str], count: int | None, seed: int) -> tuple[list[Mutant], int]:
    """`count` mutants of these files, file by file, and how many there are; None: all of them."""
    every = [mutant for file in files for mutant in mutants_of(file, (root / file).read_text(encoding="utf-8"))]
    drawn = sorted(every, key=lambda mutant: mutant.rank(seed))[:count]
    return sorted(drawn, key=lambda mutant: (files.index(mutant.file), mutant.line)), len(every)


class Progress:
    """What was found of earlier mutants, in a file of JSON lines, so that a run that was stopped goes on.

    A line holds the mutant's key, a hash of its source, how many stages of tests it met, and the outcome.
    """

    def __init__(self, path: Path | None):
        self.path = path
        self._known: dict[str, tuple[int, str]] = {}
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                *name, stages, outcome = json.loads(line)
                self._known[json.dumps(name)] = (stages, outcome)

    def of(self, mutant: Mutant) -> tuple[int, str]:
        """Stages and outcome; 0 and "survived" of a mutant that was not tried."""
        return self._known.get(json.dumps(self._name(mutant)), (0, "survived"))

    def known(self, mutants: list[Mutant]) -> int:
        """How many of these an earlier run has tried."""
        return sum(self.of(mutant)[0] > 0 for mutant in mutants)

    def note(self, mutant: Mutant, stages: int, outcome: str) -> None:
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps([*self._name(mutant), stages, outcome], ensure_ascii=False) + "\n")

    def finish(self, outcomes: dict[Mutant, str], again: bool) -> None:
        """After a whole run. again: it will be repeated with other tests, and what was killed need not be tried anew."""
        if self.path is None:
            return
        self.path.unlink(missing_ok=True)
        for mutant, outcome in outcomes.items() if again else ():
            if outcome != "survived":
                self.note(mutant, 1, outcome)

    @staticmethod
    def _name(mutant: Mutant) -> list[str]:
        return [*mutant.key, hashlib.sha256(mutant.source.encode()).hexdigest()[:16]]


class Trial:
    """Runs the tests of mutants in a copy of the repository; what they take without a fault is found out once."""

    def __init__(self, copy: Copy):
        self.copy, self.log = copy, copy.folder / "mutant.log"
        self._limits: dict[tuple[str, ...], float] = {}

    def outcome(self, mutant: Mutant, wanted: list[str]) -> tuple[str, float]:
        """ "killed", "timeout" or "survived", and seconds."""
        limit = self._limits.get(tuple(wanted))
        if limit is None:
            limit = _without_a_fault(self.copy, wanted, self.log) * PATIENCE + SPARE_SECONDS
            self._limits[tuple(wanted)] = limit
        original = (self.copy.folder / mutant.file).read_text(encoding="utf-8")
        self.copy.write(mutant.file, mutant.source)
        status, seconds = self.copy.test(wanted, limit, self.log)
        self.copy.write(mutant.file, original)
        return "timeout" if status is None else "survived" if status == 0 else "killed", seconds


def try_mutants(
    copy: Copy,
    mutants: list[Mutant],
    tests: dict[str, list[list[str]]],
    explained: set[tuple[str, ...]],
    progress: Progress,
) -> dict[Mutant, str]:
    """Mutant → "killed", "timeout" or "survived". One that is explained meets the tests of its file alone."""
    outcomes: dict[Mutant, str] = {}
    trial = Trial(copy)
    every = {test for mutant in mutants for wanted in tests[mutant.file] for test in wanted}
    _without_a_fault(copy, ["--collect-only", *sorted(every)], trial.log)
    for mutant in mutants:
        stages = tests[mutant.file][: 1 if mutant.key in explained else None]
        done, outcome = progress.of(mutant)
        for stage in range(done, len(stages)):
            if outcome != "survived":
                break
            outcome, seconds = trial.outcome(mutant, stages[stage])
            progress.note(mutant, stage + 1, outcome)
            place = f"{len(outcomes) + 1}/{len(mutants)} {mutant.file}:{mutant.line}"
            print(f"{place} {outcome} {seconds:.1f} s: {mutant.before} → {mutant.after}", flush=True)
        outcomes[mutant] = outcome
    return outcomes


def _without_a_fault(copy: Copy, arguments: list[str], log: Path) -> float:
    """Seconds that pytest takes; imports here, once for all children, what it has imported of other packages."""
    status, seconds = copy.test(arguments, 1800, log)
    if status != 0:
        raise SystemExit(
            f"pytest {' '.join(arguments)}: fails without a fault, status {status}:\n{log.read_text()[-3000:]}"
        )
    for name in log.with_suffix(".modules").read_text(encoding="utf-8").split("\n"):
        if not name.startswith(_OF_THE_COPY) and name not in sys.modules:
            with suppress(
                Exception
            ):  # a module that only imports under its parent's conditions is imported by the children
                importlib.import_module(name)
    threads = {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
    if others := threads - {Path("/proc/self/comm").read_text().strip(), *_SURVIVE_A_FORK}:
        raise SystemExit(f"{', '.join(others)}: threads, which do not survive a fork; one was expected")
    return seconds


def report(outcomes: dict[Mutant, str], explained: list[dict[str, str]]) -> dict[str, Any]:
    """Figures by file, and the survivors with the reason of those that are explained."""
    reasons = {(e["file"], e["scope"], e["before"], e["after"]): e["reason"].strip() for e in explained}
    files = {mutant.file: Counter(killed=0, timeout=0, survived=0, explained=0) for mutant in outcomes}
    survivors = []
    for mutant, outcome in outcomes.items():
        files[mutant.file][outcome] += 1
        if outcome == "survived":
            reason = reasons.get(mutant.key)
            files[mutant.file]["explained"] += reason is not None
            place = {name: getattr(mutant, name) for name in ("file", "line", "scope", "before", "after")}
            survivors.append({**place, "reason": reason})
    return {"files": {file: dict(counts) for file, counts in files.items()}, "survivors": survivors}


def stale(root: Path, files: list[str], explained: list[dict[str, str]]) -> list[str]:
    """What is explained although nothing makes it any more."""
    keys = {mutant.key for mutant in draw(root, files, None, 0)[0]}
    every = [(e["file"], e["scope"], e["before"], e["after"]) for e in explained]
    return [" · ".join(key) for key in every if key not in keys]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=320, help="mutants drawn; 0: all (default: 320)")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing (default: 0)")
    parser.add_argument(
        "--only", nargs="+", default=[], help="files to which the drawing is limited; default: the plan's"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="of the repository")
    parser.add_argument("--plan", type=Path, default=HERE / "plan.yaml", help="files and their tests")
    parser.add_argument("--explained", type=Path, default=HERE / "explained.yaml", help="survivors and their reasons")
    parser.add_argument("--output", type=Path, help="JSON file for the result; default: standard output alone")
    options = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    plan = yaml.safe_load(options.plan.read_text(encoding="utf-8"))
    explained = yaml.safe_load(options.explained.read_text(encoding="utf-8")) or []
    tests = plan_tests(plan)
    files = options.only or list(tests)
    for file, reason in plan["left_out"].items():
        print(f"left out: {file}: {reason}")
    started = time.monotonic()
    mutants, population = draw(options.root, files, options.count or None, options.seed)
    progress = Progress(options.output and options.output.with_suffix(".progress"))
    reasons = {(e["file"], e["scope"], e["before"], e["after"]) for e in explained}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        outcomes = try_mutants(Copy(options.root, Path(folder)), mutants, tests, reasons, progress)
    result = report(outcomes, explained)
    old = stale(options.root, list(tests), explained)
    if options.output is not None:
        head = {"mutants": len(mutants), "drawn_from": population, "seconds": round(time.monotonic() - started)}
        head["tried_by_earlier_runs"] = progress.known(mutants)
        _write(options.output, {**head, "left_out": plan["left_out"], **result}, options.seed)
    status = _tell(result, old)
    progress.finish(outcomes, again=status != 0)
    return status


def _write(path: Path, result: dict[str, Any], seed: int) -> None:
    # Only now: what is imported in this process is not imported anew after a fork.
    from reluformer.training.run.records import run_record, write_json

    write_json(path, {**run_record(None, None, seed), **result})


def _tell(result: dict[str, Any], old: list[str]) -> int:
    for file, counts in result["files"].items():
        print(f"{file}: {json.dumps(counts)}")
    unexplained = [survivor for survivor in result["survivors"] if survivor["reason"] is None]
    for survivor in unexplained:
        print("survives, unexplained:\n" + yaml.safe_dump([survivor], allow_unicode=True, sort_keys=False, width=1000))
    for key in old:
        print(f"explained.yaml: no such mutant any more: {key}")
    return int(bool(unexplained or old))


if __name__ == "__main__":
    sys.exit(main())
