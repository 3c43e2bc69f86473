"""Small trainings, several at once on the card: the rows of study `relu2`, Multi30k German → English from `data/multi30k`.

What is not over when the time is goes on the next time, from the parts of its checkpoint that stand in the folder of --output
or of --resume; they are at most 48 MiB, for the trainings that come first in the study.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.campaign import CUDA, ROOT, Cell
from benchmarks.studies.parser import load_rows, load_study, merged
from benchmarks.studies.running import Runner, tasks_by_study
from benchmarks.studies.tasks import Places, Task, read_result

STUDY = "relu2"
MOST, PARTS = 48 * 2**20, "checkpoints.tar."  # in three parts
STOPPING = 45  # seconds that are left for checkpoints, and for packing them


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    size = "cpu" if CUDA else "smoke"
    # not in the output, of which a machine that was lent gives few files back
    folder = (ROOT if CUDA else options.output) / "runs" / "gpu"
    places = Places(folder / "runs", folder / "results")
    for created in (places.runs, places.results, options.output):
        created.mkdir(parents=True, exist_ok=True)
    unpack(options.resume or options.output, places.runs)
    tasks = tasks_by_study({STUDY: load_study(STUDY)}, load_rows(size), places)[STUDY]
    tasks = [on_gpu(task) if CUDA else task for task in tasks if {"row": task.name} not in options.done]
    tasks = tasks if CUDA else tasks[:2]
    runner = Runner(size, max(2, (os.cpu_count() or 2) // 2))
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, 60 * options.minutes - STOPPING)
    with contextlib.suppress(TimeoutError):  # at which the runner tells its trainings to save and stop
        runner.run(tasks)
    signal.setitimer(signal.ITIMER_REAL, 0)
    unfinished = [task.run_folder.name for task in tasks if read_result(task) is None]
    packed = pack(places.runs, unfinished, options.output)
    print(f"science: {len(unfinished)} trainings are not over, {packed} of them can go on", *runner.failures, sep="\n")
    for task in tasks:
        if result := read_result(task):
            yield Cell({"row": task.name}, partial(outcome, result), 0)


def on_gpu(task: Task) -> Task:
    recipe = merged(task.row.recipe, {"training": {"use_cpu": False}})
    return replace(task, row=replace(task.row, recipe=recipe, key=f"{task.row.key}-gpu", analyses=()))


def _stop(number: int, frame: Any) -> None:
    raise TimeoutError


def outcome(result: Mapping[str, Any]) -> dict[str, Any]:
    """Score on the test set, and the course of validation."""
    log = result["log_history"]
    validation = {entry["step"]: entry["eval_cross_entropy"] for entry in log if "eval_cross_entropy" in entry}
    bleu = (result.get("bleu") or {}).get("score")
    return {"bleu": bleu, "updates": result["training"]["updates"], "validation": validation}


def pack(runs: Path, names: Sequence[str], folder: Path) -> int:
    """Run folders in parts that fit; how many of them."""
    for old in folder.glob(f"{PARTS}*"):
        old.unlink()
    packed, size = [], 0
    for name in names:
        own = sum(path.stat().st_size + 2048 for path in (runs / name).rglob("*"))
        if own and size + own < MOST:
            packed, size = [*packed, name], size + own
    if packed:
        command = f'tar c -C "$1" {" ".join(packed)} | split -d -b {MOST // 3} - "$2/{PARTS}"'
        subprocess.run(["sh", "-c", command, "sh", runs, folder], check=True)
    return len(packed)


def unpack(folder: Path, runs: Path) -> None:
    if any(folder.glob(f"{PARTS}*")):
        subprocess.run(["sh", "-c", f'cat "$2/{PARTS}"* | tar x -C "$1"', "sh", runs, folder], check=True)
