"""Running a study: what is missing is trained, what was interrupted goes on, what is finished is left alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import Process
from pathlib import Path

import yaml

from benchmarks.studies import process as study_process
from benchmarks.studies.analysis_commands import analysis_commands
from benchmarks.studies.bootstrap import STATISTICS
from benchmarks.studies.collection import read_json, unevaluated_splits
from benchmarks.studies.parser import Catalogue, Row, table_of
from benchmarks.studies.study import Study
from benchmarks.studies.tasks import (
    Places,
    Task,
    is_measured,
    is_stale,
    missing_analyses,
    read_result,
    state_of,
    write_result,
)
from reluformer.configuration.errors import UserError, one_line
from reluformer.training.run.run_folder import RECORD_FILE

PROGRESS_SECONDS = 60.0
_POLL_SECONDS = 0.1


@dataclass
class Job:
    """A task that is being run."""

    task: Task
    number: int
    state: str
    process: Process
    started: float = field(default_factory=time.monotonic)


def tasks_by_study(
    studies: Mapping[str, Study],
    catalogue: Catalogue,
    places: Places,
    *,
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
) -> dict[str, list[Task]]:
    """The tasks of each study, all rows with the first seed before any with the second; each row once.

    Args:
        studies: whose rows they are.
        catalogue: the rows at the size.
        places: of runs and results.
        only: names of rows, if not all are wanted; also of rows that others of a study start from. A study that has none of
            them is left out.
        seeds: instead of the studies' own.

    Raises:
        UserError: `only` names a row that none of the studies has at this size.
    """
    named = {name: _rows_to_name(study, catalogue) for name, study in studies.items()}
    known = dict.fromkeys(row for rows in named.values() for row in rows)
    for row in only:
        if row not in known:
            several = "`--list --all` names them"
            choose = several if len(studies) > 1 else f"choose of {', '.join(known) or 'none'}"
            raise UserError(f"--only: no row {row!r} at size {catalogue.size}; {choose}")
    found = {}
    for name, study in studies.items():
        rows = {row.key: row for row in _rows_wanted(study, catalogue, named[name], only)}
        if rows or not only:
            own = {key: seeds or wanted for key, wanted in _seeds_by_key(study, catalogue).items()}
            other = seeds or study.seeds.get(catalogue.size, [1])  # of what stands in no table
            pairs = [(seed, row) for row in rows.values() for seed in own.get(row.key, other)]
            order = list(dict.fromkeys(seed for seed, _ in pairs))
            found[name] = [
                Task(row, seed, places) for seed, row in sorted(pairs, key=lambda pair: order.index(pair[0]))
            ]
    return found


def _seeds_by_key(study: Study, catalogue: Catalogue) -> dict[str, list[int]]:
    """The seeds of every row of a study's table; of one that stands there under two names, those of both."""
    found: dict[str, list[int]] = {}
    for entry in table_of(study, catalogue):
        if entry.row is not None:
            known = found.setdefault(entry.row.key, [])
            known += [seed for seed in entry.seeds if seed not in known]
    return found


def _rows_wanted(study: Study, catalogue: Catalogue, named: Mapping[str, Row], only: Sequence[str]) -> list[Row]:
    names = only or _table_rows(study, catalogue)
    return [row for name, row in named.items() if name in names]


def _rows_to_name(study: Study, catalogue: Catalogue) -> dict[str, Row]:
    """The rows of a study's table and, after them, all that went before these, by name."""
    named = _table_rows(study, catalogue)
    for row in list(named.values()):
        while (row := row.start) is not None:
            named.setdefault(row.name, row)
    return named


def _table_rows(study: Study, catalogue: Catalogue) -> dict[str, Row]:
    return {entry.name: entry.row for entry in table_of(study, catalogue) if entry.row is not None}


def run_tasks(tasks: Sequence[Task], *, size: str, jobs: int = 1, say: Callable[[str], None] = print) -> list[str]:
    """Runs what is not finished, `jobs` at a time.

    Args:
        tasks: in their order, but what one starts from comes before it; one that is finished is said to be so and left alone.
        size: for the command that results tell.
        jobs: processes at once, each with one thread.
        say: takes lines of progress.

    Returns:
        What went wrong, one line for each row that failed.
    """
    failures: list[str] = []
    tasks = _with_starts(tasks)
    waiting = list(enumerate(tasks, start=1))
    running: list[Job] = []
    told = time.monotonic()
    try:
        while waiting or running:
            while len(running) < jobs and (ready := _first_ready(waiting, running)) is not None:
                number, task = waiting.pop(ready)
                job = _begin(task, number, len(tasks), size, say, failures)
                running += [] if job is None else [job]
            for job in [job for job in running if not job.process.is_alive()]:
                running.remove(job)
                went_well = _end(job, len(tasks), size, say, failures)
                if went_well and job.state != "finished" and missing_analyses(job.task):  # now that there is a model
                    waiting.insert(0, (job.number, job.task))
            if time.monotonic() - told > PROGRESS_SECONDS:
                told = time.monotonic()
                for job in running:
                    _tell_progress(job, len(tasks), say)
            if running:
                running[0].process.join(_POLL_SECONDS)
    finally:
        for job in running:  # an interruption: they go on from their last checkpoint
            job.process.terminate()
            job.process.join()
    return failures


def _with_starts(tasks: Sequence[Task]) -> list[Task]:
    """The tasks, and before those that are not over the tasks that they start from; each once."""
    found: dict[Path, Task] = {}
    for task in tasks:
        if task.start is not None and state_of(task) in ("missing", "begun"):
            for start in _with_starts([task.start]):
                found[start.run_folder] = start  # instead of the same without `model_needed`
        found.setdefault(task.run_folder, task)
    return list(found.values())


def _first_ready(waiting: Sequence[tuple[int, Task]], running: Sequence[Job]) -> int | None:
    """The position of the first task that starts from nothing that is still to be trained."""
    open_folders = {task.run_folder for _, task in waiting} | {job.task.run_folder for job in running}
    for position, (_, task) in enumerate(waiting):
        if task.start is None or task.start.run_folder not in open_folders:
            return position
    return None


def _begin(
    task: Task, number: int, total: int, size: str, say: Callable[[str], None], failures: list[str]
) -> Job | None:
    """Starts what is left to do of a task; None if that is nothing."""
    state, head = state_of(task), f"[{number}/{total}] {task.name}"
    try:
        commands = _commands(task, state)
    except UserError as error:
        failures.append(f"{task.name}: {one_line(error)}")
        say(f"{head}: failed: {failures[-1]}")
        return None
    if not commands:
        if state == "finished":
            again = "--runs runs/again --results runs/again/results"
            say(f"{head}: finished already ({task.result_file}); to train it again, give folders of their own: {again}")
        else:
            _collect(task, head, size, say, failures)
        return None
    if is_stale(task):
        say(f"{head}: {task.result_file} is of another recipe and will be replaced")
    elif task.model_needed and state == "missing" and read_result(task) is not None:
        say(f"{head}: its model is not on this machine; {task.result_file} will be replaced")
    doing = {"finished": "analyses", "trained": "evaluation", "begun": "goes on", "missing": "starts"}
    say(f"{head}: {doing[state]}; log: {task.log_file}")
    lock = task.run_folder.with_name(f"{task.run_folder.name}.lock")
    return Job(task, number, state, study_process.start(commands, task.log_file, lock))


def _commands(task: Task, state: str) -> list[list[str]]:
    """What is left to do, in order."""
    if task.row.recipe is None:
        measure = [
            study_process.RELUFORMER,
            *task.row.command,
            "--seed",
            str(task.seed),
            "--output",
            str(task.run_folder),
        ]
        return [measure] if state == "missing" else []
    if state in ("missing", "begun"):
        if task.start is not None:
            _require_model(task.start)
        task.recipe_file.parent.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(task.recipe(), sort_keys=False, allow_unicode=True, width=120)
        task.recipe_file.write_text(text, encoding="utf-8")
        return [_train(task)]
    if state == "trained":
        if "task" in task.row.recipe:
            return [_train(task)] if unevaluated_splits(task.run_folder) else []
        run = [study_process.RELUFORMER, "evaluate", "--run", str(task.run_folder)]
        return [[*run, "--split", split] for split in unevaluated_splits(task.run_folder)]
    # A result of another machine has no model here to analyse.
    has_model = (task.run_folder / RECORD_FILE).is_file()
    return analysis_commands(task, missing_analyses(task)) if has_model else []


def _train(task: Task) -> list[str]:
    """Translation is trained by `reluformer train`; a task of another name, by a program of the studies."""
    if "task" in task.row.recipe:
        return [study_process.TRAIN_ROW, str(task.recipe_file)]
    return [study_process.RELUFORMER, "train", "--config", str(task.recipe_file)]


def _require_model(start: Task) -> None:
    record = start.run_folder / RECORD_FILE
    if not record.is_file():
        raise UserError(f"{start.name}, which it starts from, is not trained ({start.log_file})")
    if read_json(record).get("diverged"):
        raise UserError(f"{start.name}, which it starts from, did not converge ({start.result_file})")


def _end(job: Job, total: int, size: str, say: Callable[[str], None], failures: list[str]) -> bool:
    """Keeps what a process has left; whether it went well."""
    task, head = job.task, f"[{job.number}/{total}] {job.task.name}"
    status = job.process.exitcode
    if status == study_process.BUSY:
        say(f"{head}: left alone, another process is running it")
        return False
    # What is there is kept, even if what came after it has failed.
    if is_measured(task) or (task.run_folder / RECORD_FILE).is_file():
        _collect(task, head, size, say, failures)
    if status:
        failures.append(
            f"{task.name}: exit status {status}: {study_process.last_line(task.log_file)} ({task.log_file})"
        )
        say(f"{head}: failed: {failures[-1]}")
    return not status


def _collect(task: Task, head: str, size: str, say: Callable[[str], None], failures: list[str]) -> None:
    command = f"python -m benchmarks.studies --size {size} --only {task.row.name} --seed {task.seed}"
    try:
        path = write_result(task, command)
    except (UserError, OSError) as error:
        failures.append(f"{task.name}: {one_line(error)}")
        say(f"{head}: failed: {failures[-1]}")
        return
    say(f"{head}: {_summary(read_json(path))}; {path}")


def _summary(result: dict) -> str:
    training = result.get("training")
    if training is None:
        return "measured"
    minutes = f"{training['updates']:,} updates, {result['training_seconds'] / 60:.1f} min"
    if training.get("diverged"):
        return f"does not converge: {training['diverged']['reason']} ({minutes})"
    scores = [f"{kind.label} {result[name]['score']:.2f}" for name, kind in STATISTICS.items() if result.get(name)]
    return f"{', '.join(scores)} ({minutes})" if scores else minutes


def _tell_progress(job: Job, total: int, say: Callable[[str], None]) -> None:
    minutes = (time.monotonic() - job.started) / 60
    progress = study_process.last_progress(job.task.log_file) or "loading"
    say(f"[{job.number}/{total}] {job.task.name}: {progress}, {minutes:.0f} min")
