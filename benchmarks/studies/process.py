"""One row in a process of its own: its output goes to a log, and a crash costs nothing but itself."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

# A job is one core's: more threads than cores make a small model slower, and two jobs would share them. The two of glibc
# keep the memory of the logits, which it would otherwise give back to the system after every update.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "TOKENIZERS_PARALLELISM": "false",
}
RELUFORMER, TRAIN_ROW = "reluformer", "benchmarks.studies.training"
BUSY = 75  # exit status: another process is running the same row
# Imported once, in the server that all rows are forked from.
_PRELOADED = ["reluformer.training.train", "reluformer.configuration.recipe_parser", "reluformer.hub_cards.card"]
# A bar, or the line that a training prints where no bar can be seen.
_BAR = re.compile(rb"\d+/\d+ \[[^\]\r\n]*\]")
_LINE = re.compile(rb"^[\d,]+/[\d,]+ \xc2\xb7 [^\r\n]*", re.MULTILINE)
_TAIL = 8192  # bytes of a log that are looked at


def start(commands: Sequence[Sequence[str]], log: Path, lock: Path) -> multiprocessing.Process:
    """Runs commands one after the other in a new process, until one of them fails.

    Args:
        commands: `RELUFORMER` or `TRAIN_ROW`, and the arguments.
        log: what the process prints is appended to it.
        lock: held while the process lives; where another process holds it, the new one ends with status `BUSY`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    with _environment():  # the server inherits it when it starts, with the first process
        process = context.Process(target=_run, args=([list(c) for c in commands], str(log), str(lock)), daemon=True)
        process.start()
    return process


def last_progress(log: Path) -> str | None:
    """The last progress in a log: `300/2400 [05:00<35:00, 1.00it/s]`, or `300/2,400 · loss 4.1 · 35:00 left`."""
    tail = _tail(log)
    found = [match for kind in (_BAR, _LINE) for match in kind.finditer(tail)]
    return max(found, key=re.Match.start).group().decode(errors="replace") if found else None


def last_line(log: Path) -> str:
    """The last line of a log, which names the error of a process that failed."""
    lines = [line.strip() for line in re.split(r"[\r\n]", _tail(log).decode(errors="replace"))]
    return next((line for line in reversed(lines) if line), "nothing was printed")


def _tail(log: Path) -> bytes:
    if not log.is_file():
        return b""
    with log.open("rb") as stream:
        stream.seek(max(log.stat().st_size - _TAIL, 0))
        return stream.read()


@contextlib.contextmanager
def _environment():
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _run(commands: list[list[str]], log: str, lock: str) -> None:
    """In the new process."""
    try:
        with FileLock(lock, timeout=0), open(log, "a", encoding="utf-8", buffering=1) as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
            sys.stdout = sys.stderr = stream
            settings = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
            for command in commands:
                print(f"$ {settings} {shlex.join(command)}", flush=True)
                if status := _call(command):
                    sys.exit(status)
    except Timeout:
        sys.exit(BUSY)


def _call(command: list[str]) -> int:
    from benchmarks.studies.training import main as train_row
    from reluformer.__main__ import main as reluformer

    program, *arguments = command
    sys.argv = command  # what records tell as the command
    try:
        return {RELUFORMER: reluformer, TRAIN_ROW: train_row}[program](arguments)
    except Exception:  # told while the log is still open; multiprocessing would print it when it is not
        traceback.print_exc()
        return 1
