"""What a figure of `reluformer analyze` is. A module of this folder defines one and calls it `FIGURE`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import datasets
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from reluformer.analysis.collection import AnyBatch, AttentionStatistic
from reluformer.analysis.feed_forward import OnScores, OnUpdate
from reluformer.analysis.result_files import write_csv, write_result
from reluformer.configuration.analyses import ANALYSES
from reluformer.training.data.documents import PackedDocuments

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
    return import_module(f"reluformer.analysis.{ANALYSES[name]}").FIGURE


def make_figure(name: str, options: object) -> Figure:
    """A figure with those of `options` that it reads."""
    figure = figure_class(name)
    return figure(**{each.name: getattr(options, each.name) for each in dataclasses.fields(figure)})
