"""What the folder of a model says about it: of a run, of a `Trainer` with `ModelCardCallback`, or of `save_pretrained`.

What is not there is None or empty: a card tells nothing that was not recorded. Texts hold neither secrets nor paths.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from huggingface_hub import metadata_load
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers import PreTrainedConfig
from transformers.trainer import TRAINER_STATE_NAME

from reluformer import ReLUFormerConfig, ReLUFormerDecoderConfig, ReLUFormerVisionConfig
from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.scores import TOLD_SCORES
from reluformer.training.run.redaction import HIDDEN, last_part, public_values
from reluformer.training.run.run_folder import CARD_FILE, RECIPE_FILE, RECORD_FILE


class ModelKind(NamedTuple):
    """A type of model. What the card says of each is in `card_template.md`.

    config_class: of its config.json. task: the Hub's name of what it does. auto_class, preprocessor: Transformers' classes that
        load the model and what makes its inputs.
    """

    config_class: type[PreTrainedConfig]
    task: str
    auto_class: str
    preprocessor: str = "AutoTokenizer"


_KINDS = (
    ModelKind(ReLUFormerConfig, "translation", "AutoModelForSeq2SeqLM"),
    ModelKind(ReLUFormerDecoderConfig, "text-generation", "AutoModelForCausalLM"),
    ModelKind(ReLUFormerVisionConfig, "image-classification", "AutoModelForImageClassification", "AutoImageProcessor"),
)
MODEL_KINDS = {kind.config_class.model_type: kind for kind in _KINDS}


def kind_of(model_type: Any, where: Any) -> ModelKind:
    """The kind of a model. model_type: as config.json names it. where: what holds the model, for the message.

    Raises:
        UserError: a type of which no card can be made here.
    """
    if model_type not in MODEL_KINDS:
        raise UserError(
            f"{where}: holds a model of type {model_type!r}, expected {' or '.join(map(repr, MODEL_KINDS))}; for any other "
            "model, use `create_model_card` and `push_to_hub` of its Trainer"
        )
    return MODEL_KINDS[model_type]


@dataclass(frozen=True)
class ModelFolder:
    """The files of a folder that holds a model.

    kind, config: those of its config.json.
    recipe: recipe.yaml or, in its form, the settings that `ModelCardCallback` has recorded; {} without both.
    record: training_record.json.
    base_model: id on the Hub of the model whose weights it started from; None for new weights and for local models.
    license, languages, dataset_id: what a person says now, or else what recipe or card say.
    """

    path: Path
    kind: ModelKind
    config: PreTrainedConfig
    recipe: dict[str, Any]
    record: dict[str, Any]
    base_model: str | None
    license: str | None
    languages: list[str]
    dataset_id: str | None

    @property
    def is_run(self) -> bool:
        """Whether `reluformer train` has written it."""
        return self.has(RECIPE_FILE)

    @property
    def name(self) -> str:
        """The recipe's, or that of the folder."""
        return self.recipe.get("name") or self.path.resolve().name

    def section(self, name: str) -> dict[str, Any]:
        """A section of the recipe, {} without it."""
        return self.recipe.get(name) or {}

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """Every evaluation.<split>.json, by name of the split."""
        paths = sorted(self.path.glob("evaluation.*.json"))
        return [{"split": path.name.split(".")[1], **self.read(path.name)} for path in paths]

    @property
    def logged_scores(self) -> list[tuple[str, str, float]]:
        """(prefix, name, value) of every metric, but the losses, that `ModelCardCallback` has recorded."""
        return [
            (prefix, name, value)
            for prefix, metrics in self.record.get("evaluations", {}).items()
            for name, value in metrics.items()
            if name not in ("loss", "cross_entropy", "regularization")
        ]

    @property
    def is_evaluated(self) -> bool:
        """Whether a score of it is known; a loss is none."""
        measured = (evaluation.get(score.name) for evaluation in self.evaluations for score in TOLD_SCORES)
        return any(map(is_number, measured)) or bool(self.logged_scores)

    @cached_property
    def log_history(self) -> list[dict[str, Any]]:
        """The log of the training; empty where the folder has none."""
        return self.read(TRAINER_STATE_NAME).get("log_history", [])

    @cached_property
    def lowercases(self) -> bool:
        """Whether the tokenizer lower-cases."""
        normalizer = _read_json(self.path / "tokenizer.json").get("normalizer") or {}
        return any(part.get("type") == "Lowercase" for part in [normalizer, *normalizer.get("normalizers", [])])

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read(self, name: str) -> Any:
        """A JSON file of the folder without secrets and paths, {} without it."""
        return public_values(_read_json(self.path / name))


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
    record = _read_json(path / RECORD_FILE)
    recipe = _read_recipe(path) or record.get("settings") or {}
    card = _read_card(path / CARD_FILE)
    data = recipe.get("data") or {}
    named = (data.get("dataset") or {}).get("path")
    if named and not is_hub_id(named):
        data["dataset"]["path"] = last_part(named)
    languages = [data[side] for side in ("source_language", "target_language") if data.get(side)]
    if (recipe.get("training") or {}).get("use_cpu"):
        record["device"] = "cpu"  # accelerators stood idle
    return ModelFolder(
        path=path,
        kind=kind,
        config=config,
        recipe=public_values(recipe),
        record=public_values(record),
        base_model=_base_model(path, recipe) if recipe else _first_text(card.get("base_model")),
        license=license or _first_text(card.get("license")) or recipe.get("license"),
        languages=_texts(language) or languages or _texts(card.get("language")) or _texts(recipe.get("language")),
        dataset_id=dataset
        or (named if named and is_hub_id(named) else _first_text(card.get("datasets")) or recipe.get("dataset")),
    )


def _read_config(path: Path) -> tuple[ModelKind, PreTrainedConfig]:
    if not (path / "config.json").is_file():
        raise UserError(
            f"{path}: holds no config.json; give the folder of a finished run, or one that save_pretrained or "
            "Trainer.save_model has written"
        )
    if any(path.glob("*.onnx")) and not any(path.glob("*.safetensors")):
        raise UserError(
            f"{path}: holds ONNX graphs of `reluformer export`, which have no card of their own; publish the model "
            f"that they are of, then add them to its repository: hf upload OWNER/NAME {path} onnx"
        )
    values = _read_json(path / "config.json")
    kind = kind_of(values.get("model_type"), path)
    return kind, kind.config_class.from_dict(values)


def _read_recipe(folder: Path) -> dict[str, Any]:
    path = folder / RECIPE_FILE
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _base_model(path: Path, recipe: dict[str, Any]) -> str | None:
    if "base_model" in recipe:  # recorded while the model was there
        return recipe["base_model"]
    name = recipe.get("initialize_from")
    # Transformers notes in the tokenizer, which is that of the other model, whether it came from a folder.
    is_local = _read_json(path / "tokenizer_config.json").get("is_local")
    return name if name and not is_local and is_hub_id(name) else None


def _read_card(path: Path) -> dict[str, Any]:
    try:
        return (metadata_load(path) or {}) if path.is_file() else {}
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: its metadata cannot be read ({one_line(error)}); mend or remove it") from error


def _read_json(path: Path) -> Any:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # no UTF-8, or no JSON
        raise UserError(f"{path}: is damaged ({one_line(error)}); remove or rewrite it") from error


def _texts(value: Any) -> list[str]:
    """The texts of a field of metadata, which holds one or a list."""
    return [text for text in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(text, str)]


def _first_text(value: Any) -> str | None:
    return next(iter(_texts(value)), None)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number: records write others as text."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_hub_id(name: str) -> bool:
    """Whether a path or id can only be meant as an id on the Hub: it is one in form, and no folder here is called so."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return not name.startswith((".", "/", "~", "runs/", HIDDEN)) and not Path(name).exists()
