"""Where the rows of studies are run, what is finished, begun or missing, and the result file of a finished run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from benchmarks.studies.parser import Row, merged, recipe_of
from benchmarks.studies.scores import accuracy_statistics, bleu_statistics, perplexity_statistics
from reluformer.configuration.recipe import SPLITS
from reluformer.records.records import write_json
from reluformer.records.redaction import public_values, without_secrets
from reluformer.training.run.checkpoints import checkpoint_folders
from reluformer.training.run.precision import has_bfloat16
from reluformer.training.run.run_folder import RECIPE_FILE, RECORD_FILE

RUNS = Path("runs/studies")
RESULTS = Path("benchmarks/results/studies")
_PER_UPDATE = "_per_update"

State = Literal["finished", "trained", "begun", "missing"]


@dataclass(frozen=True)
class Places:
    """The two folders of a size: of runs, which are large and stay on the machine, and of results, which are small
    files.

    on_gpu: its rows are trained there, whatever they say; the key of a row does not tell, its result's record does.
    """

    runs: Path
    results: Path
    on_gpu: bool = False

    @classmethod
    def of(cls, size: str, runs: Path = RUNS, results: Path = RESULTS, on_gpu: bool = False) -> Places:
        return cls(runs / size, results / size, on_gpu)


@dataclass(frozen=True)
class Task:
    """One row with one seed.

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

    @property
    def analysis_folder(self) -> Path:
        return self.run_folder / "analysis"

    @property
    def pictures_folder(self) -> Path:
        return self.places.results / f"{self.name}-pictures"

    def recipe(self) -> dict[str, Any]:
        """As in a recipe file.

        A row that asks a CPU for bfloat16 is trained in float32 where the processor would compute that in software. It
        goes on in the type that it began with.
        """
        recipe = recipe_of(self.row, self.seed, self.run_folder, self.start and self.start.run_folder)
        if self.places.on_gpu:
            return merged(recipe, {"training": {"use_cpu": False}})
        training = recipe["training"]
        if training.get("use_cpu") and training.get("bf16"):
            began = (self.run_folder / RECIPE_FILE).is_file()
            training["bf16"] = bool(_recipe(self.run_folder)["training"].get("bf16")) if began else has_bfloat16()
        return recipe


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def state_of(task: Task) -> State:
    """`finished`: there is a result · `trained`: its run is over · `begun`: there is a checkpoint · `missing`."""
    is_trained = (task.run_folder / RECORD_FILE).is_file()
    if read_result(task) is not None and (is_trained or not task.model_needed):
        return "finished"
    if is_trained:
        return "trained"
    return "begun" if checkpoint_folders(task.run_folder) else "missing"


def read_result(task: Task) -> dict[str, Any] | None:
    """The result of exactly this row and seed; None without one, or with one of another recipe."""
    result = read_json(task.result_file) if task.result_file.is_file() else {}
    return result if (result.get("key"), result.get("seed")) == (task.row.key, task.seed) else None


def has_diverged(result: Mapping[str, Any]) -> bool:
    """Whether the training of a result did not converge."""
    return bool(result["training"].get("diverged"))


def spent(result: Mapping[str, Any]) -> tuple[int, float]:
    """Updates and seconds of training behind a result, with those of what it started from."""
    start = result.get("start") or {"updates": 0, "training_seconds": 0.0}
    return result["training"]["updates"] + start["updates"], result["training_seconds"] + start["training_seconds"]


def missing_analyses(task: Task) -> list[str]:
    """Analyses of the row that its result does not hold; all of them without a result. A diverged run has no model."""
    result = read_result(task) or {"training": {}}
    wanted = () if has_diverged(result) else task.row.analyses
    return [analysis.what for analysis in wanted if analysis.what not in result.get("analyses", {})]


def unevaluated_splits(folder: Path) -> list[str]:
    """What a run whose training is over has left to evaluate: nothing if it diverged, for want of a model."""
    if read_json(folder / RECORD_FILE).get("diverged"):
        return []
    wanted = _recipe(folder)["evaluation"]["splits"]
    return [split for split in wanted if not (folder / f"evaluation.{split}.json").is_file()]


def evaluated_split(folder: Path, name: str) -> str | None:
    """The last split of which a run folder holds `<name>.<split>.tsv`: `test` before `validation`; None if there is
    none."""
    return next((split for split in reversed(SPLITS[1:]) if (folder / f"{name}.{split}.tsv").is_file()), None)


def write_result(task: Task, command: str) -> Path:
    """Collects a finished run into the result file, with the command that repeats it."""
    folder, recipe = task.run_folder, _recipe(task.run_folder)
    log = read_json(folder / "trainer_state.json")["log_history"]
    result = {
        **{"row": task.row.name, "key": task.row.key, "seed": task.seed, "command": command},
        "recipe": public_values(recipe, without_secrets),
        "training": read_json(folder / RECORD_FILE),
        "evaluations": {path.name.split(".")[1]: read_json(path) for path in sorted(folder.glob("evaluation.*.json"))},
        "log_history": log,
        "training_seconds": training_seconds(log),
        "cpu_seconds": sum(entry.get("cpu_seconds", 0.0) for entry in log),  # on all threads of the process
        "start": task.start and _start(task.start),
        "analyses": _analyses(task),
        **_scores(folder, recipe),
    }
    return write_json(task.result_file, result)


def _recipe(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / RECIPE_FILE).read_text(encoding="utf-8"))


def training_seconds(log_history: Iterable[Mapping[str, Any]]) -> float:
    """Seconds of all logged updates and of the validations between them; of every part of a run that was
    interrupted."""
    seconds, update = 0.0, 0
    for entry in log_history:
        seconds += entry.get("eval_runtime", 0.0)
        unit = next((name.removesuffix(_PER_UPDATE) for name in entry if name.endswith(_PER_UPDATE)), None)
        if unit is not None:  # target tokens, or images
            seconds += (entry["step"] - update) * entry[f"{unit}_per_update"] / entry[f"{unit}_per_second"]
            update = entry["step"]
    return seconds


def _start(start: Task) -> dict[str, Any]:
    """What a result says of the training that its own started from; updates and seconds are of all that went before."""
    result = read_result(start)
    updates, seconds = spent(result)
    return {name: result[name] for name in ("row", "key", "seed")} | {"updates": updates, "training_seconds": seconds}


def _analyses(task: Task) -> dict[str, Any]:
    """What `reluformer analyze` wrote, by what it measured, without definitions and single heads; wanted pictures are
    copied beside the result."""
    analyses = {}
    for analysis in task.row.analyses:
        for picture in (
            each for name in analysis.pictures for each in task.analysis_folder.glob(f"{analysis.what}/{name}")
        ):
            task.pictures_folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture, task.pictures_folder / picture.name)
        path = task.analysis_folder / f"{analysis.what}.json"
        if path.is_file():
            content = analyses[analysis.what] = read_json(path)
            content.pop("definitions", None)
            if isinstance(content.get("table"), list):
                content["table"] = [row for row in content["table"] if row.get("head", "all") in ("all", None)]
    return dict(sorted(analyses.items()))


def _scores(folder: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics that other runs are compared with: `bleu`, `accuracy` or `perplexity`, None where nothing was
    evaluated."""
    task = recipe.get("task")
    if task == "image_classification":
        split = evaluated_split(folder, "predictions")
        return {"accuracy": split and accuracy_statistics(folder / f"predictions.{split}.tsv", split)}
    if task == "language_modeling":
        split, context = evaluated_split(folder, "documents"), recipe["data"]["max_length"]
        return {"perplexity": split and perplexity_statistics(folder / f"documents.{split}.tsv", split, context)}
    translations = folder / "translations.test.tsv"
    return {"bleu": bleu_statistics(translations, recipe) if translations.is_file() else None}
