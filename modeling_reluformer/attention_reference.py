"""Reference attention: plain PyTorch, any floating dtype, every activation, returns the weights. The oracle of the fast paths.

Memory grows with queries × keys. Imports nothing of this package.

For query i, with the scale c = 1/sqrt(head_dim), the activation h and the row scale r_i:

    weight_ij = r_i · h(c · q_i·k_j)  for visible j, else 0            point-wise (Eq. 6 with its r_i)
    weight_i  = h(c · q_i·k_·)        over the visible j               softmax, sparsemax, entmax15
    S_i = sum_j weight_ij      T_i = sum_j weight_ij log weight_ij     so that the row entropy is H_i = log S_i - T_i / S_i
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

try:
    from entmax import entmax15, sparsemax
except ImportError:  # an optional extra; an error says how to install it where it is asked for
    entmax15 = sparsemax = None

POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "relu2": lambda scores: torch.relu(scores).square(),
    "relu6": nn.functional.relu6,
    "gelu": nn.functional.gelu,
    "softplus": nn.functional.softplus,
    "identity": lambda scores: scores,
    "sigmoid": torch.sigmoid,
}


class AttentionResult(NamedTuple):
    """What an attention function of this package returns. A field that was not asked for is None.

    output: (batch, heads, queries, head_dim), in the value's dtype.
    weights: (batch, heads, queries, keys), before dropout.
    row_sum: S, (batch, heads, queries), float32 (float64 for float64 inputs).
    row_sum_log: T, as S.
    """

    output: Tensor
    weights: Tensor | None = None
    row_sum: Tensor | None = None
    row_sum_log: Tensor | None = None


def reference_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    activation: str,
    mask: Tensor | None = None,
    row_scale: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    statistics: str = "none",
) -> AttentionResult:
    """Attention with all its weights in memory.

    Args:
        query: (batch, heads, queries, head_dim). key, value: (batch, key_heads, keys, head_dim); neighbouring query heads share a
            head of keys.
        activation: a name of `POINTWISE`, or softmax, sparsemax, entmax15.
        mask: boolean, broadcastable to (batch, heads, queries, keys), True where the key is visible.
        row_scale: r_i, broadcastable to (batch, heads, queries); point-wise activations only.
        scale: c; default 1/sqrt(head_dim).
        dropout_p: applied to the weights; the statistics and the returned weights are those before it.
        statistics: "none", "sum" (S) or "sum+entropy" (S and T).

    Raises:
        ValueError: unknown activation, or a row scale for an activation whose rows sum to one.
        ImportError: sparsemax or entmax15 without the package `entmax`.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if (group := query.shape[1] // key.shape[1]) > 1:
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    scores = torch.matmul(query * scale, key.transpose(-1, -2))
    if activation in POINTWISE:
        weights = POINTWISE[activation](scores)
        if mask is not None:
            # `where`, not an additive mask: gelu(-inf) and identity(-inf) are not zero
            weights = torch.where(mask, weights, weights.new_zeros(()))
        if row_scale is not None:
            weights = weights * row_scale.unsqueeze(-1).to(weights.dtype)
    else:
        if row_scale is not None:
            raise ValueError(
                f"row_scale was given for {activation!r}, whose rows sum to one; it is for {', '.join(POINTWISE)}."
            )
        weights = _normalized_weights(scores, activation, mask)
    row_sum, row_sum_log = _row_statistics(weights, statistics)
    dropped = nn.functional.dropout(weights, p=dropout_p) if dropout_p > 0 else weights
    return AttentionResult(torch.matmul(dropped.to(value.dtype), value), weights, row_sum, row_sum_log)


def _normalized_weights(scores: Tensor, activation: str, mask: Tensor | None) -> Tensor:
    if activation not in ("softmax", "sparsemax", "entmax15"):
        raise ValueError(
            f"attention activation {activation!r} is unknown; choose one of {', '.join(POINTWISE)}, softmax, sparsemax, entmax15."
        )
    if activation == "softmax":
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=-1)
    elif sparsemax is None:
        raise ImportError(f"attention activation {activation!r} needs the package entmax: pip install entmax.")
    else:
        normalize = sparsemax if activation == "sparsemax" else entmax15
        # Both search a threshold by sums of scores and of their squares. Half precision is too coarse for that, and so are
        # sums with the huge negative numbers of a mask. A score 2 below the highest gets no weight from either, so 4 below
        # hides a key exactly.
        wide = scores.float() if scores.dtype.itemsize < 4 else scores
        if mask is not None:
            highest = wide.masked_fill(~mask, torch.finfo(wide.dtype).min).amax(dim=-1, keepdim=True)
            wide = torch.where(mask, wide, highest - 4)
        weights = normalize(wide, dim=-1).to(scores.dtype)
    # A row that sees nothing gives zeros, as with every point-wise activation, not the mean over its padding.
    return weights if mask is None else torch.where(mask, weights, weights.new_zeros(()))


def _row_statistics(weights: Tensor, statistics: str) -> tuple[Tensor | None, Tensor | None]:
    if statistics == "none":
        return None, None
    if statistics not in ("sum", "sum+entropy"):
        raise ValueError(f"statistics={statistics!r} is unknown; choose one of none, sum, sum+entropy.")
    weights = weights.float() if weights.dtype.itemsize < 4 else weights
    row_sum = weights.sum(-1)
    if statistics == "sum":
        return row_sum, None
    # s·log s with a clamped logarithm: xlogy and friends have NaN gradients at 0
    logarithm = torch.log(weights.clamp_min(torch.finfo(torch.float32).tiny))
    return row_sum, (weights * logarithm).sum(-1)
