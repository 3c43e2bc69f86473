"""What an analysis of `reluformer analyze` is, and the files that it writes. `ANALYSES` names its class."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import datasets
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from reluformer.analysis.collection import AnyBatch, AttentionStatistic
from reluformer.analysis.feed_forward import OnScores, OnUpdate
from reluformer.configuration.analyses import ANALYSES
from reluformer.configuration.whole_files import whole_file
from reluformer.training.data.documents import PackedDocuments
from reluformer.training.run.records import run_record, write_json

NOTHING, MODEL, TEXT = "nothing", "model", "text"
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Subject:
    """What a figure is taken of, as far as it needs it. pairs: columns "input_ids" and "labels"; documents: what they were packed
    of, where they are packed documents."""

    model: PreTrainedModel | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    pairs: datasets.Dataset | None = None
    documents: PackedDocuments | None = None


@dataclass(frozen=True)
class Watch:
    """What a figure is to be handed during the one pass over the text; see `observe`."""

    attention: AttentionStatistic | None = None
    on_scores: OnScores | None = None
    on_update: OnUpdate | None = None
    on_batch: Callable[[AnyBatch], None] | None = None
    on_logits: Callable[[AnyBatch, Tensor], None] | None = None


@dataclass(frozen=True)
class Taken:
    """A figure that was taken. summary: one line for a person. facts: stand in the JSON file. title: of the picture."""

    table: Rows
    summary: str
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    title: str | None = None


@dataclass
class Analysed:
    """What was written, and what a reader should know. summaries: one line for each analysis."""

    files: list[Path] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Figure:
    """One figure. Its fields, if it has any, are those of `AnalysisOptions` that it reads; it is then a dataclass.

    name: as `--what` has it. needs: NOTHING, MODEL (its weights) or TEXT (a model and pairs of texts).
    of_documents: whether it needs the pairs to be packed documents.
    of_decoders: whether it can be taken of a decoder-only model, too, on a text instead of pairs. of_images: the same of a
    classifier of pictures.
    definitions: what the columns of the table mean.
    """

    name: ClassVar[str]
    needs: ClassVar[str]
    of_documents: ClassVar[bool] = False
    of_decoders: ClassVar[bool] = False
    of_images: ClassVar[bool] = False
    definitions: ClassVar[dict[str, str]]

    @property
    def most_pairs(self) -> int | None:
        """How many pairs of the text it looks at, from the first; None: all of them."""
        return None

    def require(self, model: PreTrainedModel) -> None:
        """Raises a `UserError` for a model of which it cannot be taken, before anything is computed."""

    def watch(self, model: PreTrainedModel) -> Watch:
        """What it looks at during the pass over the text; by default nothing."""
        return Watch()

    def take(self, subject: Subject) -> Taken:
        """The figure, after the pass. Every figure has this and `draw`, but for one that has its own `write`."""
        raise NotImplementedError

    def draw(self, rows: Rows, path: Path, title: str) -> Path:
        """Draws the table that `take` returned, and returns the path."""
        raise NotImplementedError

    def write(self, subject: Subject, folder: Path, title: str, facts: dict[str, Any]) -> Analysed:
        """Takes the figure and writes `<name>.json`, `<name>.csv` and `<name>.png`. facts: of the subject, for the JSON."""
        taken, path = self.take(subject), folder / self.name
        files = [
            write_result(
                path.with_suffix(".json"),
                self.name,
                definitions=self.definitions,
                table=taken.table,
                **facts,
                **taken.facts,
            ),
            write_csv(path.with_suffix(".csv"), taken.table),
            self.draw(taken.table, path.with_suffix(".png"), taken.title or title),
        ]
        return Analysed(files, [f"{self.name}: {taken.summary}"], taken.notes)


def figure_class(name: str) -> type[Figure]:
    """The figure of a name out of `ANALYSES`."""
    module, _, kind = ANALYSES[name].partition(".")
    return getattr(import_module(f"reluformer.analysis.{module}"), kind)


def make_figure(name: str, options: object) -> Figure:
    """A figure with those of `options` that it reads."""
    figure = figure_class(name)
    return figure(**{each.name: getattr(options, each.name) for each in dataclasses.fields(figure)})


# Files: JSON with the record of its run, and the same table as CSV.

# What of a configuration decides the figures; a model has only some of these.
_CONFIG_FIELDS = (
    *(
        "model_type",
        "d_model",
        "encoder_layers",
        "decoder_layers",
        "encoder_attention_heads",
        "decoder_attention_heads",
    ),
    *(
        "encoder_ffn_dim",
        "decoder_ffn_dim",
        "attention_activation",
        "attention_scaling",
        "attention_gamma",
        "attention_alpha",
    ),
    *("attention_output_norm", "regularization_weight", "entropy_margin", "activation_function", "hidden_act"),
    *("intermediate_size", "ffn_type", "ffn_top_k", "activation_sparsity_pattern", "ffn_threshold", "ffn_output_norm"),
    "ffn_temperature",
)


def model_facts(name: str, config: PreTrainedConfig) -> dict[str, Any]:
    """Name as given, and what of the configuration decides the figures."""
    fields = {field: getattr(config, field) for field in _CONFIG_FIELDS if hasattr(config, field)}
    return {"name": name, "config": fields}


def write_result(
    path: Path,
    what: str,
    *,
    definitions: Mapping[str, str],
    table: list[dict[str, Any]] | None,
    seed: int | None = None,
    **facts: Any,
) -> Path:
    """Writes `<path>` with the run record, `what`, `facts`, `definitions` of the columns and `table`.

    Args:
        table: None where it is in the CSV file alone.
        seed: None where nothing is random.
        facts: whatever else the result says; None is left out.
    """
    given = {name: value for name, value in facts.items() if value is not None}
    rows = {} if table is None else {"table": table}
    return write_json(path, {**run_record(None, None, seed), "what": what, **given, "definitions": definitions, **rows})


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Writes rows with the columns of the first one, whole or not at all; None is an empty cell.

    The rows may come from a generator; they are not kept.
    """
    with whole_file(path) as stream:
        writer = None
        for row in rows:
            if writer is None:
                writer = csv.DictWriter(stream, list(row), lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)
    return path
