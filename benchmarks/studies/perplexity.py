"""What each document adds to a perplexity, so that a result file can be compared with another one, and holds no text."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def perplexity_statistics(documents: Path, split: str, context: int) -> dict[str, Any]:
    """Perplexity of a split, and the loss of each of its documents.

    Args:
        documents: as `reluformer train` and `evaluate` write them: a heading, then name, bytes, tokens and nats of each document.
        split: that was predicted.
        context: tokens of a context, on which the loss depends.

    Returns:
        `metric`, `signature` (split and context), `score`, e to the mean loss of a token, `per_byte`, e to the loss per byte of
        the text, `references` (a digest of the documents and their tokens, in order), `tokens`, and `documents`: tokens and nats
        of each.
    """
    with documents.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream, delimiter="\t"))[1:]
    names = "\n".join(f"{name}\t{size}\t{tokens}" for name, size, tokens, _ in rows)
    tokens, nats = sum(int(row[2]) for row in rows), sum(float(row[3]) for row in rows)
    return {
        "metric": "perplexity",
        "signature": f"{split}, contexts of {context:,} tokens",
        "score": _exp(nats / tokens),
        "per_byte": _exp(nats / sum(int(row[1]) for row in rows)),
        "references": hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()[:16],
        "tokens": tokens,
        "documents": " ".join(f"{row[2]},{row[3]}" for row in rows),
    }


def perplexity_rows(statistics: Mapping[str, Any]) -> np.ndarray:
    """(documents, 2): nats and tokens."""
    rows = [row.split(",") for row in statistics["documents"].split()]
    return np.array([[float(nats), float(tokens)] for tokens, nats in rows])


def perplexity_of(sums: np.ndarray) -> float:
    """e to the mean loss of a token, of the sum of some of the rows."""
    return _exp(sums[0] / sums[1])


def _exp(nats: float) -> float:
    return float(np.exp(nats))  # infinite where a float has no room
