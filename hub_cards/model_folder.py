"""What the folder of a model says about it: of a run, of a plain `Trainer`, or of `save_pretrained`.

What is not there is None or empty: a card tells nothing that was not recorded.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import metadata_load
from huggingface_hub.errors import HFValidationError, StrictDataclassError
from huggingface_hub.utils import validate_repo_id
from transformers import PreTrainedConfig
from transformers.trainer import TRAINER_STATE_NAME

from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.scores import TOLD_SCORES
from reluformer.hub_cards.model_kinds import ModelKind, kind_of
from reluformer.training.run.redaction import HIDDEN, last_part, public_values
from reluformer.training.run.run_folder import CARD_FILE, RECIPE_FILE, RECORD_FILE
from reluformer.training.run.token_means import BATCH_MEANS

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_LOSSES = ("loss", "cross_entropy", "regularization")  # metrics that are no scores
# What the Trainer adds to the metrics of every evaluation, and what the card shows elsewhere.
_NOT_METRICS = {"runtime", "samples_per_second", "steps_per_second", "model_preparation_time", *BATCH_MEANS}


@dataclass(frozen=True)
class ModelFolder:
    """The files of a folder that holds a model.

    path: the folder. kind, config: those of its config.json.
    recipe: recipe.yaml or, in its form, the settings that `ModelCardCallback` has recorded; {} without both.
    record: training_record.json; without a recipe, over what the state of the Trainer says.
    state, state_folder: trainer_state.json, and where it lies: a plain Trainer leaves it in its checkpoints alone, of which
        the last one counts.
    card: metadata of the card in the folder.
    license, languages, dataset_id: what a person says now, or else what recipe or card say.
    """

    path: Path
    kind: ModelKind
    config: PreTrainedConfig
    recipe: dict[str, Any]
    record: dict[str, Any]
    state: dict[str, Any]
    state_folder: Path | None
    card: dict[str, Any]
    license: str | None
    languages: list[str]
    dataset_id: str | None

    @property
    def is_run(self) -> bool:
        """Whether `reluformer train` has written it."""
        return self.has(RECIPE_FILE)

    @property
    def checkpoint(self) -> int | None:
        """The update at which a Trainer saved this checkpoint; None for a folder that is none."""
        match = _CHECKPOINT.fullmatch(self.path.resolve().name)
        return int(match[1]) if match else None

    @property
    def name(self) -> str:
        """The recipe's, or that of the folder."""
        folder = self.path.resolve()
        return self.recipe.get("name") or (folder if self.checkpoint is None else folder.parent).name

    def section(self, name: str) -> dict[str, Any]:
        """A section of the recipe, {} without it."""
        return self.recipe.get(name) or {}

    @property
    def dataset(self) -> dict[str, Any]:
        """The recipe's section `data.dataset`, {} without it; `path` is an id on the Hub, or a path's last part."""
        dataset = self.section("data").get("dataset") or {}
        return public_values({**dataset, "path": public_name(dataset["path"])}) if dataset else {}

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """Every evaluation.<split>.json, by name of the split."""
        paths = sorted(self.path.glob("evaluation.*.json"))
        return [{"split": path.name.split(".")[1], **read_json(path)} for path in paths]

    @cached_property
    def logged_evaluations(self) -> dict[str, dict[str, Any]]:
        """The last evaluations of a plain Trainer, see `logged_evaluations`; {} for a run, which has its own."""
        if self.is_run:
            return {}
        return self.record.get("evaluations") or logged_evaluations(self.state.get("log_history") or [])

    @property
    def logged_scores(self) -> list[tuple[str, str, float]]:
        """(prefix, name, value) of every metric of a plain Trainer but the losses."""
        return [
            (prefix, name, value)
            for prefix, evaluation in self.logged_evaluations.items()
            for name, value in evaluation["metrics"].items()
            if name not in _LOSSES
        ]

    @property
    def is_evaluated(self) -> bool:
        """Whether a score of it is known; a loss is none."""
        measured = (evaluation.get(score.name) for evaluation in self.evaluations for score in TOLD_SCORES)
        return any(map(is_number, measured)) or bool(self.logged_scores)

    @property
    def base_model(self) -> str | None:
        """Id on the Hub of the model whose weights it started from; None for new weights and for local models."""
        if not self.recipe:
            return next(iter(texts(self.card.get("base_model"))), None)
        if "base_model" in self.recipe:  # recorded while the model was there
            return self.recipe["base_model"]
        name = self.recipe.get("initialize_from")
        # Transformers notes in the tokenizer, which is that of the other model, whether it came from a folder.
        is_local = self.read("tokenizer_config.json").get("is_local")
        return name if name and not is_local and is_hub_id(name) else None

    @property
    def local_base(self) -> str | None:
        """Name of the folder whose weights it started from, without its path."""
        name = self.recipe.get("initialize_from")
        if not name or self.base_model:
            return None
        path = Path(name)
        return last_part(str(path.parent if _CHECKPOINT.fullmatch(path.name) else path))

    @cached_property
    def lowercases(self) -> bool:
        """Whether the tokenizer lower-cases."""
        parts = [self.read("tokenizer.json").get("normalizer") or {}]
        for part in parts:
            parts += part.get("normalizers", [])
        return any(part.get("type") == "Lowercase" for part in parts)

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read(self, name: str) -> Any:
        """A JSON file of the folder, {} without it."""
        return read_json(self.path / name)


def read_model_folder(
    folder: str | Path,
    *,
    license: str | None = None,
    language: str | Sequence[str] | None = None,
    dataset: str | None = None,
) -> ModelFolder:
    """Reads the files of a model's folder; see `reluformer.hub_cards.card.render_card` for the arguments.

    Raises:
        UserError: no model in it of a kind that cards are made for, or a damaged file.
    """
    path = Path(folder)
    kind, config = _read_config(path)
    # Of a checkpoint, the settings lie in the folder above.
    is_checkpoint = _CHECKPOINT.fullmatch(path.resolve().name) and not (path / RECIPE_FILE).is_file()
    home = path.resolve().parent if is_checkpoint else path
    recipe = _read_recipe(home) or read_json(home / RECORD_FILE).get("settings") or {}
    state_folder = _state_folder(path)
    state = read_json(state_folder / TRAINER_STATE_NAME) if state_folder else {}
    record = read_json(path / RECORD_FILE)
    if record and (recipe.get("training") or {}).get("use_cpu"):
        record["device"] = "cpu"  # accelerators stood idle
    card = _read_card(path / CARD_FILE)
    data = recipe.get("data") or {}
    named = (data.get("dataset") or {}).get("path")
    languages = [data[side] for side in ("source_language", "target_language") if data.get(side)]
    return ModelFolder(
        path=path,
        kind=kind,
        config=config,
        recipe=recipe,
        record=record if (path / RECIPE_FILE).is_file() else {**training_facts(state), **record},
        state=state,
        state_folder=state_folder,
        card=card,
        license=license or next(iter(texts(card.get("license"))), None) or recipe.get("license"),
        languages=texts(language) or languages or texts(card.get("language")) or texts(recipe.get("language")),
        dataset_id=dataset or (_id_or_none(named) if named else _stated_dataset(card, recipe)),
    )


def _read_config(path: Path) -> tuple[ModelKind, PreTrainedConfig]:
    if not (path / "config.json").is_file():
        raise UserError(
            f"{path}: holds no config.json; give the folder of a finished run, a checkpoint, or a folder that "
            "save_pretrained or Trainer.save_model has written"
        )
    if any(path.glob("*.onnx")) and not any(path.glob("*.safetensors")):
        raise UserError(
            f"{path}: holds ONNX graphs of `reluformer export`, which have no card of their own; publish the model "
            f"that they are of, then add them to its repository: hf upload OWNER/NAME {path} onnx"
        )
    values = read_json(path / "config.json")
    kind = kind_of(values.get("model_type"), path)
    try:
        return kind, kind.config_class.from_dict(values)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise UserError(f"{path}: its config.json cannot be used: {one_line(error)}") from error


def _read_recipe(folder: Path) -> dict[str, Any]:
    path = folder / RECIPE_FILE
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _read_card(path: Path) -> dict[str, Any]:
    try:
        return (metadata_load(path) or {}) if path.is_file() else {}
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: its metadata cannot be read ({one_line(error)}); mend or remove it") from error


def _state_folder(path: Path) -> Path | None:
    checkpoints = sorted(path.glob("checkpoint-*"), key=lambda folder: int(folder.name.partition("-")[2]))
    folders = [path] if (path / RECIPE_FILE).is_file() else [path, *reversed(checkpoints)]
    return next((folder for folder in folders if (folder / TRAINER_STATE_NAME).is_file()), None)


def _stated_dataset(card: Mapping[str, Any], recipe: Mapping[str, Any]) -> str | None:
    return next(iter(texts(card.get("datasets"))), None) or recipe.get("dataset")


def _id_or_none(name: str) -> str | None:
    return name if is_hub_id(name) else None


def read_json(path: Path) -> Any:
    """A JSON file, {} without it.

    Raises:
        UserError: it is damaged.
    """
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # no UTF-8, or no JSON
        raise UserError(f"{path}: is damaged ({one_line(error)}); remove or rewrite it") from error


def texts(value: Any) -> list[str]:
    """The texts of a field of metadata, which holds one or a list."""
    return [text for text in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(text, str)]


def is_number(value: Any) -> bool:
    """Whether a value is a finite number: records write others as text."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_hub_id(name: str) -> bool:
    """Whether a path or id can only be meant as an id on the Hub: it is one in form, and no folder here is called so."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return not name.startswith((".", "/", "~", "runs/")) and not Path(name).exists()


def public_name(name: str) -> str:
    """An id on the Hub as it is; of a path or URL, its last part."""
    return name if is_hub_id(name) else last_part(name)


def base_of(name: str) -> dict[str, Any]:
    """Which weights a training starts from, for its record: an id on the Hub, or a folder without its path."""
    if name and is_hub_id(name):
        return {"base_model": name, "initialize_from": name}
    return {"base_model": None, "initialize_from": f"{HIDDEN}/{last_part(name)}" if name else None}


def evaluation_of(logged: Mapping[str, Any]) -> tuple[str, dict[str, float]] | None:
    """Prefix (`eval`, `test`, `eval_<data set>`) and metrics without it; None for what is no evaluation.

    Args:
        logged: metrics as `Trainer.evaluate` and `Trainer.predict` make and log them.
    """
    prefixes = [name.removesuffix("_runtime") for name in logged if name.endswith("_runtime")]
    prefix = min(prefixes, key=len, default="train")
    if prefix == "train":
        return None
    metrics = {name.removeprefix(f"{prefix}_"): held for name, held in logged.items() if name.startswith(f"{prefix}_")}
    return prefix, {name: held for name, held in metrics.items() if name not in _NOT_METRICS and is_number(held)}


def logged_evaluations(history: Sequence[Mapping[str, Any]], update: int | None = None) -> dict[str, dict[str, Any]]:
    """The last evaluation of each prefix: `update` at which it was logged, and its `metrics` by name.

    Args:
        history: the log of a Trainer.
        update: evaluations at another one are left out; None: all count.
    """
    found: dict[str, dict[str, Any]] = {}
    for entry in history:
        evaluation = evaluation_of(entry)
        if evaluation is not None and evaluation[1] and update in (None, entry.get("step")):
            found[evaluation[0]] = {"update": entry.get("step"), "metrics": evaluation[1]}
    return found


def training_facts(state: Mapping[str, Any]) -> dict[str, Any]:
    """What the state of a Trainer says of the training, under the names of training_record.json, without what is not there."""
    history = state.get("log_history") or []
    whole = next((entry for entry in reversed(history) if "train_runtime" in entry), {})  # logged at the end
    rates = [entry["learning_rate"] for entry in history if is_number(entry.get("learning_rate"))]
    losses = [entry["loss"] for entry in history if is_number(entry.get("loss"))]
    best = {"metric": state.get("best_metric"), "update": state.get("best_global_step")}
    facts = {
        "updates": state.get("global_step"),
        "epochs": state.get("epoch"),
        "seconds": whole.get("train_runtime"),
        "examples_per_second": whole.get("train_samples_per_second"),
        "highest_learning_rate": max(rates, default=None),
        "last_loss": losses[-1] if losses else None,
        "best": best if all(map(is_number, best.values())) else None,
    }
    return {name: value for name, value in facts.items() if value is not None}
