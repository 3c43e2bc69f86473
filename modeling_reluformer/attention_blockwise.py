"""Point-wise attention in blocks of queries: memory grows with the length, not with its square; exact gradients.

Each block of queries meets all the keys it can see in one product; blocks are recomputed in the backward pass. Where the
whole problem is as small as one block, it is computed at once, without recomputation.

The row scale is applied once per row, after the sums: with u_ij = h(c · q_i·k_j),

    O_i = r_i sum_j u_ij v_j     S_i = r_i sum_j u_ij     T_i = r_i (sum_j u_ij log u_ij + log r_i sum_j u_ij)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention_reference import POINTWISE, AttentionResult
from .visibility_reluformer import Visibility

# Scores held at a time: 2**22 float32 are 16 MiB.
SCORES_PER_BLOCK = 2**22
SMALLEST_BLOCK = 16


def blockwise_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    activation: str,
    visibility: Visibility,
    row_scale: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    statistics: str = "none",
    scores_per_block: int = SCORES_PER_BLOCK,
) -> AttentionResult:
    """The point-wise attention of `reference_attention` without its weights.

    Args:
        query: (batch, heads, queries, head_dim). key, value: (batch, heads, keys, head_dim).
        activation: a name of `POINTWISE`.
        visibility: which keys each query sees.
        row_scale: r_i, (batch, 1 or heads, queries); None is 1.
        scale: c; default 1/sqrt(head_dim).
        dropout_p: applied to the weights, after the statistics.
        statistics: "none", "sum" (S) or "sum+entropy" (S and T), each (batch, heads, queries).
        scores_per_block: how many scores may be in memory at a time.

    Raises:
        ValueError: an activation whose rows are normalised, or unknown statistics.
    """
    if activation not in POINTWISE:
        raise ValueError(f"fused attention computes {', '.join(POINTWISE)}; {activation!r} needs whole rows of scores.")
    if statistics not in ("none", "sum", "sum+entropy"):
        raise ValueError(f"statistics={statistics!r} is unknown; choose one of none, sum, sum+entropy.")
    batch, heads, queries, head_dim = query.shape
    query = query * (head_dim**-0.5 if scale is None else scale)
    keys = key.shape[2]
    block = max(SMALLEST_BLOCK, scores_per_block // max(1, batch * heads * keys))
    options = {"activation": activation, "dropout_p": dropout_p, "statistics": statistics}
    if queries <= block:
        return AttentionResult(
            *_attend(query, key, value, row_scale, visibility.dense(queries, keys, query.device), **options)
        )

    recompute = torch.is_grad_enabled()
    parts = []
    for start in range(0, queries, block):
        rows = slice(start, min(start + block, queries))
        mask = visibility.dense(rows.stop - start, keys, query.device, first_query=start)
        seen = visibility.last_visible_key(rows.stop, keys)
        arguments = (
            query[:, :, rows],
            key[:, :, :seen],
            value[:, :, :seen],
            None if row_scale is None else row_scale[:, :, rows],
            None if mask is None else mask[..., :seen],
        )
        if recompute:
            parts.append(
                checkpoint(_attend, *arguments, use_reentrant=False, preserve_rng_state=dropout_p > 0, **options)
            )
        else:
            parts.append(_attend(*arguments, **options))
    output, _, row_sum, row_sum_log = (
        None if column[0] is None else torch.cat(column, dim=2) for column in zip(*parts, strict=True)
    )
    return AttentionResult(output, None, row_sum, row_sum_log)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_scale: Tensor | None,
    mask: Tensor | None,
    *,
    activation: str,
    dropout_p: float,
    statistics: str,
) -> tuple[Tensor, None, Tensor | None, Tensor | None]:
    """One block of queries, already scaled by c, against keys that may all be visible (mask None) or not."""
    weights = POINTWISE[activation](torch.matmul(query, key.transpose(-1, -2)))
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    row_sum, row_sum_log = _scaled_statistics(weights, row_scale, statistics)
    if dropout_p > 0:
        weights = nn.functional.dropout(weights, p=dropout_p)
    output = torch.matmul(weights.to(value.dtype), value)
    if row_scale is not None:
        output = output * row_scale.unsqueeze(-1).to(output.dtype)
    return output, None, row_sum, row_sum_log


def _scaled_statistics(
    weights: Tensor, row_scale: Tensor | None, statistics: str
) -> tuple[Tensor | None, Tensor | None]:
    if statistics == "none":
        return None, None
    weights = weights.float() if weights.dtype.itemsize < 4 else weights
    row_scale = weights.new_ones(()) if row_scale is None else row_scale.to(weights.dtype)
    row_sum = row_scale * weights.sum(-1)
    if statistics == "sum":
        return row_sum, None
    # The clamped logarithm keeps the gradient of u·log u finite at u = 0.
    logarithm = torch.log(weights.clamp_min(torch.finfo(torch.float32).tiny))
    return row_sum, row_scale * (weights * logarithm).sum(-1) + torch.log(row_scale) * row_sum
