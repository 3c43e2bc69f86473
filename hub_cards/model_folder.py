"""What the folder of a model says about it: of a run, of a `Trainer` with `ModelCardCallback`, or of
`save_pretrained`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from huggingface_hub import metadata_load
from transformers.trainer import TRAINER_STATE_NAME

from reluformer import ReLUFormerConfig, ReLUFormerDecoderConfig, ReLUFormerVisionConfig
from reluformer.configuration.errors import UserError
from reluformer.configuration.scores import TOLD_SCORES
from reluformer.records.records import read_json
from reluformer.records.redaction import public_values
from reluformer.training.run.run_folder import CARD_FILE, RECIPE_FILE, RECORD_FILE
from reluformer.translating.loading import load_model_config


class ModelKind(NamedTuple):
    """A type of model. What the card says of each is in `card_template.md`.

    task: the Hub's name of what it does. auto_class, preprocessor: Transformers' classes that load the model and what
        makes its inputs.
    """

    task: str
    auto_class: str
    preprocessor: str = "AutoTokenizer"


MODEL_KINDS = {
    ReLUFormerConfig.model_type: ModelKind("translation", "AutoModelForSeq2SeqLM"),
    ReLUFormerDecoderConfig.model_type: ModelKind("text-generation", "AutoModelForCausalLM"),
    ReLUFormerVisionConfig.model_type: ModelKind(
        "image-classification", "AutoModelForImageClassification", "AutoImageProcessor"
    ),
}


def kind_of(model_type: Any, where: Any) -> ModelKind:
    """The kind of a model; raises a `UserError` for a type without cards. where: what holds the model, for the
    message."""
    if model_type not in MODEL_KINDS:
        raise UserError(
            f"{where}: holds a model of type {model_type!r}, expected {' or '.join(map(repr, MODEL_KINDS))}; for any "
            "other model, use `create_model_card` and `push_to_hub` of its Trainer; ONNX graphs belong beside their "
            "published model"
        )
    return MODEL_KINDS[model_type]


class ModelFolder:
    """The files of a folder that holds a model, without secrets and paths. What was not recorded is None or empty.

    kind, config: those of its config.json.
    is_run: whether `reluformer train` has written it.
    recipe: recipe.yaml or, in its form, the settings that `ModelCardCallback` has recorded; {} without both.
    record: training_record.json.
    base_model: id on the Hub of the model whose weights it started from; None for new weights and for local models.
    license, languages, dataset_id: what a person says now (see `render_card`), or else what recipe or card say.

    Raises a `UserError` for a folder without a model of a kind that cards are made for.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        license: str | None = None,
        language: str | Sequence[str] | None = None,
        dataset: str | None = None,
    ) -> None:
        self.path = Path(folder)
        if not self.has("config.json"):
            raise UserError(
                f"{folder}: holds no config.json; give the folder of a finished run, or one that save_pretrained or "
                "Trainer.save_model has written"
            )
        self.config = load_model_config(self.path)
        self.kind = kind_of(self.config.model_type, folder)
        self.is_run = self.has(RECIPE_FILE)
        self.record: dict[str, Any] = self.read(RECORD_FILE)
        recipe = yaml.safe_load(self._text(RECIPE_FILE)) if self.is_run else self.record.get("settings", {})
        self.recipe: dict[str, Any] = public_values(recipe)
        if self.section("training").get("use_cpu"):
            self.record["device"] = "cpu"  # accelerators stood idle
        card = (metadata_load(self.path / CARD_FILE) or {}) if self.has(CARD_FILE) else {}
        data = self.section("data")
        origin = data.get("dataset") or {}
        corpus = None if origin.get("files") else origin.get("path")
        said = [data[side] for side in ("source_language", "target_language") if data.get(side)]
        self.base_model = self._base_model() if recipe else _first(card.get("base_model"))
        self.license = license or card.get("license") or self.recipe.get("license")
        self.languages = _list(language) or said or _list(card.get("language")) or _list(self.recipe.get("language"))
        known = corpus if corpus and is_hub_id(corpus) else _first(card.get("datasets")) or self.recipe.get("dataset")
        self.dataset_id: str | None = dataset or known

    def _base_model(self) -> str | None:
        if "base_model" in self.recipe:  # recorded while the model was there
            return self.recipe["base_model"]
        name = self.recipe.get("initialize_from")
        # Transformers notes in the tokenizer, which is that of the other model, whether it came from a folder.
        is_local = self.read("tokenizer_config.json").get("is_local")
        return name if name and not is_local and is_hub_id(name) else None

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
        tokenizer = self._json("tokenizer.json") if self.has("tokenizer.json") else {}
        normalizer = tokenizer.get("normalizer") or {}
        return any(part.get("type") == "Lowercase" for part in [normalizer, *normalizer.get("normalizers", [])])

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read(self, name: str) -> Any:
        """A JSON file of the folder without secrets and paths, {} without it; a `UserError` where it is damaged."""
        return public_values(self._json(name)) if self.has(name) else {}

    def _json(self, name: str) -> Any:
        return read_json(self.path / name, instead="restore it, or delete it")

    def _text(self, name: str) -> str:
        return (self.path / name).read_text(encoding="utf-8")


def _list(value: str | Sequence[str] | None) -> list[str]:
    """The texts of a field of metadata, which holds one or a list."""
    return [value] if isinstance(value, str) else list(value or ())


def _first(value: str | Sequence[str] | None) -> str | None:
    return next(iter(_list(value)), None)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number: records write others as text."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def is_hub_id(name: str) -> bool:
    """Whether a path or id can only be meant as an id on the Hub: it is one in form, and no folder here is called
    so."""
    is_id = re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", name) and not name.startswith("runs/")
    return bool(is_id) and not Path(name).exists()
