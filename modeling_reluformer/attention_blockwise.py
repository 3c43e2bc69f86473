"""Point-wise attention in blocks of queries: memory grows with the length, not with its square; exact gradients.

Any device, plain PyTorch; on a CPU the heads are shared out among threads. A block of queries meets all the keys that it can
see in one product, and the backward pass computes the scores again. With u_ij = h(x_ij), x_ij = c q_i·k_j, dropout D and
the row scale r_i applied once per row, after the sums (before them for float16, whose range is small):

    O_i = r_i sum_j D_ij u_ij v_j     S_i = r_i sum_j u_ij     T_i = r_i (sum_j u_ij log u_ij + log r_i sum_j u_ij)

    dU_ij = r_i (D_ij dO_i·v_j + rho_i + tau_i log u_ij)        dX_ij = h'(x_ij) dU_ij
    dq_i = c sum_j dX_ij k_j     dk_j = c sum_i dX_ij q_i     dv_j = sum_i r_i D_ij u_ij dO_i

with rho_i = gS_i + gT_i (1 + log r_i) and tau_i = gT_i of the gradients of S and T. The gradient of r needs no scores and is
taken by the caller.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from .attention_activations import POINTWISE
from .attention_products import activate, are_finite, differentiate, product, steady_allocator, uses_onednn
from .attention_workers import for_each

STATISTICS = ("none", "sum", "sum+entropy")
# A block of scores should stay in the processor's cache: 2 MiB, or 512 queries if that is less (benchmarks/NOTES.md).
BYTES_PER_BLOCK = 2**21
LARGEST_BLOCK, SMALLEST_BLOCK = 512, 16


@dataclass(frozen=True)
class Settings:
    """What both passes of one call have in common."""

    activation: str
    scale: float
    causal: bool
    query_offset: int
    dropout_p: float
    seed: int
    statistics: str
    bytes_per_score: int


class _Piece(NamedTuple):
    """One head of keys of one sequence, with the query heads that share it."""

    index: int
    batch: int
    key_head: int
    query_heads: range
    queries: slice
    keys: slice


class _Block(NamedTuple):
    """Some queries of one head and how many keys of the sequence they can see together."""

    head: int
    rows: slice
    first: int
    seen: int
    seed: int


class _Columns(NamedTuple):
    """Keys and values of one piece, (keys, head_dim) each.

    visible: (keys,), which keys are real; None where the others get no weight anyway.
    finite: no NaN can get lost in the ReLU inside a product.
    """

    keys: Tensor
    values: Tensor
    visible: Tensor | None
    finite: bool


def blockwise_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_scale: Tensor | None,
    key_padding_mask: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    settings: Settings,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Output (batch, heads, queries, head_dim), S and T (batch, heads, queries) or None; shapes as in `relu_attention`."""
    steady_allocator()
    output = empty_like_heads(query, value.shape[-1])
    statistic = functools.partial(query.new_empty, query.shape[:3], dtype=wide(query.dtype))
    row_sum = None if settings.statistics == "none" else statistic()
    row_sum_log = statistic() if settings.statistics == "sum+entropy" else None

    def attend(piece: _Piece) -> None:
        columns = _columns(piece, query, key, value, key_padding_mask, settings)
        for block in _blocks(piece, columns.keys.shape[0], settings):
            where = piece.batch, block.head, block.rows
            scale = _row_scale(row_scale, *where)
            weights, _ = _weights(query[where] * settings.scale, columns, block, settings)
            _store_statistics(weights, scale, where, row_sum, row_sum_log)
            if settings.dropout_p > 0:
                weights = weights.mul_(_dropout(weights, block.seed, settings))
            if scale is not None and scales_first(weights.dtype):
                weights, scale = weights.mul_(scale.to(weights.dtype)), None
            attended = product(weights, columns.values[: block.seen].t())
            if scale is None:
                output[where] = attended
            else:
                torch.mul(attended, scale.to(attended.dtype), out=output[where])

    pieces = _pieces(query, key, cu_seqlens_q, cu_seqlens_k)
    for_each(attend, pieces, work=_work(pieces, query, settings, products=2))
    return output, row_sum, row_sum_log


def blockwise_backward(
    grad_output: Tensor,
    grad_sum: Tensor | None,
    grad_sum_log: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_scale: Tensor | None,
    key_padding_mask: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    settings: Settings,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value. grad_sum: of S, grad_sum_log: of T, (batch, heads, queries) or None."""
    grad_query, grad_key, grad_value = empty_like_heads(query), empty_like_heads(key), empty_like_heads(value)

    def attend(piece: _Piece) -> None:
        columns = _columns(piece, query, key, value, key_padding_mask, settings)
        keys, values = columns.keys, columns.values
        length = piece.keys.stop - piece.keys.start
        key_sum, value_sum = _Sum(keys, length), _Sum(values, length)
        for block in _blocks(piece, keys.shape[0], settings):
            where = piece.batch, block.head, block.rows
            scale = _row_scale(row_scale, *where)
            scaled_query = query[where] * settings.scale
            incoming = grad_output[where]
            incoming = incoming.contiguous() if scale is None else incoming * scale.to(incoming.dtype)
            weights, scores = _weights(scaled_query, columns, block, settings)
            gradient = product(incoming, values[: block.seen])
            dropped = weights
            if settings.dropout_p > 0:
                mask = _dropout(weights, block.seed, settings)
                gradient, dropped = gradient.mul_(mask), weights * mask
            _add_gains(gradient, weights, scale, grad_sum, grad_sum_log, where)
            gradient = differentiate(settings.activation, gradient, weights, scores)
            if scores is not None:
                _hide(gradient, columns.visible, block, settings)
            grad_query[where] = product(gradient, keys[: block.seen].t()).mul_(settings.scale)
            key_sum.add(product(scaled_query.t(), gradient.t()), block.seen)
            value_sum.add(product(incoming.t(), dropped.t()), block.seen)
        grad_key[piece.batch, piece.key_head, piece.keys] = key_sum.transposed.t()
        grad_value[piece.batch, piece.key_head, piece.keys] = value_sum.transposed.t()

    pieces = _pieces(query, key, cu_seqlens_q, cu_seqlens_k)
    for_each(attend, pieces, work=_work(pieces, query, settings, products=5))
    return grad_query, grad_key, grad_value


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of row scales and statistics: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def scales_first(dtype: torch.dtype) -> bool:
    """Whether the row scale comes before the sum over the keys: float16 cannot hold a sum above 65,504.

    Elsewhere the row scale comes after the sum, once a row instead of once a weight.
    """
    return dtype == torch.float16


def block_limits() -> tuple[int, int, int]:
    """Bytes of scores in a block, and the most and the fewest queries."""
    return BYTES_PER_BLOCK, LARGEST_BLOCK, SMALLEST_BLOCK


def block_size(keys: int, bytes_per_score: int) -> int:
    """Queries in a block that meets so many keys."""
    most_bytes, most, fewest = block_limits()
    return min(most, max(fewest, most_bytes // (bytes_per_score * max(1, keys))))


def empty_like_heads(tensor: Tensor, features: int | None = None) -> Tensor:
    """(batch, heads, length, features), with a token's heads side by side in memory, as the projections want them.

    features: the last size, if not that of `tensor`.
    """
    batch, heads, length, own = tensor.shape
    return tensor.new_empty(batch, length, heads, own if features is None else features).transpose(1, 2)


class _Sum:
    """Sum over blocks of queries, (features, length), in float32 at least; zero for keys that no query sees."""

    def __init__(self, like: Tensor, length: int) -> None:
        self.transposed = like.new_zeros(like.shape[1], length, dtype=wide(like.dtype))

    def add(self, part: Tensor, seen: int) -> None:
        self.transposed[:, :seen] += part


def _pieces(query: Tensor, key: Tensor, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None) -> list[_Piece]:
    batch, heads, queries, _ = query.shape
    key_heads, keys = key.shape[1:3]
    if cu_seqlens_q is None:
        spans = [(b, slice(0, queries), slice(0, keys)) for b in range(batch)]
    else:
        edges = list(zip(cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), strict=True))
        spans = [(0, slice(q0, q1), slice(k0, k1)) for (q0, k0), (q1, k1) in pairwise(edges)]
    group = heads // key_heads
    return [
        _Piece(span * key_heads + head, b, head, range(head * group, (head + 1) * group), rows, columns)
        for span, (b, rows, columns) in enumerate(spans)
        for head in range(key_heads)
    ]


def _work(pieces: list[_Piece], query: Tensor, settings: Settings, products: int) -> int:
    """About how many multiplications and additions so many products of all pieces take.

    A logarithm costs as much as a product and is taken once for two or three of them. A causal product counts half. Padding
    is not known here and counts in full.
    """
    if settings.statistics == "sum+entropy":
        products += products // 2
    scores = sum(
        len(piece.query_heads) * (piece.queries.stop - piece.queries.start) * (piece.keys.stop - piece.keys.start)
        for piece in pieces
    )
    return 2 * products * query.shape[-1] * scores // (2 if settings.causal else 1)


def _blocks(piece: _Piece, keys: int, settings: Settings) -> list[_Block]:
    """`keys` is the length of the sequence without the padding at its end."""
    start, stop = piece.queries.start, piece.queries.stop
    size = block_size(keys, settings.bytes_per_score)
    blocks = []
    for head in piece.query_heads:
        for number, first in enumerate(range(start, stop, size)):
            rows = slice(first, min(first + size, stop))
            seen = keys
            if settings.causal:
                seen = max(0, min(keys, rows.stop - start + settings.query_offset))
            # the hash of a tuple of integers is the same in every process: each block has a stream of its own
            seed = hash((settings.seed, piece.index, head, number)) % 2**63
            blocks.append(_Block(head, rows, first - start, seen, seed))
    return blocks


def _columns(
    piece: _Piece, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None, settings: Settings
) -> _Columns:
    """Keys and values of one piece, side by side in memory.

    The worker itself looks for NaN. Sums over all heads in the caller's thread would leave OpenMP's threads spinning on the
    processors that the workers need, which halves the workers' speed (benchmarks/NOTES.md).
    """
    keys, values, visible = _real_keys(piece, key, value, key_padding_mask)
    if POINTWISE[settings.activation].closed_at_zero:
        visible = None  # keys of zeros have scores of zero
    finite = True
    if settings.activation == "relu" and uses_onednn(query):
        queries = query[piece.batch, piece.query_heads.start : piece.query_heads.stop, piece.queries]
        finite = are_finite(queries, keys)
    return _Columns(keys, values, visible, finite)


def _real_keys(
    piece: _Piece, key: Tensor, value: Tensor, key_padding_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys and values up to the last real key, and which keys are real where some are not. Those that are not become zeros."""
    keys, values = key[piece.batch, piece.key_head, piece.keys], value[piece.batch, piece.key_head, piece.keys]
    if key_padding_mask is None:
        return keys.contiguous(), values.contiguous(), None
    real = key_padding_mask[piece.batch, piece.keys]
    positions = real.nonzero()
    end = 0 if positions.numel() == 0 else int(positions[-1]) + 1
    keys, values, real = keys[:end], values[:end], real[:end]
    if positions.numel() == end:
        return keys.contiguous(), values.contiguous(), None
    return keys.masked_fill(~real.unsqueeze(-1), 0.0), values.contiguous(), real


def _row_scale(row_scale: Tensor | None, batch: int, head: int, rows: slice) -> Tensor | None:
    if row_scale is None:
        return None
    return row_scale[batch, head if row_scale.shape[1] > 1 else 0, rows].unsqueeze(-1)


def _weights(
    scaled_query: Tensor, columns: _Columns, block: _Block, settings: Settings
) -> tuple[Tensor, Tensor | None]:
    """u (rows, seen), and the scores where the derivative of the activation needs them."""
    weights, scores = activate(settings.activation, scaled_query, columns.keys[: block.seen], columns.finite)
    _hide(weights, columns.visible, block, settings)
    return weights, scores


def _hide(scores: Tensor, visible: Tensor | None, block: _Block, settings: Settings) -> None:
    """Puts zeros, in place, where the key is not visible."""
    if visible is not None:
        scores.masked_fill_(~visible[: block.seen], 0.0)
    if settings.causal:
        # row i of the block sees the keys up to first + i + offset, so every row sees what lies left of `start`
        start = max(0, block.first + settings.query_offset)
        scores[:, start:].tril_(block.first + settings.query_offset - start)


def _store_statistics(
    weights: Tensor,
    scale: Tensor | None,
    where: tuple[int, int, slice],
    row_sum: Tensor | None,
    row_sum_log: Tensor | None,
) -> None:
    if row_sum is None:
        return
    weights = weights.to(row_sum.dtype)
    total = weights.sum(1)
    row_sum[where] = total if scale is None else total * scale.squeeze(1)
    if row_sum_log is None:
        return
    logarithms = _logarithm(weights)
    total_log = logarithms.mul_(weights).sum(1)
    if scale is not None:
        scale = scale.squeeze(1)
        total_log = scale * (total_log + scale.log() * total)
    row_sum_log[where] = total_log


def _logarithm(weights: Tensor) -> Tensor:
    """log u, finite at u = 0, where it meets a factor of zero or a closed gate."""
    return weights.clamp_min(torch.finfo(torch.float32).tiny).log_()


def _add_gains(
    gradient: Tensor,
    weights: Tensor,
    scale: Tensor | None,
    grad_sum: Tensor | None,
    grad_sum_log: Tensor | None,
    where: tuple[int, int, slice],
) -> None:
    """Adds r_i (rho_i + tau_i log u_ij) to the gradient of the weights, in place."""
    if grad_sum is None:
        return
    rho = grad_sum[where].unsqueeze(-1)
    tau = None if grad_sum_log is None else grad_sum_log[where].unsqueeze(-1)
    if tau is not None:
        rho = rho + tau * (1.0 if scale is None else 1.0 + scale.log())
    gradient.add_((rho if scale is None else rho * scale).to(gradient.dtype))
    # Without a row above the entropy margin, no logarithm is needed.
    if tau is not None and tau.any():
        tau = tau if scale is None else tau * scale
        # products of mixed dtypes are many times slower
        gradient.add_(_logarithm(weights.to(tau.dtype)).mul_(tau).to(gradient.dtype))


def _dropout(weights: Tensor, seed: int, settings: Settings) -> Tensor:
    """The mask of one block, 0 or 1/(1-p): the same in both passes, whichever thread draws it."""
    generator = torch.Generator(weights.device).manual_seed(seed)
    keep = 1.0 - settings.dropout_p
    return torch.empty_like(weights).bernoulli_(keep, generator=generator).div_(keep)
