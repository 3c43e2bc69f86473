"""Running studies: what is missing is trained, what was interrupted goes on, what is finished is left alone."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from benchmarks.studies.parser import Catalogue, Row, table_of
from benchmarks.studies.pictures import read_idx
from benchmarks.studies.scores import STATISTICS
from benchmarks.studies.study import Analysis, Study
from benchmarks.studies.tasks import (
    Places,
    Task,
    evaluated_split,
    has_diverged,
    missing_analyses,
    read_json,
    state_of,
    unevaluated_splits,
    write_result,
)
from benchmarks.studies.texts import documents as documents_of
from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.training.data.corpus import load_split
from reluformer.training.run.run_folder import RECIPE_FILE, RECORD_FILE
from reluformer.training.scoring.evaluation import read_translations

# A job is one core's: more threads than cores make a small model slower, and two jobs would share them. The two of
# glibc keep the memory of the logits, which it would otherwise give back to the system after every update.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "TOKENIZERS_PARALLELISM": "false",
}
PROGRESS_SECONDS = 60.0


def tasks_by_study(
    studies: Mapping[str, Study],
    catalogue: Catalogue,
    places: Places,
    *,
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
) -> dict[str, list[Task]]:
    """The tasks of each study, each row once with a seed, all rows with the first seed before any with the second.

    only: names of rows, if not all are wanted; also of rows that others of a study start from. A study that has none of
    them is left out. seeds: instead of the studies' own.

    Raises:
        UserError: `only` names a row that none of the studies has at this size.
    """
    by_study: dict[str, list[Task]] = {}
    known: dict[str, Row] = {}
    for name, study in studies.items():
        table = {entry.name: entry for entry in table_of(study, catalogue) if entry.row is not None}
        rows = _with_rows_before({own: entry.row for own, entry in table.items()})
        known |= rows
        wanted = [own for own in only or table if own in rows]
        seeds_of = dict.fromkeys(rows, study.seeds.get(catalogue.size, [1]))  # also of what stands in no table
        seeds_of |= {own: entry.seeds for own, entry in table.items()}
        tasks = [Task(rows[own], seed, places) for own in wanted for seed in seeds or seeds_of[own]]
        if wanted or not only:
            once = {(task.row.key, task.seed): task for task in tasks}
            by_study[name] = sorted(once.values(), key=lambda task: task.seed)
    if unknown := [row for row in only if row not in known]:
        choose = "`--list` names the studies" if len(studies) > 1 else f"choose of {', '.join(known) or 'none'}"
        raise UserError(f"--only: no row {unknown[0]!r} at size {catalogue.size}; {choose}")
    return by_study


def _with_rows_before(rows: Mapping[str, Row]) -> dict[str, Row]:
    """The rows and, after them, all that went before these, by name."""
    all_rows = dict(rows)
    for row in rows.values():
        while (row := row.start) is not None:
            all_rows.setdefault(row.name, row)
    return all_rows


@dataclass
class Runner:
    """Runs what is not finished, `jobs` rows at a time.

    size: for the command that results tell. say: takes lines of progress. failures: what went wrong, a line for each
        row.
    running: by the head of a row's messages.
    """

    size: str
    jobs: int = 1
    say: Callable[[str], None] = print
    failures: list[str] = field(default_factory=list)
    running: dict[str, tuple[Task, subprocess.Popen[bytes]]] = field(default_factory=dict)
    stopped: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, tasks: Sequence[Task]) -> list[str]:
        """Runs the tasks in their order, but what one starts from before it; returns the failures."""
        tasks, begun = _with_starts(tasks), time.monotonic()
        rows: dict[Path, Future[None]] = {}
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                for number, task in enumerate(tasks, start=1):
                    before = task.start and rows.get(task.start.run_folder)
                    head = f"[{number}/{len(tasks)}] {task.name}"
                    rows[task.run_folder] = pool.submit(self._run, task, head, before)
                while wait(rows.values(), PROGRESS_SECONDS).not_done:
                    for head, (task, _) in dict(self.running).items():
                        minutes = (time.monotonic() - begun) / 60
                        self.say(f"{head}: {last_line(task.log_file)}, {minutes:.0f} min since the start")
            except BaseException:  # an interruption: rows go on from their last checkpoint
                self._stop(pool)
                raise
        for row in rows.values():
            row.result()  # raises what was no failure of a row
        return self.failures

    def _stop(self, pool: ThreadPoolExecutor) -> None:
        pool.shutdown(wait=False, cancel_futures=True)
        with self.lock:
            self.stopped = True
            for _, process in self.running.values():
                process.terminate()

    def _run(self, task: Task, head: str, before: Future[None] | None) -> None:
        """All that is left to do of a row, after what it starts from."""
        if before is not None:
            wait([before])
        seen: list[str] = []
        try:
            while (state := state_of(task)) not in seen and not self.stopped:
                commands = commands_of(task, state)
                if not seen:
                    self.say(f"{head}: {_beginning(task, state, commands)}")
                seen.append(state)
                for command in commands:
                    self._execute(command, task, head)
                if (commands or state == "trained") and not self.stopped:
                    self._collect(task, head)
        except (UserError, OSError) as error:
            self.failures.append(f"{task.name}: {one_line(error)}")
            self.say(f"{head}: failed: {self.failures[-1]}")

    def _execute(self, command: list[str], task: Task, head: str) -> None:
        with self.lock:
            if self.stopped:
                return
            process = start(command, task.log_file)
            self.running[head] = task, process
        process.wait()
        del self.running[head]
        if process.returncode and not self.stopped:
            raise UserError(f"exit status {process.returncode}: {last_line(task.log_file)} ({task.log_file})")

    def _collect(self, task: Task, head: str) -> None:
        again = f"python -m benchmarks.studies --size {self.size} --only {task.row.name} --seed {task.seed}"
        again += " --gpu" * task.places.on_gpu
        path = write_result(task, again)
        self.say(f"{head}: {_summary(read_json(path))}; {path}")


def commands_of(task: Task, state: str) -> list[list[str]]:
    """What is left to do in a state, in order: a module and its arguments each."""
    is_translation = "task" not in task.row.recipe
    train = ["reluformer", "train", "--config"] if is_translation else ["benchmarks.studies.training"]
    train.append(str(task.recipe_file))
    if state in ("missing", "begun"):
        task.recipe_file.parent.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(task.recipe(), sort_keys=False, allow_unicode=True, width=120)
        task.recipe_file.write_text(text, encoding="utf-8")
        return [train]
    if state == "trained":
        splits = unevaluated_splits(task.run_folder)
        if not is_translation:
            return [train] if splits else []
        return [["reluformer", "evaluate", "--run", str(task.run_folder), "--split", split] for split in splits]
    # A result of another machine has no model here to analyse.
    has_model = (task.run_folder / RECORD_FILE).is_file()
    return analysis_commands(task, missing_analyses(task)) if has_model else []


def analysis_commands(task: Task, wanted: Sequence[str]) -> list[list[str]]:
    """The commands that make the wanted analyses of a row: one for all that read the same text.

    The text, the test split or its beginning, is written first; for a language model, its documents one below the
    other.
    """

    def same(analysis: Analysis) -> tuple[bool, int]:
        return (analysis.documents, analysis.lines or 0)

    analyses = sorted((analysis for analysis in task.row.analyses if analysis.what in wanted), key=same)
    commands = []
    for (documents, lines), group in groupby(analyses, key=same):
        folder = task.analysis_folder / f"{'sentences' if documents else 'text'}-{lines or 'all'}"
        inputs = (_sentences if documents else _inputs)(task, lines or None, folder)
        names = [analysis.what for analysis in group]
        options = ["--model", str(task.run_folder), *inputs, "--output", str(task.analysis_folder)]
        commands.append(["reluformer", "analyze", "--what", *names, *options])
    return commands


def _inputs(task: Task, lines: int | None, folder: Path) -> list[str]:
    """Writes the text, where there is one; the options that name it, or the pictures."""
    kind = task.row.recipe.get("task")
    if kind == "language_modeling":
        documents = documents_of(task.recipe()["data"], evaluated_split(task.run_folder, "documents"))
        text = (line for _, document in documents for line in document.split("\n"))
        return ["--text", _written(folder / "text.txt", islice(text, lines))]
    if kind == "image_classification":
        folder.mkdir(parents=True, exist_ok=True)
        for number, picture in enumerate(read_idx(task.recipe()["data"]["test"]["images"], 3)):
            Image.fromarray(picture).save(folder / f"{number:06}.png")
        return ["--images", str(folder)]
    rows = read_translations(task.run_folder / "translations.test.tsv")[:lines]
    source = _written(folder / "source.txt", (row[0] for row in rows))
    target = _written(folder / "target.txt", (row[2] for row in rows))
    return ["--text", source, "--target-text", target]


def _sentences(task: Task, lines: int | None, folder: Path) -> list[str]:
    """Writes the sentences of the test split, and the document of each."""
    data = load_recipe(task.run_folder / RECIPE_FILE).data
    sentences, _ = load_split(data, "test")
    files = []
    for option, column in (("--text", "source"), ("--target-text", "target"), ("--documents", "document")):
        files += [option, _written(folder / f"{column}.txt", sentences[column][:lines])]
    return [*files, "--max_length", str(data.max_length)]


def _written(path: Path, lines: Iterable[str]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return str(path)


def _beginning(task: Task, state: str, commands: Sequence[list[str]]) -> str:
    """What is said of a row first."""
    if state == "finished" and not commands:
        return f"finished already ({task.result_file})"
    doing = {"finished": "analyses", "trained": "evaluation", "begun": "goes on", "missing": "starts"}[state]
    replaced = f", {task.result_file} will be replaced" if task.result_file.is_file() and state != "finished" else ""
    return f"{doing}{replaced}; log: {task.log_file}"


def _with_starts(tasks: Sequence[Task]) -> list[Task]:
    """The tasks, and before those that are not over the tasks that they start from; each once."""
    by_folder: dict[Path, Task] = {}
    for task in tasks:
        if task.start is not None and state_of(task) in ("missing", "begun"):
            for before in _with_starts([task.start]):
                by_folder[before.run_folder] = before  # instead of the same without `model_needed`
        by_folder.setdefault(task.run_folder, task)
    return list(by_folder.values())


def start(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Starts a module and its arguments in a process of its own; what it prints is appended to the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    settings = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
    with log.open("ab") as stream:
        stream.write(f"$ {settings} python -m {shlex.join(command)}\n".encode())
        stream.flush()
        environment = {**os.environ, **ENVIRONMENT}
        return subprocess.Popen([sys.executable, "-m", *command], stdout=stream, stderr=stream, env=environment)


def last_line(log: Path) -> str:
    """The last line of a log: the progress, or the error of a process that failed."""
    if not log.is_file():
        return "loading"
    with log.open("rb") as stream:
        stream.seek(max(log.stat().st_size - 8192, 0))
        lines = re.split(r"[\r\n]", stream.read().decode(errors="replace"))
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing was printed")


def _summary(result: Mapping[str, Any]) -> str:
    training = result["training"]
    minutes = f"{training['updates']:,} updates, {result['training_seconds'] / 60:.1f} min"
    if has_diverged(result):
        return f"does not converge: {training['diverged']['reason']} ({minutes})"
    scores = [f"{kind.label} {result[name]['score']:.2f}" for name, kind in STATISTICS.items() if result.get(name)]
    return f"{', '.join(scores)} ({minutes})" if scores else minutes
