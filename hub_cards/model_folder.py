"""What the folder of a model says about it: of a run, of a plain `Trainer`, or of `save_pretrained`.

What is not there is None or empty: a card states nothing it was not told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig
from transformers.trainer import TRAINER_STATE_NAME

from reluformer.configuration.errors import UserError, one_line
from reluformer.export.names import GRAPHS
from reluformer.hub_cards.model_files import ModelFiles
from reluformer.hub_cards.model_kinds import ModelKind, kind_of
from reluformer.hub_cards.public_names import has_form_of_id, is_hub_id, public_name, run_name
from reluformer.hub_cards.statements import Statements, card_metadata, texts
from reluformer.hub_cards.trainer_log import is_number, logged_evaluations, training_facts
from reluformer.hub_cards.weights import WEIGHTS_FILE, WEIGHTS_INDEX_FILE
from reluformer.training.run.checkpoints import checkpoint_folders
from reluformer.training.run.redaction import last_part, public_text, public_values, without_secrets
from reluformer.training.run.run_folder import CARD_FILE, RECIPE_FILE, RECORD_FILE

# Key in the Trainer's log, name in the card, format.
ATTENTION_FIGURES = (
    ("attention_sum", "mean row sum S", "{:.3f}"),
    ("attention_entropy", "mean row entropy H (nats)", "{:.3f}"),
    ("dead_row_fraction", "dead rows (no positive weight)", "{:.2%}"),
)
_ATTENTION_FIELDS = ("attention_activation", "attention_scaling", "attention_gamma")


_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_BREAKS_CODE = re.compile('["`]')
_LOSSES = ("loss", "cross_entropy", "regularization")  # metrics that are no scores


@dataclass(frozen=True)
class ModelFolder:
    """The files of a folder that holds a model, read when they are asked for.

    path: the folder. given: what a person says of the model now; what was said before is in the metadata of the folder's card.
    kind and config are those of its config.json.

    Raises:
        UserError: no folder, no model of a kind that cards are made for, or a damaged file.
    """

    path: Path
    given: Statements = field(default_factory=Statements)
    kind: ModelKind = field(init=False)
    config: PreTrainedConfig = field(init=False)

    def __post_init__(self) -> None:
        if not self.path.is_dir():
            raise UserError(f"{self.path}: no such folder; give the folder of a run or of a saved model")
        config = self._mapping("config.json")
        if not self.has("config.json"):
            raise UserError(f"{self.path}: holds no config.json; {self._where_a_model_is()}")
        self._require_no_graphs()
        kind = kind_of(config.get("model_type"), self.path)
        try:
            object.__setattr__(self, "config", kind.config_class.from_dict(config))
        except (ValueError, TypeError, StrictDataclassError) as error:
            raise UserError(f"{self.path}: its config.json cannot be used: {one_line(error)}") from error
        object.__setattr__(self, "kind", kind)
        self._require_no_contradiction()

    def _require_no_graphs(self) -> None:
        """A card says how Transformers loads the weights, and an exported model has none."""
        if any(map(self.has, GRAPHS)) and not any(map(self.has, (WEIGHTS_FILE, WEIGHTS_INDEX_FILE))):
            raise UserError(
                f"{self.path}: holds ONNX graphs of `reluformer export`, which have no card of their own; publish the model "
                f"that they are of, then add them to its repository: hf upload OWNER/NAME {self.path} onnx"
            )

    def _where_a_model_is(self) -> str:
        checkpoints = checkpoint_folders(self.path)
        if checkpoints:
            return f"give {checkpoints[-1]}, or save the model there with trainer.save_model()"
        return "give the folder of a finished run, or one that save_pretrained or Trainer.save_model has written"

    @property
    def is_run(self) -> bool:
        """Whether `reluformer train` has written it."""
        return self.has(RECIPE_FILE)

    @property
    def checkpoint(self) -> int | None:
        """The update at which a Trainer saved this checkpoint; None for a folder that is none."""
        match = _CHECKPOINT.fullmatch(self.path.resolve().name)
        return int(match[1]) if match else None

    @cached_property
    def _training_folder(self) -> ModelFiles:
        """The folder with the settings of the training: of a checkpoint that has none, the one that it lies in."""
        if self.checkpoint is None or self.has(RECIPE_FILE) or self.has(RECORD_FILE):
            return ModelFiles(self.path)
        return ModelFiles(self.path.resolve().parent)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """recipe.yaml or, in its form, what `ModelCardCallback` has recorded; {} without both."""
        return self._training_folder.recipe or self._training_folder.record.get("settings") or {}

    @property
    def name(self) -> str:
        """The recipe's, or that of the folder.

        Raises:
            UserError: it would break the card's heading or code.
        """
        folder = self.path.resolve()
        name = self.recipe.get("name") or last_part(str(folder if self.checkpoint is None else folder.parent))
        return self._in_one_line("name", name)

    def section(self, name: str) -> dict[str, Any]:
        """A section of the recipe, {} without it."""
        return self.recipe.get(name) or {}

    @cached_property
    def training_record(self) -> dict[str, Any]:
        """training_record.json; where no run has written it, over what the log of a Trainer says."""
        record = ModelFiles(self.path).record
        return record if self.is_run else {**training_facts(self.trainer_state), **record}

    @cached_property
    def state_file(self) -> Path | None:
        """trainer_state.json: a plain Trainer leaves it in its checkpoints alone, of which the last one counts."""
        folders = [self.path] if self.is_run else [self.path, *reversed(checkpoint_folders(self.path))]
        return next((path for folder in folders if (path := folder / TRAINER_STATE_NAME).is_file()), None)

    @cached_property
    def trainer_state(self) -> dict[str, Any]:
        """The state of the Trainer, {} without one; its `log_history` is a list of mappings."""
        if self.state_file is None:
            return {}
        state = ModelFiles(self.state_file.parent).mapping(TRAINER_STATE_NAME)
        history = state.get("log_history") or []
        if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
            raise UserError(
                f"{self.state_file}: is damaged (its log_history is no list of entries); remove or rewrite it"
            )
        return state

    @cached_property
    def corpora(self) -> list[dict[str, Any]]:
        """The corpus reports: name, read, kept, skipped by reason."""
        reports = ModelFiles(self.path).json("corpus_report.json") or []
        return list(reports.values()) if isinstance(reports, dict) else reports

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """Every evaluation.<split>.json, by name of the split."""
        paths = sorted(self.path.glob("evaluation.*.json"))
        return [
            {"split": path.name.split(".", 1)[1].removesuffix(".json"), **self._mapping(path.name)} for path in paths
        ]

    @cached_property
    def logged_evaluations(self) -> dict[str, dict[str, Any]]:
        """Evaluations of a plain Trainer by prefix, see `logged_evaluations`; {} for a run, which has its own."""
        if self.is_run:
            return {}
        recorded = self.training_record.get("evaluations")
        return recorded or logged_evaluations(self.trainer_state.get("log_history") or [])

    @property
    def is_evaluated(self) -> bool:
        """Whether there is a score of it; a loss is none."""
        measured = any(
            is_number(evaluation.get(score.name)) for evaluation in self.evaluations for score in self.kind.scores
        )
        return measured or bool(self.logged_scores)

    @property
    def logged_scores(self) -> list[tuple[str, str, float]]:
        """(prefix, name, value) of every metric of a plain Trainer but the losses."""
        return [
            (prefix, name, value)
            for prefix, evaluation in self.logged_evaluations.items()
            for name, value in evaluation["metrics"].items()
            if name not in _LOSSES
        ]

    # What a person says: now, in the recipe, or in the card that is there.

    @cached_property
    def card(self) -> dict[str, Any]:
        """The metadata of the card in the folder, {} without one."""
        return card_metadata(self.path / CARD_FILE)

    @property
    def license(self) -> str | None:
        """Of the weights. It depends on the data, so that nothing else can be known here."""
        held = self.card.get("license")
        known = self.given.license or (held if isinstance(held, str) else self.recipe.get("license"))
        return Statements(license=known).license

    @property
    def languages(self) -> list[str]:
        """Of a translation the source's and the target's; fewer or none where they are not known."""
        data = self.section("data")
        told = [data[side] for side in ("source_language", "target_language") if data.get(side)]
        if told and self._has_recipe:
            return told
        return list(
            self.given.language or texts(self.card.get("language")) or told or self.recipe.get("language") or []
        )

    @property
    def stated_dataset(self) -> str | None:
        """The id of a data set of the Hub that a person has named, outside a recipe."""
        if self.section("data").get("dataset"):
            return None
        return self.given.dataset or next(iter(texts(self.card.get("datasets"))), None) or self.recipe.get("dataset")

    @property
    def _has_recipe(self) -> bool:
        return bool(self._training_folder.recipe)

    def _require_no_contradiction(self) -> None:
        """The recipe says what was trained: another word now is a mistake, not an addition."""
        data = self.section("data") if self._has_recipe else {}
        dataset = (data.get("dataset") or {}).get("path")
        languages = tuple(data[side] for side in ("source_language", "target_language") if data.get(side))
        language = self.given.language
        if language and languages and language != languages:
            raise UserError(_contradiction("--language", " ".join(language), self.path, " ".join(languages)))
        if self.given.dataset and dataset and self.given.dataset != dataset:
            raise UserError(_contradiction("--dataset", self.given.dataset, self.path, public_name(dataset)))

    @property
    def dataset(self) -> dict[str, Any]:
        """The recipe's section `data.dataset`, {} without it; `path` is as a card may show it."""
        dataset = self.section("data").get("dataset") or {}
        return public_values({**dataset, "path": public_name(dataset["path"])}) if dataset else {}

    @property
    def dataset_id(self) -> str | None:
        """The data set's id on the Hub; None where the text is from elsewhere."""
        path = (self.section("data").get("dataset") or {}).get("path")
        return self.stated_dataset or (path if path and is_hub_id(path) else None)

    def evaluated_text(self, evaluation: Mapping[str, Any]) -> str | None:
        """What an evaluation translated: the name it records or, where that only repeats the split, the files' names."""
        name, split = evaluation.get("dataset"), evaluation["split"]
        if self.dataset:
            return name and self.public_label(name)
        files = self.section("data").get(split)
        if files and name in (None, split):
            sides = ("source", "target", "images")
            return ", ".join(last_part(files[side]) for side in sides if files.get(side))
        return name and public_text(name)

    def public_label(self, name: str) -> str:
        """What a report or an evaluation calls its text, which may begin with the path of the data set."""
        path = (self.section("data").get("dataset") or {}).get("path")
        for held in (path, path and without_secrets(path)):
            name = name.replace(held, self.dataset["path"]) if held else name
        return public_text(name)

    @property
    def base_model(self) -> str | None:
        """Id on the Hub of the model whose weights it started from; None for new weights and for local models.

        Raises:
            UserError: what is recorded has not the form of an id.
        """
        if not self.recipe:
            return self._base_model_id(next(iter(texts(self.card.get("base_model"))), None))
        if "base_model" in self.recipe:  # recorded when the model was there
            return self._base_model_id(self.recipe["base_model"])
        name = self._initialize_from
        # Transformers notes in the tokenizer, which is that of the other model, whether it came from a folder.
        is_local = self._mapping("tokenizer_config.json").get("is_local")
        return name if name and not is_local and is_hub_id(name) else None

    @property
    def base_run(self) -> str | None:
        """Name of the run whose weights it started from; None where that is not known, or on the Hub."""
        name = self._initialize_from
        return run_name(name) if name and self.base_model is None else None

    @property
    def _initialize_from(self) -> str | None:
        name = self.recipe.get("initialize_from")
        return name and self._in_one_line("initialize_from", name)

    @cached_property
    def moses(self) -> dict[str, str] | None:
        """The Moses step that the tokenizer records."""
        return self._mapping("tokenizer_config.json").get("moses")

    @cached_property
    def lowercases(self) -> bool:
        """Whether the tokenizer lower-cases."""
        normalizer = self._mapping("tokenizer.json").get("normalizer")
        return any(part.get("type") == "Lowercase" for part in _parts(normalizer))

    def _base_model_id(self, recorded: Any) -> str | None:
        if recorded is not None and not (isinstance(recorded, str) and has_form_of_id(recorded)):
            raise UserError(
                f"{self.path}: its base_model is {recorded!r}, which is no id on the Hub; write one such as me/base, or null"
            )
        return recorded

    def _in_one_line(self, field: str, text: Any) -> str:
        if not (isinstance(text, str) and text.isprintable() and not _BREAKS_CODE.search(text)):
            raise UserError(
                f"{self.path}: its {field} is {text!r}; a card needs text in one line, without quotation marks and backticks"
            )
        return text

    def attention_figures(self) -> list[tuple[str, str, str]]:
        """(name, value, where it was measured) of the last logged figures, on the validation split if they were."""
        history = self.trainer_state.get("log_history") or []
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
        result = self._mapping("analysis/entropy.json")
        measured = (result.get("model") or {}).get("config") or {}
        if any(measured.get(name) != getattr(self.config, name) for name in _ATTENTION_FIELDS):
            return [], {}
        rows = [row for row in result.get("table") or [] if row.get("layer") == "all" and row.get("head") == "all"]
        text = result.get("text") or {}
        names = [last_part(text[key]) for key in ("source_file", "target_file") if text.get(key)]
        return rows, {**text, "files": names, "date": result.get("date")}

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def _mapping(self, name: str) -> dict[str, Any]:
        return ModelFiles(self.path).mapping(name)


def _contradiction(option: str, given: str, folder: Path, told: str) -> str:
    return f"{option}: {given!r} was given, but the recipe of {folder} says {told!r}; leave the option out"


def _parts(normalizer: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The parts of a normalizer of the `tokenizers` library, sequences opened."""
    if normalizer is None:
        return []
    return [normalizer, *(part for inner in normalizer.get("normalizers", []) for part in _parts(inner))]
