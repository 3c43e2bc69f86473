"""What a run folder says about its model. What is not there is None or empty: a card states nothing it was not told."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.errors import StrictDataclassError

from reluformer import ReLUFormerConfig
from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.scores import TOLD_SCORES
from reluformer.hub_cards.public_names import is_hub_id, public_name, run_name
from reluformer.training.run.redaction import last_part, public_text, public_values, without_secrets

# Key in the Trainer's log, name in the card, format.
ATTENTION_FIGURES = (
    ("attention_sum", "mean row sum S", "{:.3f}"),
    ("attention_entropy", "mean row entropy H (nats)", "{:.3f}"),
    ("dead_row_fraction", "dead rows (no positive weight)", "{:.2%}"),
)
_ATTENTION_FIELDS = ("attention_activation", "attention_scaling", "attention_gamma")


@dataclass(frozen=True)
class RunFolder:
    """The files of a run, read when they are asked for."""

    path: Path
    config: ReLUFormerConfig = field(init=False)

    def __post_init__(self) -> None:
        config = self._json("config.json")
        if config is None:
            raise UserError(f"{self.path}: holds no config.json; give the folder of a finished run")
        if not isinstance(config, dict):
            raise UserError(
                f"{self.path}: its config.json holds a {type(config).__name__}, expected the fields of a model"
            )
        if config.get("model_type") != ReLUFormerConfig.model_type:
            raise UserError(f"{self.path}: holds a model of type {config.get('model_type')!r}, expected 'reluformer'")
        try:
            object.__setattr__(self, "config", ReLUFormerConfig.from_dict(config))
        except (ValueError, TypeError, StrictDataclassError) as error:
            raise UserError(f"{self.path}: its config.json cannot be used: {one_line(error)}") from error

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """recipe.yaml, {} without one."""
        path = self.path / "recipe.yaml"
        if not path.is_file():
            return {}
        try:
            recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise UserError(f"{path}: is not YAML: {one_line(error)}") from error
        if not isinstance(recipe, dict):
            raise UserError(f"{path}: expected the sections of a recipe, found {type(recipe).__name__}")
        return recipe

    @property
    def name(self) -> str:
        return self.recipe.get("name") or self.path.resolve().name

    def section(self, name: str) -> dict[str, Any]:
        """A section of the recipe, {} without it."""
        return self.recipe.get(name) or {}

    @cached_property
    def training_record(self) -> dict[str, Any]:
        return self._json("training_record.json") or {}

    @cached_property
    def corpora(self) -> list[dict[str, Any]]:
        """The corpus reports: name, read, kept, skipped by reason."""
        reports = self._json("corpus_report.json") or []
        return list(reports.values()) if isinstance(reports, dict) else reports

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """Every evaluation.<split>.json, by name of the split."""
        paths = sorted(self.path.glob("evaluation.*.json"))
        return [{"split": path.name.split(".", 1)[1].removesuffix(".json"), **self._json(path.name)} for path in paths]

    @property
    def is_evaluated(self) -> bool:
        """Whether there is a score of it."""
        return any(is_number(evaluation.get(score.name)) for evaluation in self.evaluations for score in TOLD_SCORES)

    @property
    def dataset(self) -> dict[str, Any]:
        """The recipe's section `data.dataset`, {} without it; `path` is as a card may show it."""
        dataset = self.section("data").get("dataset") or {}
        return public_values({**dataset, "path": public_name(dataset["path"])}) if dataset else {}

    @property
    def dataset_id(self) -> str | None:
        """The data set's id on the Hub; None where the text is from elsewhere."""
        path = (self.section("data").get("dataset") or {}).get("path")
        return path if path and is_hub_id(path) else None

    def evaluated_text(self, evaluation: Mapping[str, Any]) -> str | None:
        """What an evaluation translated: the name it records or, where that only repeats the split, the files' names."""
        name, split = evaluation.get("dataset"), evaluation["split"]
        if self.dataset:
            return name and self.public_label(name)
        files = self.section("data").get(split)
        if files and name in (None, split):
            return f"{last_part(files['source'])}, {last_part(files['target'])}"
        return name and public_text(name)

    def public_label(self, name: str) -> str:
        """What a report or an evaluation calls its text, which may begin with the path of the data set."""
        path = (self.section("data").get("dataset") or {}).get("path")
        for held in (path, path and without_secrets(path)):
            name = name.replace(held, self.dataset["path"]) if held else name
        return public_text(name)

    @property
    def base_model(self) -> str | None:
        """Id on the Hub of the model whose weights it started from; None for new weights and for local models."""
        name = self.recipe.get("initialize_from")
        # Transformers notes in the tokenizer, which is that of the other model, whether it came from a folder.
        is_local = (self._json("tokenizer_config.json") or {}).get("is_local")
        return name if name and not is_local and is_hub_id(name) else None

    @property
    def base_run(self) -> str | None:
        """Name of the run whose weights it started from; None where that is not known, or on the Hub."""
        name = self.recipe.get("initialize_from")
        return run_name(name) if name and self.base_model is None else None

    @property
    def languages(self) -> list[str]:
        """Source and target language; fewer if the recipe does not say."""
        data = self.section("data")
        return [data[side] for side in ("source_language", "target_language") if data.get(side)]

    @cached_property
    def moses(self) -> dict[str, str] | None:
        """The Moses step that the tokenizer records."""
        return (self._json("tokenizer_config.json") or {}).get("moses")

    @cached_property
    def lowercases(self) -> bool:
        """Whether the tokenizer lower-cases."""
        normalizer = (self._json("tokenizer.json") or {}).get("normalizer")
        return any(part.get("type") == "Lowercase" for part in _parts(normalizer))

    def attention_figures(self) -> list[tuple[str, str, str]]:
        """(name, value, where it was measured) of the last logged figures, on the validation split if they were."""
        history = (self._json("trainer_state.json") or {}).get("log_history", [])
        rows = []
        for key, name, text in ATTENTION_FIGURES:
            for logged, where in ((f"eval_{key}", "validation"), (key, "training, with dropout")):
                entries = [entry for entry in history if is_number(entry.get(logged))]
                if entries:
                    rows.append((name, text.format(entries[-1][logged]), f"{where}, update {entries[-1]['step']:,}"))
                    break
        return rows

    def analysed_rows(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The entropy table of `reluformer analyze`, means over layers and heads by module, and the text it is of.

        ([], {}) where it was not measured, or of a model with another attention than this one has now.
        """
        result = self._json("analysis/entropy.json") or {}
        measured = (result.get("model") or {}).get("config") or {}
        if any(measured.get(name) != getattr(self.config, name) for name in _ATTENTION_FIELDS):
            return [], {}
        rows = [row for row in result.get("table") or [] if row.get("layer") == "all" and row.get("head") == "all"]
        text = result.get("text") or {}
        names = [last_part(text[key]) for key in ("source_file", "target_file") if text.get(key)]
        return rows, {**text, "files": names, "date": result.get("date")}

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def _json(self, name: str) -> Any:
        """A JSON file, None without it."""
        path = self.path / name
        if not path.is_file():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise UserError(f"{path}: is damaged ({error}); remove or rewrite it") from error


def is_number(value: Any) -> bool:
    """A finite number: records write others as text."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _parts(normalizer: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The parts of a normalizer of the `tokenizers` library, sequences opened."""
    if normalizer is None:
        return []
    return [normalizer, *(part for inner in normalizer.get("normalizers", []) for part in _parts(inner))]
