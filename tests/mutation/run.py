"""Plants the faults of faults.yaml in a copy of this repository, one at a time: do their tests notice? `make mutants`.

Torch and Transformers are imported once, and each fault is tested in a process that is forked from that one. A fault is
killed where a test fails, crashes, or takes several times as long as without it. Writes a JSON file and
benchmarks/MUTANTS.md.

Status 1: a fault survives, stands no longer in its file, or keeps the tests from running at all.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from .report import MISSED, RESULT, write_page

ROOT = Path(__file__).parents[2]
FAULTS = "tests/mutation/faults.yaml"
# Beyond this many times what the tests need without a fault, and some seconds (of C++, to build a library), they hang.
PATIENCE, SPARE_SECONDS, BUILDING_SECONDS = 4, 30, 300


def copy_repository(root: Path, copy: Path) -> None:
    """What git knows of, with the links that make the package."""
    listed = subprocess.check_output(["git", "-C", str(root), "ls-files", "-co", "--exclude-standard"], text=True)
    for name in filter(lambda name: (root / name).exists(), listed.splitlines()):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, copy / name, follow_symlinks=False)


def write_anew(path: Path, text: str) -> None:
    """Writes a file that Python compiles anew: it knows a file that has changed by its size and the second of its
    time."""
    time_before = int(path.stat().st_mtime)
    path.write_text(text, encoding="utf-8")
    os.utime(path, (time_before + 2, time_before + 2))


@contextlib.contextmanager
def written(path: Path, text: str) -> Iterator[None]:
    """A file holds another text while the block runs."""
    original = path.read_text(encoding="utf-8")
    write_anew(path, text)
    yield
    write_anew(path, original)


def run_tests(
    copy: Path,
    tests: str,
    seconds: float,
    plugins: Sequence[object] = (),
    which: str = "not slow",
    cpu_seconds: float | None = None,
) -> str:
    """ "passed", the test that failed, or how else they ended.

    They are stopped after `seconds` of the clock, or `cpu_seconds` of the processor, which other programs do not take
    from them.
    """

    def run() -> int:
        if cpu_seconds is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_seconds) + 1, resource.RLIM_INFINITY))
        options = f"-x -q --tb=line -rfE --assert=plain --hypothesis-seed=0 -p no:cacheprovider -m '{which}' "
        arguments = [f"tests/{word}" if ".py" in word else word for word in shlex.split(options + tests)]
        return int(sys.modules["pytest"].main(arguments, plugins))

    return in_fork(copy, run, seconds)


def in_fork(copy: Path, run: Callable[[], int], seconds: float) -> str:
    """What `run_tests` returns, of a function that returns a status, run where the package is that of the copy."""
    log = copy / "pytest.log"
    child = os.fork()
    if child == 0:
        status = 3
        try:
            os.setsid()
            # what was imported to run this stands in the repository, not in its copy
            for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
                del sys.modules[name]
            for stream in (1, 2):
                os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), stream)
            os.chdir(copy)
            sys.path.insert(0, str(copy))
            os.environ["PYTHONPATH"] = str(copy)
            status = run()
        finally:
            os._exit(status)
    until = time.monotonic() + seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "took too long"
        time.sleep(0.05)
    status, output = os.waitstatus_to_exitcode(ended[1]), log.read_text(encoding="utf-8", errors="replace")
    if failed := re.search(r"^FAILED (\S+)", output, re.MULTILINE):
        return failed[1].removeprefix("tests/")
    if status == -signal.SIGXCPU:
        return "took too long"
    if status < 0:
        return f"ended by signal {-status}"
    return "passed" if status == 0 else f"not run: status {status}: {' '.join(output.split())[-300:]}"


def try_faults(root: Path, groups: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each fault with its file, what was `found` (see `run_tests`) and the processor's seconds."""
    limits: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        copy_repository(root, copy)
        os.environ |= {"TORCH_EXTENSIONS_DIR": str(copy / "libraries"), "OBJECTS": str(copy / "objects")}
        for group in groups:
            tests, path = group["tests"], copy / group["file"]
            if tests not in limits:
                started = time.monotonic()
                if (found := run_tests(copy, tests, 1800)) != "passed":
                    raise SystemExit(f"{tests}: fail without a fault: {found}")
                spare = BUILDING_SECONDS if path.suffix in (".h", ".cpp") else SPARE_SECONDS
                limits[tests] = (time.monotonic() - started) * PATIENCE + spare
            original = path.read_text(encoding="utf-8")
            for before, after in group["faults"]:
                started, found = used_seconds(), f"not run: stands {original.count(before)} times in its file"
                if original.count(before) == 1:
                    with written(path, original.replace(before, after)):
                        found = run_tests(copy, tests, limits[tests])
                seconds = round(used_seconds() - started, 1)
                print(f"{seconds} s {group['file']}: {before} → {after}: {found}", flush=True)
                yield {"file": group["file"], "before": before, "after": after, "found": found, "seconds": seconds}


def used_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def key_of(row: dict[str, Any]) -> tuple[str, str, str]:
    """What tells a fault from others, of a row of the result."""
    return row["file"], row["before"], row["after"]


def import_libraries() -> None:
    """What every test imports, before the first fork."""
    # What the tests set before their imports: here the libraries are imported before them.
    before_imports = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TRITON_INTERPRET", "HF_DATASETS_DISABLE_PROGRESS_BARS")
    os.environ |= dict.fromkeys(before_imports, "1")
    os.environ["CXX"] = shlex.join([sys.executable, str(Path(__file__).with_name("cached_compiler.py"))])
    import datasets  # noqa: F401
    import hypothesis.strategies  # noqa: F401
    import pytest  # noqa: F401
    from transformers import MarianMTModel, Seq2SeqTrainer, ViTForImageClassification  # noqa: F401

    gc.freeze()  # so that the collector of a child leaves alone, and the system shares, what is here already


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="expression that the file is searched for; others' results stay")
    parser.add_argument("--new", action="store_true", help="those without a result; others' results stay")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the repository")
    options = parser.parse_args()
    import_libraries()
    groups = yaml.safe_load((options.root / FAULTS).read_text(encoding="utf-8"))
    planted = [(group["file"], *fault) for group in groups for fault in group["faults"]]
    output, rows = options.root / RESULT, {}
    if (options.only or options.new) and output.is_file():
        rows = {key_of(row): row for row in json.loads(output.read_text(encoding="utf-8"))["faults"]}
    tried = [
        {**group, "faults": faults}
        for group in groups
        if re.search(options.only, group["file"])
        and (faults := [each for each in group["faults"] if not options.new or (group["file"], *each) not in rows])
    ]
    for row in try_faults(options.root, tried):
        rows[key_of(row)] = row
    # Only now: what is imported in this process is not imported anew after a fork.
    from reluformer.records.records import run_record, write_json

    result = {**run_record(None, None, None), "faults": [rows[key] for key in planted if key in rows]}
    write_json(output, result)
    write_page(options.root)
    return int(any(row["found"].startswith(MISSED) for row in result["faults"]))


if __name__ == "__main__":
    raise SystemExit(main())
