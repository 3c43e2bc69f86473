"""The operator behind `relu_attention`: `reluformer::pointwise_attention`, its device kernels, shapes and gradient.

The inputs are saved for the backward pass; output, S and T only where the row scale needs a gradient. With gS and gT, the
gradients of S and T:

    d r_i = [ dO_i·O_i + gS_i S_i + gT_i (T_i + S_i) ] / r_i
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..visibility_reluformer import wide
from .blockwise import STATISTICS, Settings, blockwise_backward, blockwise_forward, empty_like_heads

# A Hub kernel is a package of another name. It must not replace these operators.
NAMESPACE = (__package__ or "").partition(".")[0].replace("-", "_") or "reluformer"
_TENSORS = (
    "Tensor query, Tensor key, Tensor value, Tensor? row_scale, Tensor? key_padding_mask, Tensor? cu_seqlens_q, "
    "Tensor? cu_seqlens_k, Tensor? offset, Tensor? seed"
)
_OPTIONS = "str activation, float scale, bool causal, SymInt query_offset, float dropout_p, str statistics"
_TENSOR_COUNT = 9

# Finds the compiled operator for a call, given query, key and activation. The package sets it (`__init__`); a Hub kernel, which
# has the Python files alone, does without.
find_compiled: Callable[[Tensor, Tensor, str], Any | None] | None = None


def compiled_operator(query: Tensor, key: Tensor, activation: str) -> Any | None:
    """What computes a call on a CPU faster than the blockwise loop, with the same tensors and options; None: nothing does."""
    return None if find_compiled is None else find_compiled(query, key, activation)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_scale: Tensor | None,
    key_padding_mask: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    offset: Tensor | None,
    seed: Tensor | None,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    tensors = (query, key, value, row_scale, key_padding_mask, cu_seqlens_q, cu_seqlens_k)
    settings = _settings(offset, seed, *options)
    with torch.autocast(query.device.type, enabled=False):
        return _filled(*blockwise_forward(*tensors, settings))


def _forward_cuda(query: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    from .triton_launch import triton_forward  # imports Triton, which a CPU has no use for

    *tensors, offset, seed = arguments[: _TENSOR_COUNT - 1]
    return _filled(*triton_forward(query, *tensors, **_keywords(offset, seed, *arguments[_TENSOR_COUNT - 1 :])))


def forward_fake(query: Tensor, key: Tensor, value: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What the operator returns, without numbers: torch.compile asks for it, also of the compiled operator."""
    statistics = arguments[-1]
    output = empty_like_heads(query, value.shape[-1])
    statistic = query.new_empty(query.shape[:3], dtype=wide(query.dtype))
    return _filled(
        output,
        None if statistics == "none" else statistic,
        torch.empty_like(statistic) if statistics == "sum+entropy" else None,
    )


def _backward(
    grad_output: Tensor, grad_sum: Tensor | None, grad_sum_log: Tensor | None, query: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    *tensors, offset, seed = arguments[: _TENSOR_COUNT - 1]
    settings = _settings(offset, seed, *arguments[_TENSOR_COUNT - 1 :])
    with torch.autocast(query.device.type, enabled=False):
        return blockwise_backward(grad_output, grad_sum, grad_sum_log, query, *tensors, settings)


def _backward_cuda(
    grad_output: Tensor, grad_sum: Tensor | None, grad_sum_log: Tensor | None, query: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    from .triton_launch import triton_backward

    *tensors, offset, seed = arguments[: _TENSOR_COUNT - 1]
    keywords = _keywords(offset, seed, *arguments[_TENSOR_COUNT - 1 :])
    return triton_backward(grad_output, grad_sum, grad_sum_log, query, *tensors, **keywords)


def backward_fake(
    grad_output: Tensor, grad_sum: Any, grad_sum_log: Any, query: Tensor, key: Tensor, value: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return empty_like_heads(query), empty_like_heads(key), empty_like_heads(value)


def _settings(offset: Tensor | None, seed: Tensor | None, *options: Any) -> Settings:
    keywords = _keywords(offset, seed, *options)
    keywords["query_offset"] = int(keywords["query_offset"])
    return Settings(**keywords)


def _keywords(
    offset: Tensor | None,
    seed: Tensor | None,
    activation: str,
    scale: float,
    causal: bool,
    query_offset: int,
    dropout_p: float,
    statistics: str,
) -> dict[str, Any]:
    return {
        "activation": activation,
        "scale": scale,
        "causal": causal,
        "query_offset": query_offset if offset is None else offset,
        "dropout_p": dropout_p,
        "seed": 0 if seed is None else int(seed),
        "statistics": statistics,
    }


def _filled(output: Tensor, row_sum: Tensor | None, row_sum_log: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """An operator has to return tensors, so those that were not asked for are empty."""
    missing = [
        output.new_empty(0, dtype=wide(output.dtype)) if item is None else item for item in (row_sum, row_sum_log)
    ]
    return output, missing[0], missing[1]


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    tensors, ctx.options = inputs[:_TENSOR_COUNT], inputs[_TENSOR_COUNT:]
    row_scale = tensors[3]
    ctx.scale_wants_gradient = row_scale is not None and row_scale.requires_grad
    ctx.save_for_backward(*tensors, *(output if ctx.scale_wants_gradient else ()))


def _differentiate(
    ctx: Any, grad_output: Tensor | None, grad_sum: Tensor | None, grad_sum_log: Tensor | None, backward: Any = None
) -> tuple:
    """Gradients of the inputs, by the backward operator or by `backward`. A gradient that is None is zero."""
    saved = ctx.saved_tensors  # read once: a checkpoint computes them again at every access
    tensors, outputs = saved[:_TENSOR_COUNT], saved[_TENSOR_COUNT:]
    row_scale, statistics = tensors[3], ctx.options[-1]
    if grad_output is None:
        grad_output = torch.zeros_like(tensors[0])
    grad_sum_log = grad_sum_log if statistics == "sum+entropy" else None
    grad_sum = None if statistics == "none" else grad_sum
    if grad_sum is None and grad_sum_log is not None:
        grad_sum = torch.zeros_like(grad_sum_log)
    # S and T that nothing was derived from, as where they are only logged, cost the backward pass nothing
    options = *ctx.options[:-1], STATISTICS[(grad_sum is not None) + (grad_sum_log is not None)]
    gradients = (backward or _BACKWARD)(grad_output, grad_sum, grad_sum_log, *tensors, *options)
    grad_scale = None
    if ctx.scale_wants_gradient:
        output, row_sum, row_sum_log = outputs
        total = (grad_output.to(row_scale.dtype) * output).sum(-1)
        if grad_sum is not None:
            total = total + grad_sum * row_sum
        if grad_sum_log is not None:
            total = total + grad_sum_log * (row_sum_log + row_sum)
        grad_scale = total / row_scale
        if row_scale.shape[1] == 1:
            grad_scale = grad_scale.sum(1, keepdim=True)
    return *gradients, grad_scale, *(None,) * (_TENSOR_COUNT - 4 + len(ctx.options))


def _define(name: str, schema: str, implementation: Any, on_cuda: Any, fake: Any) -> Any:
    operator = torch.library.custom_op(f"{NAMESPACE}::{name}", implementation, mutates_args=(), schema=schema)
    operator.register_kernel("cuda")(on_cuda)
    operator.register_fake(fake)
    return operator


_BACKWARD = _define(
    "pointwise_attention_backward",
    f"(Tensor grad_output, Tensor? grad_sum, Tensor? grad_sum_log, {_TENSORS}, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    _backward,
    _backward_cuda,
    backward_fake,
)
pointwise_attention = _define(
    "pointwise_attention",
    f"({_TENSORS}, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    _forward,
    _forward_cuda,
    forward_fake,
)
pointwise_attention.register_autograd(_differentiate, setup_context=_save)


class _LaunchedAttention(torch.autograd.Function):
    """The operator on CUDA outside of compiled graphs, where what torch.library does around a call takes longer than the call."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        return _forward_cuda(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.set_materialize_grads(False)
        _save(ctx, inputs, output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple:
        return _differentiate(ctx, *gradients, backward=_backward_cuda)


def operator_for(query: Tensor) -> Any:
    """What computes a call that no compiled attention takes."""
    if query.device.type != "cuda" or torch.compiler.is_compiling():
        return pointwise_attention
    return _LaunchedAttention.apply if torch.is_grad_enabled() else _forward_cuda
