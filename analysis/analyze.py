"""`reluformer analyze`: the wanted analyses of a model, each with its files: a table as JSON and as CSV, and
pictures."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from reluformer.analysis.analyses import ANALYSES
from reluformer.analysis.collection import ALL
from reluformer.analysis.inputs import AnalysisOptions, read_subject
from reluformer.configuration.errors import UserError
from reluformer.records.records import run_record, write_json

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class AnalysisResult:
    """The numbers of an analysis, and how they are drawn.

    table: rows with the same columns. summary: one line for a person. draw: called with a path and a title, returns the
    pictures that it wrote. notes: what a reader must know, one sentence each.
    """

    table: Rows
    summary: str
    draw: Callable[[Path, str], Sequence[Path]]
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
        UserError: options that do not fit together, files or a model that cannot be read, a model of which an analysis
            cannot be taken.
    """
    if options.output is None and not Path(options.model).is_dir():
        raise UserError("--output: missing; without a model's folder, say where to write the results")
    folder = Path(options.output or Path(options.model) / "analysis")
    subject, takes_all = read_subject(options), "all" in options.what
    names = [name for name in ANALYSES if takes_all or name in options.what]
    lacking = {name: needs for name in names if not subject.allows(needs := ANALYSES[name][1])}
    if lacking and not takes_all:
        raise UserError("--what: " + "; ".join(f"{name} needs {needs}" for name, needs in lacking.items()))
    config = {name: value for name, value in subject.model.config.to_dict().items() if name.startswith("attention_")}
    facts = {"model": {"name": options.model, "config": config}, "device": str(subject.model.device), **subject.facts}
    done = Analysed(notes=list(subject.notes))
    done.notes += [f"{name} is left out: it needs {needs}" for name, needs in lacking.items()]
    for name in (name for name in names if name not in lacking):
        module, function = ANALYSES[name][0].split(".")
        try:
            measured = getattr(import_module(f"reluformer.analysis.{module}"), function)(subject)
        except UserError as error:
            if not takes_all:
                raise
            done.notes.append(f"{name} is left out: {error}")
            continue
        done.files += _write(measured, folder / name, f"{name}: {Path(options.model).name}", facts)
        done.summaries.append(f"{name}: {measured.summary}")
        done.notes += measured.notes
    return done


def _write(measured: AnalysisResult, path: Path, title: str, facts: Mapping[str, Any]) -> list[Path]:
    """Writes `<path>.json`, `<path>.csv` and the pictures. facts: of the model and its input, for the JSON file."""
    pictures = list(measured.draw(path.with_suffix(".png"), title))
    content = {"what": path.name, **facts, "notes": list(measured.notes), "table": measured.table}
    result = write_json(path.with_suffix(".json"), run_record(None, None, None) | content)
    table = path.with_suffix(".csv")
    with table.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(measured.table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(measured.table)
    return [result, table, *pictures]
