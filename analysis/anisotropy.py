"""The figure `anisotropy`, of the value slots of feed-forward memories: their mean pairwise cosine (Eq. 4, Figure 3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from reluformer.analysis.collection import ALL
from reluformer.analysis.drawing import TEAL, draw_bars
from reluformer.analysis.feed_forward import feed_forward_blocks
from reluformer.analysis.figure import MODEL, Figure, Rows, Subject, Taken
from reluformer.configuration.errors import UserError

DEFINITIONS = {
    "slots": "value slots: the rows of W_2 (Eq. 1), one for each inner feature of the feed-forward block",
    "anisotropy": "mean cosine of two different value slots (Eq. 4), in [-1/(slots - 1), 1]; `all`: mean over layers",
    "zero_slots": "slots that are exactly 0: they have no direction and are left out",
}


def anisotropy(slots: Tensor) -> float:
    """ANI of Eq. 4 in O(slots · features), by the norm of the sum of the unit vectors u_i:

        sum_{i≠j} u_i·u_j = |sum_i u_i|² - d_h

    Args:
        slots: (slots, features), none of them 0.

    Raises:
        ValueError: fewer than two slots.
    """
    count = slots.shape[0]
    if count < 2:
        raise ValueError(f"anisotropy needs at least two slots, got {count}")
    slots = slots.detach().double()
    units = slots / slots.norm(dim=-1, keepdim=True)
    return float((units.sum(dim=0).square().sum() - count) / (count * (count - 1)))


def anisotropy_table(model: PreTrainedModel) -> list[dict[str, Any]]:
    """One row for each feed-forward block, one for each stack and one for the model; columns as in `DEFINITIONS`.

    Raises:
        UserError: feed-forward blocks that cannot be found, or one with fewer than two slots that are not 0.
    """
    layers = []
    for block in feed_forward_blocks(model):
        slots = block.value_slots.T
        used = slots[slots.norm(dim=-1) > 0]
        if used.shape[0] < 2:
            raise UserError(
                f"anisotropy: {block.stack} layer {block.layer + 1} has {used.shape[0]} value slots that are not 0 of "
                f"{slots.shape[0]}; a cosine needs two"
            )
        layers.append(
            {
                "module": block.stack,
                "layer": block.layer + 1,
                "slots": slots.shape[0],
                "anisotropy": anisotropy(used),
                "zero_slots": slots.shape[0] - used.shape[0],
            }
        )
    stacks = dict.fromkeys(row["module"] for row in layers)
    return [_mean(layers, ALL), *(_mean([row for row in layers if row["module"] == s], s) for s in stacks), *layers]


def _mean(rows: list[dict[str, Any]], module: str) -> dict[str, Any]:
    return {
        "module": module,
        "layer": ALL,
        "slots": sum(row["slots"] for row in rows),
        "anisotropy": sum(row["anisotropy"] for row in rows) / len(rows),
        "zero_slots": sum(row["zero_slots"] for row in rows),
    }


class Anisotropy(Figure):
    """Mean pairwise cosine of the value slots of every layer."""

    name = "anisotropy"
    needs = MODEL
    definitions = DEFINITIONS

    def take(self, subject: Subject) -> Taken:
        table = anisotropy_table(subject.model)
        layers = sum(row["layer"] != ALL for row in table)
        return Taken(table, f"{table[0]['anisotropy']:.4f}, mean over {layers} layers")

    def draw(self, rows: Rows, path: Path, title: str) -> Path:
        """Mean pairwise cosine of the value slots of each layer."""
        return draw_bars(rows, {"anisotropy": ("", TEAL)}, "anisotropy (mean cosine of value slots)", path, title)
