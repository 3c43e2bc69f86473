"""Inputs of `relu_attention`, the float64 reference's answer to them, and the paths that must give the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import reluformer.modeling_reluformer.fused.attention as fused
import reluformer.modeling_reluformer.fused.blockwise as blockwise
import reluformer.modeling_reluformer.fused.operator as operator
from reluformer import relu_attention
from reluformer.modeling_reluformer.attention_reluformer import reference_attention
from reluformer.modeling_reluformer.compiled.library import library

from ..cases import python_loop

NAMES = ("output", "S", "T", "query", "key", "value", "row_scale")
# Rounding: sums of up to 1,025 terms; the gradients add two more sums.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}
SCALE = 0.25  # a power of two, see `random_inputs`
# Where the Triton kernels run: on a GPU, or in the interpreter, in a process that was started for it.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TRITON = ["triton"] if INTERPRETED or torch.cuda.is_available() else []


class Inputs(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    row_scale: Tensor

    def leaves(self, dtype: torch.dtype | None = None) -> Inputs:
        """The same numbers as leaves of a graph; the row scale is never narrower than float32."""
        wide = self.row_scale.dtype if dtype is None else torch.promote_types(dtype, torch.float32)
        dtypes = (*(tensor.dtype if dtype is None else dtype for tensor in self[:3]), wide)
        return Inputs(*(item.detach().to(kind).requires_grad_() for item, kind in zip(self, dtypes, strict=True)))


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

    Queries and keys are multiples of 1/4: with a scale that is a power of two, scores are exact. The gradient of T
    holds log u, and the rounding of a score of 1e-6 would change it by as much as the mistakes that these tests look
    for.
    """
    keys = queries if keys is None else keys
    query = torch.randn(batch, heads, queries, head_dim)
    key, value = (torch.randn(batch, key_heads or heads, keys, head_dim) for _ in range(2))
    query, key = ((tensor * 4).round() / 4 for tensor in (query, key))
    row_scale = (torch.rand(batch, heads, queries) + 0.5) / max(1, keys) ** 0.5
    wide = torch.promote_types(dtype, torch.float32)
    return Inputs(query.to(dtype), key.to(dtype), value.to(dtype), row_scale.to(wide))


class Path(NamedTuple):
    name: str
    dtype: torch.dtype

    @property
    def is_slow(self) -> bool:
        """Triton's interpreter, to which large problems are not given."""
        return self.name == "triton" and INTERPRETED


def forced_path(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Only this path computes: plain products, blocks of a few queries, Triton, or the compiled loop with an
    instruction set."""
    torch.manual_seed(0)
    if name == "triton":
        monkeypatch.setattr(fused, "compiled_operator", lambda *call: None)
        monkeypatch.setattr(fused, "_is_small", lambda *call: False)
        monkeypatch.setattr(fused, "operator_for", lambda query: operator._LaunchedAttention.apply)
        monkeypatch.setattr(operator, "on_cuda", lambda query: True)
        with torch.device("cpu" if INTERPRETED else "cuda"):
            yield Path(name, torch.float32)
        return
    if name in ("plain", "blocks"):
        monkeypatch.setattr(fused, "_is_small", lambda *call: name == "plain")
        monkeypatch.setattr(blockwise, "BYTES_PER_BLOCK", 0)
        monkeypatch.setattr(blockwise, "SMALLEST_BLOCK", 24)
        with python_loop():
            yield Path(name, torch.float64)
        return
    operators = library(large=True)
    sets = [] if operators is None else operators.instruction_sets()
    if name not in sets or not operators.supports(torch.float32):
        pytest.skip(f"the compiled library cannot be built here, or the processor has no {name}")
    for other in ("_is_small", "operator_for"):
        monkeypatch.setattr(fused, other, None)
    assert operators.choose_instruction_set(name) == name
    yield Path(name, torch.float32)
    operators.choose_instruction_set(sets[0])


def masks(batch: int, queries: int, keys: int) -> Iterator[dict[str, Any]]:
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
    yield {"causal": True, "query_offset": 2**40}
    yield {"causal": True, "query_offset": torch.tensor(-(2**40))}
    yield {"causal": True, "query_offset": torch.tensor(1), "key_padding_mask": left}


def windows(batch: int, queries: int, keys: int) -> Iterator[dict[str, Any]]:
    """Sliding windows, of causal calls: of one key, shorter and longer than the keys, with either padding, before and
    behind the keys."""
    left, right = (torch.ones(batch, keys, dtype=torch.bool) for _ in range(2))
    left[-1, : keys // 2] = False
    right[0, keys - keys // 3 :] = False
    offset = max(0, keys - queries)
    yield {"window": 1}
    yield {"window": 1, "query_offset": offset, "key_padding_mask": right}
    yield {"window": 7, "query_offset": offset, "key_padding_mask": left}
    yield {"window": 7, "query_offset": torch.tensor(1), "key_padding_mask": right}
    yield {"window": 20, "query_offset": -3}
    yield {"window": max(1, keys // 3), "query_offset": offset}
    yield {"window": keys + queries, "query_offset": offset}
    yield {"window": 2**62, "query_offset": 10**6}
    yield {"window": 5, "query_offset": keys + 2}  # no query sees a key


def visible_pairs(
    shape: Sequence[int],
    causal: bool = False,
    query_offset: int | Tensor = 0,
    window: int | None = None,
    key_padding_mask: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> Tensor:
    """The rule of visibility written out: shape (batch, queries, keys) → boolean (batch, 1, queries, keys)."""
    batch, queries, keys = shape
    row, column = torch.arange(queries), torch.arange(keys)
    seen = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
    if cu_seqlens_q is not None:
        of_row, of_column = (
            torch.bucketize(place, ends[1:], right=True)
            for place, ends in ((row, cu_seqlens_q), (column, cu_seqlens_k))
        )
        seen &= of_row[:, None] == of_column[None, :]
        row, column = row - cu_seqlens_q[of_row], column - cu_seqlens_k[of_column]
    if causal:
        seen &= column[None, :] <= row[:, None] + query_offset
    if window is not None:
        seen &= column[None, :] > row[:, None] + query_offset - window
    return seen if key_padding_mask is None else seen & key_padding_mask[:, None, None, :]


def results(function: Callable[..., Any], leaves: Sequence[Tensor], seed: int = 1) -> tuple[Tensor, ...]:
    """What a function returns, and the gradients of a sum of it, weighted by the same random numbers whatever its
    dtype."""
    found = function(*leaves)
    found = found if isinstance(found, tuple) else (found,)
    generator = torch.Generator().manual_seed(seed)
    noise = [torch.randn(item.shape, generator=generator, dtype=torch.float64, device="cpu") for item in found]
    loss = sum((item * one.to(item)).sum() for item, one in zip(found, noise, strict=True))
    return *(item.detach() for item in found), *torch.autograd.grad(loss, leaves)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference, relative to that of what is expected."""
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm().clamp_min(1e-30))


def reference(
    query: Tensor, key: Tensor, value: Tensor, row_scale: Tensor, *, seen: Tensor, **options: Any
) -> tuple[Tensor, ...]:
    """Output, then the statistics asked for."""
    result = reference_attention(query, key, value, mask=seen, row_scale=row_scale, **options)
    return tuple(item for item in (result.output, result.row_sum, result.row_sum_log) if item is not None)


def by_reference(inputs: Inputs, mask: dict[str, Any], **options: Any) -> tuple[Tensor, ...]:
    """Its `results` in float64."""
    seen = visible_pairs((inputs.query.shape[0], inputs.query.shape[2], inputs.key.shape[2]), **mask)
    options = {"scale": SCALE, **options, "seen": seen}
    return results(lambda *tensors: reference(*tensors, **options), inputs.leaves(torch.float64))


def by_relu_attention(inputs: Inputs, mask: dict[str, Any], **options: Any) -> tuple[Tensor, ...]:
    """Its `results` in the dtype of the inputs."""
    options = {"scale": SCALE, **mask, **options}
    return results(lambda *tensors: relu_attention(*tensors[:3], row_scale=tensors[3], **options), inputs.leaves())


def assert_equals_reference(
    inputs: Inputs, mask: dict[str, Any], activation: str = "relu", statistics: str = "sum+entropy"
) -> None:
    options = {"activation": activation, "statistics": statistics}
    found, expected = by_relu_attention(inputs, mask, **options), by_reference(inputs, mask, **options)
    names = NAMES[: len(found) - 4] + NAMES[3:]
    for name, one, other in zip(names, found, expected, strict=True):
        assert one.shape == other.shape
        error = relative_error(one, other)
        assert error <= TOLERANCE[inputs.query.dtype], f"{name}: {error:.1e} with {mask}"
