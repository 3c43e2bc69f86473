"""The analysis `anisotropy`, of the value slots of feed-forward memories: their mean pairwise cosine (Eq. 4, Figure 3)."""

from __future__ import annotations

from functools import partial
from statistics import fmean

from torch import Tensor
from transformers import PreTrainedModel

from reluformer.analysis.collection import ALL
from reluformer.analysis.drawing import TEAL, draw_bars
from reluformer.analysis.feed_forward import FeedForward, feed_forward_blocks
from reluformer.analysis.inputs import Subject
from reluformer.analysis.results import Measured, Rows, stacks_of_layers
from reluformer.configuration.errors import UserError

DEFINITIONS = {
    "slots": "value slots: the rows of W_2 (Eq. 1), one for each inner feature of the feed-forward block",
    "anisotropy": "mean cosine of two different value slots (Eq. 4), in [-1/(slots - 1), 1]; `all`: mean over layers",
    "zero_slots": "slots that are exactly 0: they have no direction and are left out",
}


def anisotropy(subject: Subject) -> Measured:
    """Mean pairwise cosine of the value slots of every layer."""
    table = anisotropy_table(subject.model)
    columns = {"anisotropy": ("", TEAL)}
    draw = partial(draw_bars, table, columns, "anisotropy (mean cosine of value slots)")
    return Measured(table, f"{table[0]['anisotropy']:.4f}, mean over layers", draw, DEFINITIONS)


def anisotropy_table(model: PreTrainedModel) -> Rows:
    """One row for the model, one for each stack and one for each feed-forward block; columns as in `DEFINITIONS`."""
    layers = [_of_block(block) for block in feed_forward_blocks(model)]
    means = [
        {
            "module": stack,
            "layer": ALL,
            "slots": sum(row["slots"] for row in rows),
            "anisotropy": fmean(row["anisotropy"] for row in rows),
            "zero_slots": sum(row["zero_slots"] for row in rows),
        }
        for stack, rows in stacks_of_layers(layers)
    ]
    return means + layers


def _of_block(block: FeedForward) -> dict[str, str | int | float]:
    slots = block.value_slots.T
    used = slots[slots.norm(dim=-1) > 0]
    if len(used) < 2:
        raise UserError(
            f"anisotropy: {block.stack} layer {block.layer + 1} has {len(used)} value slots that are not 0 of {len(slots)}; "
            "a cosine needs two"
        )
    return {
        "module": block.stack,
        "layer": block.layer + 1,
        "slots": len(slots),
        "anisotropy": mean_cosine(used),
        "zero_slots": len(slots) - len(used),
    }


def mean_cosine(slots: Tensor) -> float:
    """ANI of Eq. 4 of `slots` (slots, features) in O(slots · features), by the norm of the sum of the unit vectors u_i:

    sum_{i≠j} u_i·u_j = |sum_i u_i|² - slots
    """
    slots, count = slots.detach().double(), len(slots)
    units = slots / slots.norm(dim=-1, keepdim=True)
    return float((units.sum(dim=0).square().sum() - count) / (count * (count - 1)))
