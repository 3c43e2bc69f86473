"""What an analysis returns, and the files that it is written to: a table as JSON and as CSV, and pictures."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from reluformer.analysis.collection import ALL
from reluformer.configuration.whole_files import whole_file
from reluformer.training.run.records import run_record, write_json

Rows = list[dict[str, Any]]

# What of a configuration decides the figures.
_CONFIG_FIELDS = re.compile(
    "(model_type|d_model|hidden_.*|intermediate_size|.*_(layers|heads|ffn_dim)|activation_.*|attention_.*|ffn_.*"
    "|regularization_weight|entropy_margin)"
)


@dataclass(frozen=True)
class Measured:
    """The numbers of an analysis, and how they are drawn.

    table: rows with the same columns. summary: one line for a person. draw: called with a path and a title, returns the pictures
    that it wrote. definitions: what the columns mean. facts: stand in the JSON file beside the table. notes: what a reader must
    know, one sentence each. csv_only: the table is too long for the JSON file.
    """

    table: Rows
    summary: str
    draw: Callable[[Path, str], Sequence[Path]]
    definitions: Mapping[str, str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    csv_only: bool = False


def write_measured(measured: Measured, path: Path, title: str, facts: Mapping[str, Any]) -> list[Path]:
    """Writes `<path>.json`, `<path>.csv` and the pictures. facts: of the model and its input, for the JSON file."""
    pictures = list(measured.draw(path.with_suffix(".png"), title))
    table = {} if measured.csv_only else {"table": measured.table}
    seed = measured.facts.get("seed")
    content = run_record(None, None, seed) | {"what": path.name, **facts, **measured.facts}
    content |= {"definitions": measured.definitions, **table}
    return [
        write_json(path.with_suffix(".json"), content),
        _write_csv(path.with_suffix(".csv"), measured.table),
        *pictures,
    ]


def _write_csv(path: Path, rows: Rows) -> Path:
    with whole_file(path) as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def model_facts(name: str, config: PreTrainedConfig) -> dict[str, Any]:
    """Name as given, and what of the configuration decides the figures."""
    fields = {field: value for field, value in config.to_dict().items() if _CONFIG_FIELDS.fullmatch(field)}
    return {"name": name, "config": fields}


def stacks_of_layers(layers: Rows) -> Iterator[tuple[str, Rows]]:
    """`ALL` with the rows of all layers, then each stack with its own."""
    yield ALL, layers
    for stack in dict.fromkeys(row["module"] for row in layers):
        yield stack, [row for row in layers if row["module"] == stack]
