"""Inputs of `relu_attention`, and the float64 reference's answer to them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from reluformer import relu_attention
from reluformer.modeling_reluformer.attention_reference import reference_attention
from reluformer.modeling_reluformer.visibility_reluformer import Visibility

# Lengths around the tiles' borders, and the widths of heads that are in use.
LENGTHS = (1, 15, 63, 64, 65, 127, 129, 257, 1025)
WIDTHS = (32, 64, 80, 96, 128)
# Rounding: float64 and float32 sums of up to 1,025 terms; the gradients add two more sums.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
SCALE = 0.25  # a power of two, see `random_inputs`


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


def masks(batch: int, queries: int, keys: int):
    """Each kind of visibility, as `relu_attention` takes it."""
    left, right, holes = (torch.ones(batch, keys, dtype=torch.bool) for _ in range(3))
    left[-1, : keys // 2] = False
    right[0, keys - keys // 3 :] = False
    holes[0, 1::3] = False
    offset = max(0, keys - queries)
    yield {}
    yield {"key_padding_mask": left}
    yield {"key_padding_mask": right}
    yield {"key_padding_mask": holes}
    yield {"key_padding_mask": torch.zeros_like(left)}
    yield {"causal": True, "query_offset": offset}
    yield {"causal": True, "query_offset": -2}
    yield {"causal": True, "query_offset": torch.tensor(1), "key_padding_mask": left}


def assert_equals_reference(inputs: Inputs, mask: dict, activation: str = "relu", statistics: str = "sum+entropy"):
    found_leaves, expected_leaves = inputs.leaves(), inputs.leaves(torch.float64)
    found = as_tuple(
        relu_attention(
            *found_leaves[:3],
            row_scale=found_leaves[3],
            activation=activation,
            scale=SCALE,
            statistics=statistics,
            **mask,
        )
    )
    visibility = Visibility(mask.get("key_padding_mask"), mask.get("causal", False), mask.get("query_offset", 0))
    expected = reference(expected_leaves, visibility, activation, statistics, SCALE)
    names = [*("output", "S", "T")[: len(found)], "query", "key", "value", "row_scale"]
    results = (*found, *gradients(found, found_leaves))
    wanted = (*expected, *gradients(expected, expected_leaves))
    for name, one, other in zip(names, results, wanted, strict=True):
        assert one.shape == other.shape
        error = relative_error(one, other)
        assert error <= TOLERANCE[inputs.query.dtype], f"{name}: {error:.1e} with {mask}"


def assert_a_value_that_is_not_finite_reaches_every_query_that_sees_it(queries: int, dtype: torch.dtype) -> None:
    """Whatever its weight. Heads of 84 features: 64, 16 and 4 of them go different ways in the compiled loop."""
    inputs = random_inputs(queries=queries, keys=40, head_dim=84, dtype=dtype)
    for feature, value in ((0, torch.nan), (70, torch.inf), (82, torch.nan)):
        inputs.value[0, 1, 3, feature] = value
    expected = reference(inputs.leaves(torch.float64), Visibility(), "relu", "none")[0].isfinite()
    assert int((~expected).sum()) == 3 * queries
    found = relu_attention(*inputs[:3], row_scale=inputs.row_scale)
    assert torch.equal(found.isfinite(), expected)
    causal = relu_attention(*inputs[:3], row_scale=inputs.row_scale, causal=True, query_offset=3)
    assert not causal[0, 1][:, [0, 70, 82]].isfinite().any()


def attend(query: Tensor, key: Tensor, value: Tensor, row_scale: Tensor, **options) -> tuple[Tensor, ...]:
    return relu_attention(query, key, value, row_scale=row_scale, statistics="sum+entropy", **options)


def assert_compiles_without_a_break(inputs: Inputs, **options) -> None:
    """To what it computes uncompiled, forward and backward, bit by bit."""
    others = inputs.leaves()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    expected, found = attend(*inputs, **options), compiled(*others, **options)
    for one, other in zip((*expected, *gradients(expected, inputs)), (*found, *gradients(found, others)), strict=True):
        assert torch.equal(one, other)


def assert_checkpoint_draws_the_same_dropout(inputs: Inputs, reentrant: bool) -> None:
    others = inputs.leaves()

    def with_dropout(*tensors):
        return attend(*tensors, dropout_p=0.5)

    torch.manual_seed(7)
    expected = with_dropout(*inputs)
    torch.manual_seed(7)
    found = checkpoint(with_dropout, *others, use_reentrant=reentrant)
    sum(item.sum() for item in expected).backward()
    sum(item.sum() for item in found).backward()
    for one, other in zip(inputs, others, strict=True):
        assert torch.equal(one.grad, other.grad)


def assert_nothing_is_read_before_it_is_written(queries: int, keys: int, dtype: torch.dtype = torch.float64) -> None:
    """With every mask, under the setting by which torch fills new memory with NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        for mask in masks(2, queries, keys):
            assert_equals_reference(random_inputs(queries=queries, keys=keys, dtype=dtype), mask)
    finally:
        torch.use_deterministic_algorithms(False)
