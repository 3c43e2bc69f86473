"""Where the rows of studies are run and where their results are kept; what is finished, begun, or missing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.studies.collection import collect, cpu_seconds, read_json, training_seconds
from benchmarks.studies.parser import Row, recipe_of
from benchmarks.studies.scores import accuracy_statistics, bleu_statistics, perplexity_statistics
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import SPLITS
from reluformer.training.run.checkpoints import checkpoint_folders
from reluformer.training.run.records import write_json
from reluformer.training.run.run_folder import RECORD_FILE

RUNS = Path("runs/studies")
RESULTS = Path("benchmarks/results/studies")

State = Literal["finished", "trained", "begun", "missing"]


@dataclass(frozen=True)
class Places:
    """The two folders of a size: of runs, which are large and stay on the machine, and of results, which are small files."""

    runs: Path
    results: Path

    @classmethod
    def of(cls, size: str, runs: Path = RUNS, results: Path = RESULTS) -> Places:
        return cls(runs / size, results / size)


@dataclass(frozen=True)
class Task:
    """One row with one seed.

    Args:
        row: what is trained.
        seed: of the training.
        places: of its run and its result.
        model_needed: by another task that starts from it: a result alone, of another machine, does not do then.
    """

    row: Row
    seed: int
    places: Places
    model_needed: bool = False

    @property
    def start(self) -> Task | None:
        """The training whose model this one starts from."""
        return self.row.start and Task(self.row.start, self.seed, self.places, model_needed=True)

    @property
    def name(self) -> str:
        return f"{self.row.name}-seed{self.seed}"

    @property
    def run_folder(self) -> Path:
        """Holds the key, so that a row whose recipe was changed never goes on from checkpoints of the old one."""
        return self.places.runs / f"{self.row.name}-{self.row.key}-seed{self.seed}"

    @property
    def recipe_file(self) -> Path:
        return self.run_folder.with_name(f"{self.run_folder.name}.yaml")

    @property
    def log_file(self) -> Path:
        return self.run_folder.with_name(f"{self.run_folder.name}.log")

    @property
    def result_file(self) -> Path:
        return self.places.results / f"{self.name}.json"

    def recipe(self) -> dict[str, Any]:
        """As in a recipe file."""
        return recipe_of(self.row, self.seed, self.run_folder, self.start and self.start.run_folder)


def state_of(task: Task) -> State:
    """`finished`: there is a result · `trained`: its run is over · `begun`: there is a checkpoint · `missing`."""
    is_trained = (task.run_folder / RECORD_FILE).is_file()
    if read_result(task) is not None and (is_trained or not task.model_needed):
        return "finished"
    if is_trained:
        return "trained"
    checkpoints = checkpoint_folders(task.run_folder) if task.run_folder.is_dir() else []
    return "begun" if checkpoints else "missing"


def read_result(task: Task) -> dict[str, Any] | None:
    """The result of exactly this row and seed; None without one, or with one of another recipe."""
    result = read_json(task.result_file) if task.result_file.is_file() else {}
    return result if (result.get("key"), result.get("seed")) == (task.row.key, task.seed) else None


def is_stale(task: Task) -> bool:
    """Whether there is a result of this name that was measured with another recipe."""
    return task.result_file.is_file() and read_result(task) is None


def analysis_folder(task: Task) -> Path:
    return task.run_folder / "analysis"


def missing_analyses(task: Task) -> list[str]:
    """Analyses of the row that its result does not hold; all of them without a result. A diverged run has no model."""
    result = read_result(task) or {"training": {}}
    wanted = () if result["training"].get("diverged") else task.row.analyses
    return [analysis.what for analysis in wanted if analysis.what not in result.get("analyses", {})]


def write_result(task: Task, command: str) -> Path:
    """Collects a finished run into the result file.

    Args:
        task: of the result.
        command: that repeats it.

    Raises:
        UserError: the run is not finished, or there is no result of what it started from.
    """
    head = {"row": task.row.name, "key": task.row.key, "seed": task.seed, "command": command}
    run = collect(task.run_folder)
    result = {
        **head,
        **run,
        "training_seconds": training_seconds(run["log_history"]),
        "cpu_seconds": cpu_seconds(run["log_history"]),
        "start": task.start and _start(task.start),
        "analyses": _analyses(task),
        **_scores(task.run_folder, run["recipe"]),
    }
    return write_json(task.result_file, result)


def _scores(folder: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics that other runs are compared with: `bleu`, `accuracy` or `perplexity`, None where nothing was evaluated."""
    task = recipe.get("task")
    if task == "image_classification":
        split = evaluated_split(folder, "predictions")
        return {"accuracy": split and accuracy_statistics(folder / f"predictions.{split}.tsv", split)}
    if task == "language_modeling":
        split, context = evaluated_split(folder, "documents"), recipe["data"]["max_length"]
        return {"perplexity": split and perplexity_statistics(folder / f"documents.{split}.tsv", split, context)}
    translations = folder / "translations.test.tsv"
    return {"bleu": bleu_statistics(translations, recipe) if translations.is_file() else None}


def evaluated_split(folder: Path, name: str) -> str | None:
    """The last split of which a run folder holds `<name>.<split>.tsv`: `test` before `validation`; None if there is none."""
    return next((split for split in reversed(SPLITS[1:]) if (folder / f"{name}.{split}.tsv").is_file()), None)


def _start(start: Task) -> dict[str, Any]:
    """What a result says of the training that its own started from; updates and seconds are of all that went before."""
    result = read_result(start)
    if result is None:
        raise UserError(f"{start.result_file}: expected the result of what it starts from; run {start.name} again")
    updates, seconds = spent(result)
    return {name: result[name] for name in ("row", "key", "seed")} | {"updates": updates, "training_seconds": seconds}


def spent(result: Mapping[str, Any]) -> tuple[int, float]:
    """Updates and seconds of training behind a result, with those of what it started from."""
    start = result.get("start") or {"updates": 0, "training_seconds": 0.0}
    return result["training"]["updates"] + start["updates"], result["training_seconds"] + start["training_seconds"]


def _analyses(task: Task) -> dict[str, Any]:
    """What `reluformer analyze` wrote, by what it measured; wanted pictures are copied beside the result."""
    folder = analysis_folder(task)
    wanted = {analysis.what for analysis in task.row.analyses}
    for analysis in task.row.analyses:
        for picture in (path for pattern in analysis.pictures for path in folder.glob(f"{analysis.what}/{pattern}")):
            pictures_folder(task).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture, pictures_folder(task) / picture.name)
    return {name: figures for name, figures in _figures(folder).items() if name in wanted}


def pictures_folder(task: Task) -> Path:
    return task.places.results / f"{task.name}-pictures"


def _figures(folder: Path) -> dict[str, Any]:
    """The JSON files of a folder by name, without what a reader of results can do without: definitions, single heads."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        content = read_json(path)
        content.pop("definitions", None)
        if isinstance(content.get("table"), list):
            content["table"] = [row for row in content["table"] if row.get("head", "all") in ("all", None)]
        found[path.stem] = content
    return found
