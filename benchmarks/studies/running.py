"""Running studies: what is missing is trained, what was interrupted goes on, what is finished is left alone."""

from __future__ import annotations

import multiprocessing
import os
import re
import runpy
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest import mock

import yaml

from benchmarks.studies.analysis_commands import analysis_commands
from benchmarks.studies.collection import read_json, unevaluated_splits
from benchmarks.studies.parser import Catalogue, Row, table_of
from benchmarks.studies.scores import STATISTICS
from benchmarks.studies.study import Study
from benchmarks.studies.tasks import Places, Task, is_stale, missing_analyses, read_result, state_of, write_result
from reluformer.configuration.errors import UserError, one_line
from reluformer.training.run.run_folder import RECORD_FILE

RELUFORMER, TRAIN_ROW = "reluformer", "benchmarks.studies.training"
# A job is one core's: more threads than cores make a small model slower, and two jobs would share them. The two of glibc
# keep the memory of the logits, which it would otherwise give back to the system after every update.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "TOKENIZERS_PARALLELISM": "false",
}
PROGRESS_SECONDS, _POLL_SECONDS = 60.0, 0.1
_TAIL = 8192  # bytes of a log that are looked at


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
    rows = {name: {e.name: e.row for e in table_of(study, catalogue) if e.row} for name, study in studies.items()}
    named = {name: _with_rows_before(found) for name, found in rows.items()}
    if unknown := [row for row in only if not any(row in found for found in named.values())]:
        known = dict.fromkeys(row for found in named.values() for row in found)
        choose = "`--list` names the studies" if len(studies) > 1 else f"choose of {', '.join(known) or 'none'}"
        raise UserError(f"--only: no row {unknown[0]!r} at size {catalogue.size}; {choose}")
    found = {}
    for name, study in studies.items():
        wanted = [row for own, row in named[name].items() if own in (only or rows[name])]
        if wanted or not only:
            own = _seeds_by_key(study, catalogue)
            other = study.seeds.get(catalogue.size, [1])  # of what stands in no table
            pairs = dict.fromkeys((seed, row.key) for row in wanted for seed in (seeds or own.get(row.key, other)))
            order, by_key = list(dict.fromkeys(seed for seed, _ in pairs)), {row.key: row for row in wanted}
            in_order = sorted(pairs, key=lambda pair: order.index(pair[0]))
            found[name] = [Task(by_key[key], seed, places) for seed, key in in_order]
    return found


def _seeds_by_key(study: Study, catalogue: Catalogue) -> dict[str, list[int]]:
    """The seeds of every row of a study's table; of one that stands there under two names, those of both."""
    found: dict[str, list[int]] = {}
    for entry in table_of(study, catalogue):
        if entry.row is not None:
            known = found.setdefault(entry.row.key, [])
            known += [seed for seed in entry.seeds if seed not in known]
    return found


def _with_rows_before(rows: Mapping[str, Row]) -> dict[str, Row]:
    """The rows and, after them, all that went before these, by name."""
    found = dict(rows)
    for row in rows.values():
        while (row := row.start) is not None:
            found.setdefault(row.name, row)
    return found


@dataclass
class Job:
    """A task that is being run.

    head: of its messages. log: what it prints. commands: that follow the process. seen: the states it has been in.
    """

    task: Task
    head: str
    commands: list[list[str]] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    process: Program | None = None
    started: float = field(default_factory=time.monotonic)


@dataclass
class Runner:
    """Runs what is not finished, `jobs` at a time.

    size: for the command that results tell. say: takes lines of progress. failures: what went wrong, a line for each row.
    """

    size: str
    jobs: int = 1
    say: Callable[[str], None] = print
    failures: list[str] = field(default_factory=list)

    def run(self, tasks: Sequence[Task]) -> list[str]:
        """Runs the tasks in their order, but what one starts from before it; returns the failures."""
        tasks = _with_starts(tasks)
        waiting = [Job(task, f"[{number}/{len(tasks)}] {task.name}") for number, task in enumerate(tasks, start=1)]
        running: list[Job] = []
        told = time.monotonic()
        try:
            while waiting or running:
                while len(running) < self.jobs and (job := _first_ready(waiting, running)) is not None:
                    waiting.remove(job)
                    running += [job] if self._advance(job) else []
                for job in [job for job in running if job.process.poll() is not None]:
                    if not self._ended_well(job) or not self._advance(job):
                        running.remove(job)
                if time.monotonic() - told > PROGRESS_SECONDS:
                    told = time.monotonic()
                    for job in running:
                        self.say(f"{job.head}: {last_line(job.task.log_file)}, {(told - job.started) / 60:.0f} min")
                time.sleep(_POLL_SECONDS if running else 0)
        finally:
            for job in running:  # an interruption: they go on from their last checkpoint
                job.process.terminate()
                job.process.wait()
        return self.failures

    def _advance(self, job: Job) -> bool:
        """Starts the next command of a job; whether there was one."""
        try:
            while not job.commands:
                state = state_of(job.task)
                if state in job.seen:
                    return False
                first = not job.seen
                job.seen.add(state)
                job.commands = _commands(job.task, state)
                if job.commands and first:
                    self._begin(job, state)
                elif state == "trained" and not job.commands:
                    self._collect(job)
                elif first and state == "finished":
                    again = (
                        "to train it again, give folders of their own: --runs runs/again --results runs/again/results"
                    )
                    self.say(f"{job.head}: finished already ({job.task.result_file}); {again}")
        except (UserError, OSError) as error:
            return self._failed(job, one_line(error))
        job.process = start(job.commands.pop(0), job.task.log_file)
        return True

    def _begin(self, job: Job, state: str) -> None:
        task = job.task
        if is_stale(task):
            self.say(f"{job.head}: {task.result_file} is of another recipe and will be replaced")
        elif task.model_needed and state == "missing" and read_result(task) is not None:
            self.say(f"{job.head}: its model is not on this machine; {task.result_file} will be replaced")
        doing = {"finished": "analyses", "trained": "evaluation", "begun": "goes on", "missing": "starts"}
        self.say(f"{job.head}: {doing[state]}; log: {task.log_file}")

    def _ended_well(self, job: Job) -> bool:
        """Keeps what a process has left, even if what came after it has failed."""
        if not job.commands and state_of(job.task) != "begun":
            try:
                self._collect(job)
            except (UserError, OSError) as error:
                if not job.process.returncode:
                    return self._failed(job, one_line(error))
        if status := job.process.returncode:
            log = job.task.log_file
            return self._failed(job, f"exit status {status}: {last_line(log)} ({log})")
        return True

    def _failed(self, job: Job, why: str) -> bool:
        self.failures.append(f"{job.task.name}: {why}")
        self.say(f"{job.head}: failed: {self.failures[-1]}")
        return False

    def _collect(self, job: Job) -> None:
        task = job.task
        if state_of(task) == "missing":
            return
        again = f"python -m benchmarks.studies --size {self.size} --only {task.row.name} --seed {task.seed}"
        path = write_result(task, again)
        self.say(f"{job.head}: {_summary(read_json(path))}; {path}")


def _with_starts(tasks: Sequence[Task]) -> list[Task]:
    """The tasks, and before those that are not over the tasks that they start from; each once."""
    found: dict[Path, Task] = {}
    for task in tasks:
        if task.start is not None and state_of(task) in ("missing", "begun"):
            for before in _with_starts([task.start]):
                found[before.run_folder] = before  # instead of the same without `model_needed`
        found.setdefault(task.run_folder, task)
    return list(found.values())


def _first_ready(waiting: Sequence[Job], running: Sequence[Job]) -> Job | None:
    """The first that starts from nothing that is still to be trained."""
    unfinished = {job.task.run_folder for job in (*waiting, *running)}
    ready = (job for job in waiting if job.task.start is None or job.task.start.run_folder not in unfinished)
    return next(ready, None)


def _commands(task: Task, state: str) -> list[list[str]]:
    """What is left to do in a state, in order."""
    if task.row.recipe is None:
        measure = [RELUFORMER, *task.row.command, "--seed", str(task.seed), "--output", str(task.run_folder)]
        return [measure] if state == "missing" else []
    # Translation is trained by `reluformer train`; a task of another name, by a program of the studies.
    train = [TRAIN_ROW, str(task.recipe_file)]
    if "task" not in task.row.recipe:
        train = [RELUFORMER, "train", "--config", str(task.recipe_file)]
    if state in ("missing", "begun"):
        if task.start is not None:
            _require_model(task.start)
        task.recipe_file.parent.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(task.recipe(), sort_keys=False, allow_unicode=True, width=120)
        task.recipe_file.write_text(text, encoding="utf-8")
        return [train]
    if state == "trained":
        splits = unevaluated_splits(task.run_folder)
        if "task" in task.row.recipe:
            return [train] if splits else []
        return [[RELUFORMER, "evaluate", "--run", str(task.run_folder), "--split", split] for split in splits]
    # A result of another machine has no model here to analyse.
    has_model = (task.run_folder / RECORD_FILE).is_file()
    commands = analysis_commands(task, missing_analyses(task)) if has_model else []
    return [[RELUFORMER, *command] for command in commands]


def _require_model(before: Task) -> None:
    record = before.run_folder / RECORD_FILE
    if not record.is_file():
        raise UserError(f"{before.name}, which it starts from, is not trained ({before.log_file})")
    if read_json(record).get("diverged"):
        raise UserError(f"{before.name}, which it starts from, did not converge ({before.result_file})")


@dataclass(frozen=True)
class Program:
    """A program in a process of its own, by the names of `subprocess.Popen`."""

    process: BaseProcess

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int | None:
        self.process.join()
        return self.process.exitcode

    def terminate(self) -> None:
        self.process.terminate()


def start(command: Sequence[str], log: Path) -> Program:
    """Starts a program and its arguments in a process of its own; what it prints is appended to the log.

    All are forked from one server that has imported what they need, which takes longer than a row of the smallest size.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["reluformer.training.train", "reluformer.hub_cards.card"])
    with mock.patch.dict(os.environ, ENVIRONMENT):  # the server inherits it when it starts, with the first process
        process = context.Process(target=_execute, args=(list(command), log))
        process.start()
    return Program(process)


def _execute(command: list[str], log: Path) -> None:
    settings = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
    with log.open("a", encoding="utf-8", buffering=1) as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
        sys.stdout = sys.stderr = stream
        print(f"$ {settings} python -m {shlex.join(command)}")
        sys.argv = command
        try:
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        except Exception:  # told while the log is open; multiprocessing would print it when it is not
            traceback.print_exc()
            sys.exit(1)


def last_line(log: Path) -> str:
    """The last line of a log: the progress, or the error of a process that failed."""
    if not log.is_file():
        return "loading"
    with log.open("rb") as stream:
        stream.seek(max(log.stat().st_size - _TAIL, 0))
        lines = re.split(r"[\r\n]", stream.read().decode(errors="replace"))
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing was printed")


def _summary(result: Mapping) -> str:
    training = result.get("training")
    if training is None:
        return "measured"
    minutes = f"{training['updates']:,} updates, {result['training_seconds'] / 60:.1f} min"
    if training.get("diverged"):
        return f"does not converge: {training['diverged']['reason']} ({minutes})"
    scores = [f"{kind.label} {result[name]['score']:.2f}" for name, kind in STATISTICS.items() if result.get(name)]
    return f"{', '.join(scores)} ({minutes})" if scores else minutes
