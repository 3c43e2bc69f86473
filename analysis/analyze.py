"""`reluformer analyze`: the wanted analyses of a model, each with its files: a table as JSON and as CSV, and pictures."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from reluformer.analysis.analyses import ANALYSES, DOCUMENTS, INPUT, MODEL, NOTHING, PAIRS, TEXT
from reluformer.analysis.collection import ALL
from reluformer.analysis.inputs import AnalysisOptions, read_subject
from reluformer.configuration.errors import UserError
from reluformer.training.run.records import run_record, write_json

Rows = list[dict[str, Any]]
_MISSING = {
    MODEL: "--model: missing; {} needs a model, or --run",
    INPUT: "--text: missing; {} needs a text, or --images for a classifier of pictures",
    TEXT: "--text: missing; {} needs a model of language and a text",
    PAIRS: "--text: missing; {} needs a translation model and source lines",
    DOCUMENTS: "--documents: missing; {} needs a translation model, and a file that names the document of each line",
}
# What of a configuration decides the figures.
_CONFIG_FIELDS = re.compile(
    "(model_type|d_model|hidden_.*|intermediate_size|.*_(layers|heads|ffn_dim)|activation_.*|attention_.*|ffn_.*"
    "|regularization_weight|entropy_margin)"
)


@dataclass(frozen=True)
class Measured:
    """The numbers of an analysis, and how they are drawn.

    table: rows with the same columns. summary: one line for a person. draw: called with a path and a title, returns the pictures
    that it wrote. facts: stand in the JSON file beside the table. notes: what a reader must know, one sentence each.
    """

    table: Rows
    summary: str
    draw: Callable[[Path, str], Sequence[Path]]
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


def in_words(table: Rows, *columns: str) -> str:
    """These columns of the rows over all layers or positions, by module where there are several."""
    whole = [row for row in table if row.get("layer", row.get("positions")) == ALL]
    parts = []
    for row in whole:
        values = [f"{name} {'–' if row[name] is None else format(row[name], '.4g')}" for name in columns]
        parts.append(" ".join([*([row["module"]] if len(whole) > 1 else []), ", ".join(values)]))
    return "; ".join(parts)


@dataclass
class Analysed:
    """What was written, and what a reader should know. summaries: one line for each analysis."""

    files: list[Path] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def analyze(options: AnalysisOptions) -> Analysed:
    """Takes the analyses that `options.what` names and writes `<what>.json`, `<what>.csv` and pictures of each.

    Of `all`, one that cannot be taken of the model is left out with a note.

    Raises:
        UserError: options that do not fit together, files or a model that cannot be read, a model of which an analysis cannot
            be taken.
    """
    takes_all = list(options.what) == ["all"]
    _check(options, takes_all)
    folder = _folder(options)
    subject = read_subject(options)
    names = [name for name in ANALYSES if name in options.what]
    if takes_all:
        names = [name for name, each in ANALYSES.items() if each.needs != NOTHING and subject.allows(each.needs)]
    for name in names:
        if not subject.allows(needs := ANALYSES[name].needs):
            raise UserError(_MISSING[MODEL if subject.model is None else needs].format(name))
    facts = dict(subject.facts)
    if subject.model is not None:
        model = options.model or options.run
        facts |= {"model": _model_facts(model, subject.model.config), "device": str(subject.model.device)}
    done = Analysed(notes=list(subject.notes))
    for name in names:
        try:
            module, function = ANALYSES[name].function.split(".")
            measured = getattr(import_module(f"reluformer.analysis.{module}"), function)(subject)
        except UserError as error:
            if not takes_all:
                raise
            done.notes.append(f"{name} is left out: {error}")
            continue
        title = f"{name}: {Path(options.model or options.run or '').name}"
        done.files += _write(measured, folder / name, title, facts)
        done.summaries.append(f"{name}: {measured.summary}")
        done.notes += measured.notes
    return done


def _check(options: AnalysisOptions, takes_all: bool) -> None:
    unknown = [name for name in options.what if name not in ANALYSES and not takes_all]
    if unknown or not options.what:
        raise UserError(
            f"--what: {', '.join(unknown) or 'nothing'} is unknown; choose of {', '.join(ANALYSES)}, or all"
        )
    if options.model is not None and options.run is not None:
        raise UserError("--model: --run says it already; leave one of the two out")
    if takes_all and options.model is None and options.run is None:
        raise UserError(_MISSING[MODEL].format("--what all"))
    if not all(0 < percentage <= 100 for percentage in options.top_p):
        raise UserError(f"--top_p: {list(options.top_p)} must be percentages above 0 and up to 100")


def _folder(options: AnalysisOptions) -> Path:
    """Where the files go."""
    model = options.model or options.run
    if options.output is None and (model is None or not Path(model).is_dir()):
        raise UserError("--output: missing; without a model's folder, say where to write the results")
    return Path(options.output or Path(model) / "analysis")


def _model_facts(name: str, config: PreTrainedConfig) -> dict[str, Any]:
    fields = {field: value for field, value in config.to_dict().items() if _CONFIG_FIELDS.fullmatch(field)}
    return {"name": name, "config": fields}


def _write(measured: Measured, path: Path, title: str, facts: Mapping[str, Any]) -> list[Path]:
    """Writes `<path>.json`, `<path>.csv` and the pictures. facts: of the model and its input, for the JSON file."""
    pictures = list(measured.draw(path.with_suffix(".png"), title))
    content = run_record(None, None, measured.facts.get("seed")) | {"what": path.name, **facts, **measured.facts}
    result, table = write_json(path.with_suffix(".json"), content | {"table": measured.table}), path.with_suffix(".csv")
    with table.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(measured.table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(measured.table)
    return [result, table, *pictures]
