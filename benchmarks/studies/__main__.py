"""`python -m benchmarks.studies`: lists or runs the rows of studies, and writes the report."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.studies.costs import study_costs, summary
from benchmarks.studies.parser import load_rows, load_study, study_names
from benchmarks.studies.running import run_tasks, tasks_by_study
from benchmarks.studies.study import SIZES
from benchmarks.studies.tasks import RESULTS, RUNS, Places, Task, is_stale, state_of
from reluformer.commands.main import exit_status
from reluformer.commands.parsing import Parser
from reluformer.configuration.errors import UserError

SEEDS = 2**32  # that NumPy takes


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; the exit status is as that of `reluformer`: [`reluformer.commands.main.main`]."""
    return exit_status(partial(_run, sys.argv[1:] if arguments is None else arguments))


def _run(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.report is not None:
        return _report(options)
    options.size = options.size or "cpu"
    if options.jobs < 1:
        raise UserError(f"--jobs: {options.jobs} must be at least 1")
    if wrong := [seed for seed in options.seed if not 0 <= seed < SEEDS]:
        raise UserError(f"--seed: {wrong[0]} must be at least 0 and less than {SEEDS}")
    catalogue = load_rows(options.size)
    studies = {name: load_study(name) for name in options.study or study_names()}
    studies = dict(sorted(studies.items(), key=lambda item: item[1].position))
    places = Places.of(options.size, options.runs, options.results)
    found = tasks_by_study(studies, catalogue, places, only=options.only, seeds=options.seed)
    if options.list:
        _require_results(options.results)
        costs = study_costs(options.size, runs=options.runs, results=options.results)
        with_rows = options.all or options.study or options.only
        for name, tasks in found.items():
            if not with_rows:
                finished = sum(state_of(task) == "finished" for task in tasks)
                title = textwrap.shorten(studies[name].title, 66, placeholder=" …")
                print(f"{name:<17} {finished:>2} of {len(tasks):>2} rows   {title}")
                continue
            print(f"{name}: {studies[name].title}")
            if name in costs:
                print(f"  {summary(costs[name])}")
            for line in map(_listed, tasks):
                print(f"  {line}")
        if not with_rows:
            print(
                f"core-hours missing: {costs['all'].left}; with --all or --study NAME: each row, its costs and corpora"
            )
        return 0
    tasks: dict[tuple[str, int], Task] = {}
    for task in (task for of_study in found.values() for task in of_study):
        tasks.setdefault((task.row.key, task.seed), task)
    in_order = sorted(tasks.values(), key=lambda task: task.seed)  # one seed of everything before a second of anything
    with _ended_by_sigterm():
        failures = run_tasks(in_order, size=options.size, jobs=options.jobs, say=_say)
    if failures:
        raise UserError(f"{len(failures)} of {len(tasks)} rows failed; the first: {failures[0]}")
    return 0


def _report(options: argparse.Namespace) -> int:
    if options.study or options.only or options.seed or options.list or options.jobs != 1:
        raise UserError(
            "--report: is of all studies, and runs none; leave --study, --only, --seed, --jobs and --list out"
        )
    if options.report.is_dir() or not options.report.name:
        raise UserError(f"--report: '{options.report}' is a folder; give a file")
    if not (above := next(folder for folder in options.report.parents if folder.exists())).is_dir():
        raise UserError(f"--report: '{above}' is a file, and cannot hold '{options.report}'; give a file in a folder")
    _require_results(options.results)
    from benchmarks.studies.report import write_reproduction

    sizes = [options.size] if options.size else ["cpu", "paper"]
    if not any(found for size in sizes for found in (options.results / size).glob("*.json")):
        raise UserError(f"--results: '{options.results}' holds no result of size {' or '.join(sizes)}; run a row first")
    print(write_reproduction(options.report, sizes=sizes, runs=options.runs, results=options.results))
    return 0


def _require_results(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"--results: no folder '{folder}'; give that of the results, from the current directory")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m benchmarks.studies",
        description="Runs the rows of the paper's tables and figures: those that are missing; one that was interrupted goes on "
        "where it stopped, one that is finished is left alone.",
    )
    parser.add_argument(
        "--study", action="append", metavar="NAME", help="for example t2; may be repeated; default: all"
    )
    parser.add_argument("--size", choices=SIZES, help="default: cpu; of a report: cpu and paper")
    parser.add_argument("--only", action="append", default=[], metavar="ROW", help="these rows alone; may be repeated")
    parser.add_argument("--seed", action="append", type=int, default=[], help="instead of the study's; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="rows at once, a core each; default: 1")
    parser.add_argument(
        "--list",
        action="store_true",
        help="list how far the studies are, run nothing; with --study or --only their rows, costs and corpora",
    )
    parser.add_argument("--all", action="store_true", help="with --list: the rows of all studies")
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write the report of all studies from the results there are, run nothing",
    )
    parser.add_argument("--runs", type=Path, default=RUNS, metavar="FOLDER", help=f"of run folders; default: {RUNS}")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help=f"default: {RESULTS}")
    return parser


def _listed(task: Task) -> str:
    stale = " (a result of another recipe is there)" if is_stale(task) else ""
    return f"{task.name}: {state_of(task)}{stale}"


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that the rows that are being trained are told to save and stop."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
