"""Point-wise attention in blocks of queries, in plain PyTorch: memory grows with the length, not its square; exact
gradients.

Any device and dtype: what neither the Triton kernels nor the compiled loop compute. A block of queries of all heads is
multiplied with all the keys that it can see, and the backward pass computes the scores again. With u_ij = h(x_ij),
x_ij = c q_i·k_j, dropout D and the row scale r_i applied once per row, after the sums (before them for float16, whose
range is small):

    O_i = r_i sum_j D_ij u_ij v_j     S_i = r_i sum_j u_ij     T_i = r_i (sum_j u_ij log u_ij + log r_i sum_j u_ij)

    dU_ij = r_i (D_ij dO_i·v_j + rho_i + tau_i log u_ij)        dX_ij = h'(x_ij) dU_ij
    dq_i = c sum_j dX_ij k_j     dk_j = c sum_i dX_ij q_i     dv_j = sum_i r_i D_ij u_ij dO_i

with rho_i = gS_i + gT_i (1 + log r_i) and tau_i = gT_i of the gradients of S and T. The gradient of r needs no scores
and is taken by the caller.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..attention_reluformer import POINTWISE, wide
from .activations import ACTIVATIONS
from .specification import Specification

# Of the scores of a block, all heads together, unless 16 queries need more.
BYTES_PER_BLOCK = 2**23
SMALLEST_BLOCK = 16


class _Block(NamedTuple):
    """Some queries of one sequence, and the keys that they see together.

    number: of the block. last_key: the last one that the first query sees, from the start of `keys`; None if not
    causal. window: see `relu_attention`. hidden: padding among the keys, boolean (batch, 1, 1, keys). scale: r, (batch,
    1 or heads, rows, 1).
    """

    rows: slice
    keys: slice
    number: int
    last_key: int | None
    window: int | None
    hidden: Tensor | None
    scale: Tensor | None

    def visible(self, tensor: Tensor, group: int) -> Tensor:
        """The keys or values of the block, (batch, heads, keys, head_dim), repeated where heads share them.

        What padding holds, NaN for one, must not reach a product.
        """
        tensor = tensor[:, :, self.keys]
        if self.hidden is not None:
            tensor = tensor.masked_fill(self.hidden.mT, 0.0)
        return tensor.repeat_interleave(group, dim=1)

    def hide(self, weights: Tensor) -> Tensor:
        """Puts zeros, in place, where the key is not visible."""
        if self.hidden is not None:
            weights.masked_fill_(self.hidden, 0.0)
        if self.last_key is not None:
            weights.tril_(self.last_key)
        if self.window is not None:
            weights.triu_(self.last_key - self.window + 1)
        return weights


def blockwise_forward(query: Tensor, key: Tensor, value: Tensor, specification: Specification) -> tuple[Tensor, ...]:
    """Output (batch, heads, queries, head_dim), and S and T (batch, heads, queries) where they are wanted; shapes as in
    `relu_attention`."""
    output = empty_like_heads(query, value.shape[-1])
    count = specification.statistics_count
    statistics = [query.new_empty(query.shape[:3], dtype=wide(query.dtype)) for _ in range(count)]
    group = query.shape[1] // key.shape[1]
    for block in _blocks(query, key, specification):
        keys, values = (block.visible(tensor, group) for tensor in (key, value))
        weights, _ = _weights(query[:, :, block.rows] * specification.scale, keys, block, specification)
        for statistic, of_block in zip(statistics, _statistics(weights, block.scale, count), strict=True):
            statistic[:, :, block.rows] = of_block
        if specification.dropout_p > 0:
            weights = weights.mul_(_dropout(weights, block, specification))
        scale = block.scale
        if scale is not None and weights.dtype == torch.float16:  # which cannot hold a sum above 65,504
            weights, scale = weights.mul_(scale.to(weights.dtype)), None
        attended = weights @ values
        output[:, :, block.rows] = attended if scale is None else attended * scale.to(attended.dtype)
    return output, *statistics


def blockwise_backward(
    grad_output: Tensor,
    grad_sum: Tensor | None,
    grad_sum_log: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    specification: Specification,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value. grad_sum: of S, grad_sum_log: of T, (batch, heads, queries) or None."""
    grad_query = empty_like_heads(query)
    # Sums over blocks of queries and over the heads that share keys, in float32 at least.
    key_sum, value_sum = (tensor.new_zeros(tensor.shape, dtype=wide(tensor.dtype)) for tensor in (key, value))
    group = query.shape[1] // key.shape[1]
    for block in _blocks(query, key, specification):
        keys, values = (block.visible(tensor, group) for tensor in (key, value))
        scaled_query, incoming = query[:, :, block.rows] * specification.scale, grad_output[:, :, block.rows]
        incoming = incoming if block.scale is None else incoming * block.scale.to(incoming.dtype)
        weights, scores = _weights(scaled_query, keys, block, specification)
        gradient, dropped = incoming @ values.mT, weights
        if specification.dropout_p > 0:
            mask = _dropout(weights, block, specification)
            gradient, dropped = gradient.mul_(mask), weights * mask
        _add_gains(gradient, weights, grad_sum, grad_sum_log, block)
        gradient = block.hide(ACTIVATIONS[specification.activation].backward(gradient, scores, weights))
        grad_query[:, :, block.rows] = (gradient @ keys).mul_(specification.scale)
        for total, part in ((key_sum, gradient.mT @ scaled_query), (value_sum, dropped.mT @ incoming)):
            total[:, :, block.keys] += part.unflatten(1, (-1, group)).sum(2, dtype=total.dtype)
    return grad_query, empty_like_heads(key).copy_(key_sum), empty_like_heads(value).copy_(value_sum)


def empty_like_heads(tensor: Tensor, features: int | None = None) -> Tensor:
    """(batch, heads, length, features), with a token's heads side by side in memory, as the projections want them.

    features: the last size, if not that of `tensor`.
    """
    batch, heads, length, own = tensor.shape
    return tensor.new_empty(batch, length, heads, own if features is None else features).transpose(1, 2)


def _blocks(query: Tensor, key: Tensor, specification: Specification) -> Iterator[_Block]:
    offset, mask, scale = int(specification.keys_before), specification.key_padding_mask, specification.row_scale
    number, window = itertools.count(), specification.window
    for start, stop, first_key, end_key in _sequences(query, key, specification):
        keys = end_key - first_key
        bytes_per_query = query.shape[0] * query.shape[1] * max(1, keys) * query.dtype.itemsize
        size = max(SMALLEST_BLOCK, BYTES_PER_BLOCK // bytes_per_query)
        for begin in range(start, stop, size):
            end, unseen, seen, last_key = min(begin + size, stop), 0, keys, None
            if specification.causal:
                last_key = begin - start + offset
                seen = max(0, min(keys, end - start + offset))
            if window is not None:
                unseen = max(0, min(seen, last_key - window + 1))
                last_key -= unseen
            columns = slice(first_key + unseen, first_key + seen)
            hidden = None if mask is None else ~mask[:, None, None, columns]
            row_scale = None if scale is None else scale[:, :, begin:end].unsqueeze(-1)
            yield _Block(slice(begin, end), columns, next(number), last_key, window, hidden, row_scale)


def _sequences(query: Tensor, key: Tensor, specification: Specification) -> list[tuple[int, int, int, int]]:
    """First query and end, first key and end of each packed sequence."""
    if specification.cu_seqlens_q is None:
        return [(0, query.shape[2], 0, key.shape[2])]
    edges = list(zip(specification.cu_seqlens_q.tolist(), specification.cu_seqlens_k.tolist(), strict=True))
    sequences = [(q0, q1, k0, k1) for (q0, k0), (q1, k1) in itertools.pairwise(edges)]
    ends = query.shape[2], key.shape[2]
    # a compiled graph has not looked at them
    if edges[0] != (0, 0) or edges[-1] != ends or any(q0 > q1 or k0 > k1 for q0, q1, k0, k1 in sequences):
        raise ValueError(f"cu_seqlens must rise from 0 to {ends}, the lengths of query and key; got {edges}.")
    return sequences


def _weights(scaled_query: Tensor, keys: Tensor, block: _Block, specification: Specification) -> tuple[Tensor, Tensor]:
    """u and the scores, (batch, heads, rows, keys)."""
    scores = scaled_query @ keys.mT
    weights = POINTWISE[specification.activation](scores)
    return block.hide(weights.clone() if weights is scores else weights), scores  # the weights are written to


def _statistics(weights: Tensor, scale: Tensor | None, count: int) -> list[Tensor]:
    """The first `count` of S and T, (batch, heads, rows)."""
    if count == 0:
        return []
    weights = weights.to(wide(weights.dtype))
    total = weights.sum(-1)
    scale = None if scale is None else scale.squeeze(-1)
    row_sum = total if scale is None else total * scale
    if count == 1:
        return [row_sum]
    total_log = _logarithm(weights).mul_(weights).sum(-1)
    return [row_sum, total_log if scale is None else scale * (total_log + scale.log() * total)]


def _logarithm(weights: Tensor) -> Tensor:
    """log u, finite at u = 0, where it is multiplied by zero or by a closed gate."""
    return weights.clamp_min(torch.finfo(torch.float32).tiny).log_()


def _add_gains(
    gradient: Tensor, weights: Tensor, grad_sum: Tensor | None, grad_sum_log: Tensor | None, block: _Block
) -> None:
    """Adds r_i (rho_i + tau_i log u_ij) to the gradient of the weights, in place."""
    if grad_sum is None:
        return
    scale = block.scale
    gain = grad_sum[:, :, block.rows].unsqueeze(-1)
    if grad_sum_log is not None:
        tau = grad_sum_log[:, :, block.rows].unsqueeze(-1)
        gain = gain + tau * (1.0 if scale is None else 1.0 + scale.log())
        if tau.any():  # without a row above the entropy margin, no logarithm is needed
            gain = gain + tau * _logarithm(weights.to(tau.dtype))
    gradient.add_((gain if scale is None else gain * scale).to(gradient.dtype))


def _dropout(weights: Tensor, block: _Block, specification: Specification) -> Tensor:
    """D of a block, 0 or 1/(1-p), like `weights`. Both passes draw it from the same seed, so that no mask is stored."""
    generator = torch.Generator(weights.device).manual_seed(int(specification.seed) + block.number)
    share = 1 - specification.dropout_p
    return torch.empty_like(weights).bernoulli_(share, generator=generator).div_(share)
