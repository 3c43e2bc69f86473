"""`python -m benchmarks.studies`: lists or runs the rows of studies, and writes the report."""

from __future__ import annotations

import argparse
import signal
import sys
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.studies.parser import load_rows, load_study, study_names
from benchmarks.studies.report import write_reproduction
from benchmarks.studies.running import Runner, tasks_by_study
from benchmarks.studies.study import SIZES, Study
from benchmarks.studies.tasks import RESULTS, RUNS, Places, Task, state_of
from reluformer.commands.main import exit_status
from reluformer.commands.parsing import Parser
from reluformer.configuration.errors import TrainingStopped, UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; the exit status is as that of `reluformer`: [`reluformer.commands.main.main`]."""
    return exit_status(partial(_run, sys.argv[1:] if arguments is None else arguments))


def _run(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.report is not None:
        if options.study or options.only or options.seed or options.list:
            raise UserError("--report: is of all studies, and runs none; leave --study, --only, --seed and --list out")
        sizes = [options.size] if options.size else ["cpu", "paper"]
        print(write_reproduction(options.report, sizes=sizes, runs=options.runs, results=options.results))
        return 0
    size = options.size or "cpu"
    studies = {name: load_study(name) for name in options.study or study_names()}
    studies = dict(sorted(studies.items(), key=lambda named: named[1].position))
    places = Places.of(size, options.runs, options.results, options.gpu)
    by_study = tasks_by_study(studies, load_rows(size), places, only=options.only, seeds=options.seed)
    if options.list:
        return _list(studies, by_study, with_rows=bool(options.study or options.only))
    tasks = {(task.row.key, task.seed): task for of_study in by_study.values() for task in of_study}
    in_order = sorted(tasks.values(), key=lambda task: task.seed)  # one seed of everything before a second of anything
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        failures = Runner(size, options.jobs, partial(print, flush=True)).run(in_order)
    finally:
        signal.signal(signal.SIGTERM, before)
    if failures:
        raise UserError(f"{len(failures)} of {len(tasks)} rows failed; the first: {failures[0]}")
    return 0


def _stop(number: int, frame: Any) -> None:
    raise TrainingStopped("the rows that were being trained save and stop; the same command goes on with them")


def _list(studies: Mapping[str, Study], by_study: Mapping[str, Sequence[Task]], *, with_rows: bool) -> int:
    for name, tasks in by_study.items():
        finished = sum(state_of(task) == "finished" for task in tasks)
        title = textwrap.shorten(studies[name].title, 66, placeholder=" …")
        print(f"{name:<17} {finished:>2} of {len(tasks):>2} rows   {title}")
        for task in tasks if with_rows else ():
            print(f"  {task.name}: {state_of(task)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m benchmarks.studies",
        description="Runs the rows of the papers' tables and figures: those that are missing; one that was interrupted "
        "goes on "
        "where it stopped, one that is finished is left alone.",
    )
    parser.add_argument("--study", action="append", metavar="NAME", help="such as t2; may be repeated; default: all")
    parser.add_argument("--size", choices=SIZES, help="default: cpu; of a report: cpu and paper")
    parser.add_argument("--only", action="append", default=[], metavar="ROW", help="these rows alone; may be repeated")
    parser.add_argument("--seed", action="append", type=int, default=[], help="instead of the study's; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="rows at once, a core each; default: 1")
    parser.add_argument("--gpu", action="store_true", help="train on the GPU, also what is made for CPU cores")
    parser.add_argument("--list", action="store_true", help="how far the studies are; with --study or --only, each row")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the report of all studies, run nothing")
    parser.add_argument("--runs", type=Path, default=RUNS, metavar="FOLDER", help=f"of run folders; default: {RUNS}")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help=f"default: {RESULTS}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
