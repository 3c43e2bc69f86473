"""Inputs of `relu_attention`, and the float64 reference's answer to them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from reluformer.attention_reference import reference_attention
from reluformer.visibility_reluformer import Visibility

# Lengths around the tiles' borders, and the widths of heads that are in use.
LENGTHS = (1, 15, 63, 64, 65, 127, 129, 257, 1025)
WIDTHS = (32, 64, 80, 96, 128)


class Inputs(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    row_scale: Tensor

    def leaves(self, dtype: torch.dtype | None = None) -> Inputs:
        """The same numbers as leaves of a graph; the row scale is never narrower than float32."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        dtypes = (dtype, dtype, dtype, None if dtype is None else wide)
        return Inputs(
            *(
                tensor.detach().to(kind or tensor.dtype).requires_grad_()
                for tensor, kind in zip(self, dtypes, strict=True)
            )
        )


def random_inputs(
    batch: int = 2,
    heads: int = 2,
    queries: int = 33,
    keys: int | None = None,
    head_dim: int = 8,
    key_heads: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Inputs:
    """Row scales of ReLUFormer's size, so that outputs stay near 1 at any length.

    In float32, queries and keys are multiples of 1/4: with a scale that is a power of two, scores are exact. The gradient of
    T holds log u, and the rounding of a score of 1e-6 would change it by as much as the mistakes that these tests look for.
    """
    keys = queries if keys is None else keys
    query = torch.randn(batch, heads, queries, head_dim, dtype=dtype)
    key, value = (torch.randn(batch, key_heads or heads, keys, head_dim, dtype=dtype) for _ in range(2))
    if dtype == torch.float32:
        query, key = (query * 4).round() / 4, (key * 4).round() / 4
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    row_scale = (torch.rand(batch, heads, queries, dtype=wide) + 0.5) / max(1, keys) ** 0.5
    return Inputs(query, key, value, row_scale)


def reference(
    inputs: Inputs, visibility: Visibility, activation: str, statistics: str, scale: float | None = None
) -> tuple[Tensor, ...]:
    """Output, and the statistics asked for, in the dtype of the inputs, differentiable in all four."""
    group = inputs.query.shape[1] // inputs.key.shape[1]
    result = reference_attention(
        inputs.query,
        inputs.key.repeat_interleave(group, dim=1),
        inputs.value.repeat_interleave(group, dim=1),
        activation=activation,
        mask=visibility.dense(inputs.query.shape[2], inputs.key.shape[2], inputs.query.device),
        row_scale=inputs.row_scale,
        scale=scale,
        statistics=statistics,
    )
    return tuple(item for item in (result.output, result.row_sum, result.row_sum_log) if item is not None)


def as_tuple(found: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def gradients(results: tuple[Tensor, ...], leaves: Inputs, seed: int = 1) -> tuple[Tensor, ...]:
    """Of a sum of all results, each weighted by the same random numbers whatever its dtype."""
    generator = torch.Generator().manual_seed(seed)
    loss = sum(
        (item * torch.randn(item.shape, generator=generator, dtype=torch.float64).to(item.dtype)).sum()
        for item in results
    )
    return torch.autograd.grad(loss, leaves)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference, relative to that of what is expected."""
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm().clamp_min(1e-30))
