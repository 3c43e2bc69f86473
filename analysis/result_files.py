"""The files of an analysis: JSON with the record of its run, and the same table as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from reluformer.configuration.whole_files import whole_file
from reluformer.training.run.records import run_record, write_json

# What of a configuration decides the figures; a model has only some of these.
_CONFIG_FIELDS = (
    "model_type",
    "d_model",
    "encoder_layers",
    "decoder_layers",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "attention_activation",
    "attention_scaling",
    "attention_gamma",
    "attention_alpha",
    "attention_output_norm",
    "regularization_weight",
    "entropy_margin",
    "activation_function",
    "hidden_act",
    "intermediate_size",
    "ffn_type",
    "ffn_top_k",
    "activation_sparsity_pattern",
    "ffn_threshold",
    "ffn_output_norm",
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
