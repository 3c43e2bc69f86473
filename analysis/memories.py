"""Feed-forward blocks read as key-value memories: the analyses `anisotropy`, `ffn-sparsity` and `variance-ratio`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reluformer.analysis.analyze import Measured, Rows, in_words
from reluformer.analysis.collection import ALL, BlockRows, block_rows
from reluformer.analysis.drawing import OLIVE, PURPLE, TEAL, draw_bars
from reluformer.analysis.feed_forward import FeedForward, feed_forward_blocks
from reluformer.analysis.inputs import Subject
from reluformer.configuration.errors import UserError


def anisotropy(subject: Subject) -> Measured:
    """Mean pairwise cosine of the value slots of every layer (Eq. 4, Figure 3)."""
    table = anisotropy_table(subject.model)
    draw = partial(draw_bars, table, {"anisotropy": ("", TEAL)}, "anisotropy (mean cosine of value slots)")
    return Measured(table, in_words(table, "anisotropy"), draw)


def anisotropy_table(model: PreTrainedModel) -> Rows:
    """One row for the model, one for each stack and one for each feed-forward block.

    slots: value slots, the rows of W_2. anisotropy: mean cosine of two different ones, in [-1/(slots - 1), 1]; over layers, the
    mean. zero_slots: slots that are exactly 0, which have no direction and are left out.
    """
    layers = [_of_block(block) for block in feed_forward_blocks(model)]
    means = [
        {
            "module": stack,
            "layer": ALL,
            "slots": sum(row["slots"] for row in rows),
            "anisotropy": fmean(row["anisotropy"] for row in rows),
            "zero_slots": sum(row["zero_slots"] for row in rows),
        }
        for stack, rows in _stacks_of(layers)
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


def _stacks_of(layers: Rows) -> Iterator[tuple[str, Rows]]:
    """`ALL` with the rows of all layers, then each stack with its own."""
    yield ALL, layers
    for stack in dict.fromkeys(row["module"] for row in layers):
        yield stack, [row for row in layers if row["module"] == stack]


# ffn-sparsity

_SHARES = {
    "nonzero_fraction": ("not zero", TEAL),
    "dead_fraction": ("dead neurons", PURPLE),
    "always_on_fraction": ("neurons that are always on", OLIVE),
}


def ffn_sparsity(subject: Subject) -> Measured:
    """Activations that are not zero, by layer, and neurons that never or always are.

    An activation is what the last projection of a block multiplies: `f(W_1 x)`, or with a gate `f(W_1 x) * W_2 x`.
    """
    table = sparsity_table(block_rows(subject.model, subject.batches()))
    return Measured(table, in_words(table, *_SHARES), partial(draw_bars, table, _SHARES, "share"))


def sparsity_table(rows: Iterable[BlockRows]) -> Rows:
    """One row for each stack and for each of its blocks.

    tokens: real ones. neurons: width of the blocks. nonzero_fraction: share of the activations that are not exactly zero.
    dead_fraction, always_on_fraction: share of the neurons that are zero for every token, and for none.
    """
    tokens: dict[tuple[str, int], int] = {}
    nonzeros: dict[tuple[str, int], Tensor] = {}  # of each neuron
    for block, activations, _, _ in rows:
        place = (block.stack, block.layer)
        tokens[place] = tokens.get(place, 0) + len(activations)
        nonzeros[place] = nonzeros.get(place, 0) + (activations != 0).sum(dim=0).cpu()

    def row(layer: int | str, places: list[tuple[str, int]]) -> dict[str, Any]:
        shares = torch.cat([nonzeros[place] / tokens[place] for place in places])
        activations = sum(tokens[place] * len(nonzeros[place]) for place in places)
        return {
            "module": f"{places[0][0]}_ffn",
            "layer": layer,
            "tokens": tokens[places[0]],
            "neurons": len(shares),
            "nonzero_fraction": sum(int(nonzeros[place].sum()) for place in places) / activations,
            "dead_fraction": float((shares == 0).double().mean()),
            "always_on_fraction": float((shares == 1).double().mean()),
        }

    table: Rows = []
    for stack in dict.fromkeys(stack for stack, _ in tokens):
        places = [place for place in tokens if place[0] == stack]
        table += [row(ALL, places), *(row(place[1] + 1, [place]) for place in places)]
    return table


# variance-ratio

_RATIOS = {"variance_ratio": ("over features", TEAL), "variance_ratio_over_tokens": ("over tokens", OLIVE)}
# Models whose residual is the block's input.
_POST_NORM = ("reluformer", "marian")


def variance_ratio(subject: Subject) -> Measured:
    """What a feed-forward block adds to what passes it by (Table 1), over features and over tokens."""
    kind = subject.model.config.model_type
    if kind not in _POST_NORM:
        raise UserError(
            f"variance-ratio: {kind} models are not supported, since their residual need not be the feed-forward block's "
            f"input; it reads {' and '.join(_POST_NORM)} models"
        )
    table = ratio_table(block_rows(subject.model, subject.batches()))
    draw = partial(draw_bars, table, _RATIOS, "Var(FFN out) / Var(residual)")
    return Measured(table, in_words(table, "variance_ratio"), draw)


def ratio_table(rows: Iterable[BlockRows]) -> Rows:
    """One row for the model, one for each stack and one for each layer; of `all` layers, means over them.

    output_variance: variance over the features of what the block adds to the residual, after its layer norm where there is one,
    mean over tokens. residual_variance: the same of the residual, the block's input. variance_ratio: their ratio. `_over_tokens`:
    variance over the tokens, mean over features. The paper does not say over what its variance is taken.
    """
    moments: dict[tuple[str, int], tuple[_Moments, _Moments]] = {}
    for block, _, update, residual in rows:
        of_block = moments.setdefault((block.stack, block.layer), (_Moments(), _Moments()))
        for vectors, found in zip((update, residual), of_block, strict=True):
            found.add(vectors)
    layers = [
        {"module": stack, "layer": layer + 1, "tokens": found[0].tokens, **_variances(*found)}
        for (stack, layer), found in moments.items()
    ]
    means = []
    for stack, of_stack in _stacks_of(layers):
        tokens = sum({row["module"]: row["tokens"] for row in of_stack}.values())
        columns = {name: [row[name] for row in of_stack] for name in list(layers[0])[3:]}
        mean = {name: None if None in values else fmean(values) for name, values in columns.items()}
        means.append({"module": stack, "layer": ALL, "tokens": tokens, **mean})
    return means + layers


class _Moments:
    """Sums over the tokens of one layer, float64: of x and x² of each feature, and of each token's variance over features."""

    def __init__(self) -> None:
        self.tokens, self.within, self.first, self.second = 0, 0.0, 0.0, 0.0

    def add(self, vectors: Tensor) -> None:
        """Adds vectors (tokens, features)."""
        vectors = vectors.double().cpu()
        self.tokens += len(vectors)
        self.within += float(vectors.var(dim=-1, correction=0).sum())
        self.first = self.first + vectors.sum(dim=0)
        self.second = self.second + vectors.square().sum(dim=0)

    def variances(self) -> tuple[float, float]:
        """Over features, mean over tokens; and over tokens, mean over features."""
        over_tokens = self.second / self.tokens - (self.first / self.tokens).square()
        return self.within / self.tokens, float(over_tokens.clamp_min(0).mean())


def _variances(update: _Moments, residual: _Moments) -> dict[str, float | None]:
    found = {}
    for over, output, beside in zip(("", "_over_tokens"), update.variances(), residual.variances(), strict=True):
        found[f"output_variance{over}"] = output
        found[f"residual_variance{over}"] = beside
        # A single token has no variance over tokens.
        found[f"variance_ratio{over}"] = output / beside if beside > 0 else None
    return found
