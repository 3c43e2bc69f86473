"""Which pictures a classifier has found, so that a result file can be compared with another one, picture by picture."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def accuracy_statistics(predictions: Path, split: str) -> dict[str, Any]:
    """Accuracy of a file of predictions, and which of them are right.

    Args:
        predictions: as `reluformer train` and `evaluate` write them: a heading, then class and prediction of each picture.
        split: that was classified.

    Returns:
        `metric`, `signature` (the split), `score` in percent, `references` (a digest of the classes, in order), `pictures`,
        and `right`: a bit for each picture, the first one highest, in hexadecimal digits, filled with zeros to whole bytes.
    """
    rows = [line.split("\t") for line in predictions.read_text(encoding="utf-8").splitlines()[1:]]
    right = np.array([label == found for label, found in rows])
    return {
        "metric": "accuracy",
        "signature": split,
        "score": 100 * float(right.mean()),
        "references": hashlib.sha256("\n".join(label for label, _ in rows).encode()).hexdigest()[:16],
        "pictures": len(rows),
        "right": np.packbits(right).tobytes().hex(),
    }


def accuracy_rows(statistics: Mapping[str, Any]) -> np.ndarray:
    """(pictures, 2): whether it is right, and 1."""
    packed = np.frombuffer(bytes.fromhex(statistics["right"]), dtype=np.uint8)
    right = np.unpackbits(packed, count=statistics["pictures"]).astype(np.int64)
    return np.stack([right, np.ones_like(right)], axis=1)


def accuracy_of(sums: np.ndarray) -> float:
    """Percent of the sum of some of the rows."""
    return 100 * float(sums[0]) / float(sums[1])
