"""Feed-forward blocks read as key-value memories: the analyses `anisotropy`, `ffn-sparsity` and `variance-ratio`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from reluformer.analysis.analyze import AnalysisResult, Rows, in_words
from reluformer.analysis.collection import ALL, BlockRows, block_rows
from reluformer.analysis.drawing import OLIVE, PURPLE, TEAL, draw_bars
from reluformer.analysis.feed_forward import feed_forward_blocks
from reluformer.analysis.inputs import Subject
from reluformer.configuration.errors import UserError


def anisotropy(subject: Subject) -> AnalysisResult:
    """Mean pairwise cosine of the value slots of every layer (Eq. 4, Figure 3)."""
    table = anisotropy_table(subject.model)
    draw = partial(draw_bars, table, {"anisotropy": ("mean cosine of value slots", TEAL)}, "anisotropy")
    return AnalysisResult(table, in_words(table, "anisotropy"), draw)


def anisotropy_table(model: PreTrainedModel) -> Rows:
    """One row for the model, one for each stack and one for each feed-forward block; of `all` layers, the mean over
    them.

    anisotropy: mean cosine of two different value slots, the rows of W_2, in [-1/(slots - 1), 1].
    """
    layers = [
        {"module": block.stack, "layer": block.layer + 1, "anisotropy": mean_cosine(block.value_slots.T)}
        for block in feed_forward_blocks(model)
    ]
    return _with_means(layers)


def mean_cosine(slots: Tensor) -> float:
    """ANI of Eq. 4 of `slots` (slots, features) in O(slots · features), by the norm of the sum of the unit vectors u_i:

    sum_{i≠j} u_i·u_j = |sum_i u_i|² - sum_i |u_i|²

    A slot that is 0 has the cosine 0 with all others.
    """
    units, count = normalize(slots.detach().double(), dim=-1), len(slots)
    return float((units.sum(dim=0).square().sum() - units.square().sum()) / (count * (count - 1)))


def _with_means(layers: Rows) -> Rows:
    """Above the rows of layers, the means of their columns over all of them and over each stack."""
    means = []
    for stack in (ALL, *dict.fromkeys(row["module"] for row in layers)):
        rows = [row for row in layers if stack in (ALL, row["module"])]
        columns = {name: fmean(row[name] for row in rows) for name in rows[0] if name not in ("module", "layer")}
        means.append({"module": stack, "layer": ALL, **columns})
    return means + layers


# ffn-sparsity

_SHARES = {
    "nonzero_fraction": ("not zero", TEAL),
    "dead_fraction": ("dead neurons", PURPLE),
    "always_on_fraction": ("neurons that are always on", OLIVE),
}


def ffn_sparsity(subject: Subject) -> AnalysisResult:
    """Activations that are not zero, by layer, and neurons that never or always are.

    An activation is what the last projection of a block multiplies: `f(W_1 x)`, or with a gate `f(W_1 x) * W_2 x`.
    """
    table = sparsity_table(block_rows(subject.model, subject.batches()))
    return AnalysisResult(table, in_words(table, *_SHARES), partial(draw_bars, table, _SHARES, "share"))


def sparsity_table(rows: Iterable[BlockRows]) -> Rows:
    """One row for each stack and for each of its blocks.

    tokens: real ones. neurons: width of the blocks. nonzero_fraction: share of the activations that are not exactly
        zero.
    dead_fraction, always_on_fraction: share of the neurons that are zero for every token, and for none.
    """
    tokens: dict[tuple[str, int], int] = {}
    nonzeros: dict[tuple[str, int], Tensor] = {}  # of each neuron
    for block, activations, _, _ in rows:
        key = (block.stack, block.layer)
        tokens[key] = tokens.get(key, 0) + len(activations)
        nonzeros[key] = nonzeros.get(key, 0) + (activations != 0).sum(dim=0).cpu()

    def row(layer: int | str, keys: list[tuple[str, int]]) -> dict[str, Any]:
        shares = torch.cat([nonzeros[key].double() / tokens[key] for key in keys])
        return {
            "module": f"{keys[0][0]}_ffn",
            "layer": layer,
            "tokens": tokens[keys[0]],
            "neurons": len(shares),
            "nonzero_fraction": float(shares.mean()),
            "dead_fraction": float((shares == 0).double().mean()),
            "always_on_fraction": float((shares == 1).double().mean()),
        }

    table: Rows = []
    for stack in dict.fromkeys(stack for stack, _ in tokens):
        keys = [key for key in tokens if key[0] == stack]
        table += [row(ALL, keys), *(row(key[1] + 1, [key]) for key in keys)]
    return table


# variance-ratio

# Models whose residual is the block's input.
_POST_NORM = ("reluformer", "marian")


def variance_ratio(subject: Subject) -> AnalysisResult:
    """What a feed-forward block adds to what passes it by (Table 1)."""
    kind = subject.model.config.model_type
    if kind not in _POST_NORM:
        raise UserError(
            f"variance-ratio: {kind} models are not supported, since their residual need not be the feed-forward "
            f"block's input; it reads {' and '.join(_POST_NORM)} models"
        )
    table = ratio_table(block_rows(subject.model, subject.batches()))
    draw = partial(draw_bars, table, {"variance_ratio": ("Var(FFN out) / Var(residual)", TEAL)}, "ratio")
    return AnalysisResult(table, in_words(table, "variance_ratio"), draw)


def ratio_table(rows: Iterable[BlockRows]) -> Rows:
    """One row for the model, one for each stack and one for each layer; of `all` layers, means over them.

    output_variance: variance over the features of what the block adds to the residual, after its layer norm where there
    is one, mean over tokens. residual_variance: the same of the residual, the block's input. variance_ratio: their
    ratio. The paper does not say over what its variance is taken.
    """
    variances: dict[tuple[str, int], list[Tensor]] = {}
    for block, _, update, residual in rows:
        both = torch.stack([update, residual]).double().var(dim=-1, correction=0)
        variances.setdefault((block.stack, block.layer), []).append(both.cpu())
    layers = []
    for (stack, layer), parts in variances.items():
        output, residual = torch.cat(parts, dim=1).mean(dim=1).tolist()
        figures = {"output_variance": output, "residual_variance": residual, "variance_ratio": output / residual}
        layers.append({"module": stack, "layer": layer + 1, **figures})
    return _with_means(layers)
