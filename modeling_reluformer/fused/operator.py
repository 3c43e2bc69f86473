"""The operator behind `relu_attention`: `reluformer::pointwise_attention`, its device kernels, shapes and gradient.

The inputs are saved for the backward pass; output, S and T only where the row scale needs a gradient. With gS and gT,
the gradients of S and T:

    d r_i = [ dO_i·O_i + gS_i S_i + gT_i (T_i + S_i) ] / r_i
"""

from __future__ import annotations

import functools
import logging
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.autograd.function import once_differentiable

from ..attention_reluformer import STATISTICS, wide
from .activations import ACTIVATIONS
from .blockwise import blockwise_backward, blockwise_forward, empty_like_heads
from .specification import SCHEMA, TENSOR_COUNT, Specification

logger = logging.getLogger(__name__)

# A Hub kernel is a package of another name. It must not replace these operators.
NAMESPACE = (__package__ or "").partition(".")[0].replace("-", "_") or "reluformer"
_ARGUMENTS_AND_RESULTS = f"Tensor query, Tensor key, Tensor value, {SCHEMA}) -> (Tensor, Tensor, Tensor)"
_TENSOR_ARGUMENTS = 3 + TENSOR_COUNT  # query, key and value, and those of the specification
_STATISTICS_AT = [field.name for field in fields(Specification)].index("statistics") - TENSOR_COUNT


def operator_for(query: Tensor) -> Any:
    """What computes a call that no compiled library takes."""
    if query.device.type != "cuda" or torch.compiler.is_compiling():
        return pointwise_attention
    return _LaunchedAttention.apply if torch.is_grad_enabled() else _forward


def refuse_dual(*tensors: Tensor | None) -> None:
    """An operator with a backward pass of its own has no forward mode; torch would silently take its tangents as
    zero."""
    if any(tensor is not None and unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise NotImplementedError(
            "relu_attention was given a dual tensor; its operator has no forward-mode derivative. Use reverse mode "
            "(backward(), torch.autograd.grad), or attn_implementation='eager'."
        )


def on_cuda(query: Tensor) -> bool:
    """Whether the Triton kernels compute a call whose activation they have, not the blockwise loop."""
    return query.device.type == "cuda" and _has_kernels(query.device)


@functools.cache
def _has_kernels(device: torch.device) -> bool:
    if torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0):
        return True
    logger.warning(
        "The kernels of relu_attention are for GPUs of NVIDIA from compute capability 8.0 on; on %s a slower loop in "
        "PyTorch computes.",
        torch.cuda.get_device_name(device),
    )
    return False


def _forward(query: Tensor, key: Tensor, value: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    specification = Specification(*arguments)
    if on_cuda(query) and ACTIVATIONS[specification.activation].has_kernels:
        from .triton_launch import triton_forward  # imports Triton, which a CPU has no use for

        return _three(*triton_forward(query, key, value, specification))
    with torch.autocast(query.device.type, enabled=False):
        return _three(*blockwise_forward(query, key, value, specification))


def forward_fake(query: Tensor, key: Tensor, value: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What the operator returns, without numbers: torch.compile asks for it, also of the compiled operator."""
    count = Specification(*arguments).statistics_count
    statistics = [query.new_empty(query.shape[:3], dtype=wide(query.dtype)) for _ in range(count)]
    return _three(empty_like_heads(query, value.shape[-1]), *statistics)


def _three(output: Tensor, *statistics: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """An operator has to return tensors, so those that were not asked for are empty."""
    computed = [item for item in statistics if item is not None]
    missing = [output.new_empty(0, dtype=wide(output.dtype)) for _ in range(2 - len(computed))]
    return output, *computed, *missing


def _backward(
    grad_output: Tensor, grad_sum: Tensor | None, grad_sum_log: Tensor | None, query: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    key, value, *rest = arguments
    specification = Specification(*rest)
    inputs = grad_output, grad_sum, grad_sum_log, query, key, value, specification
    if on_cuda(query) and ACTIVATIONS[specification.activation].has_kernels:
        from .triton_launch import triton_backward

        return triton_backward(*inputs)
    with torch.autocast(query.device.type, enabled=False):
        return blockwise_backward(*inputs)


def backward_fake(
    grad_output: Tensor, grad_sum: Any, grad_sum_log: Any, query: Tensor, key: Tensor, value: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return empty_like_heads(query), empty_like_heads(key), empty_like_heads(value)


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.set_materialize_grads(False)
    tensors, ctx.options = inputs[:_TENSOR_ARGUMENTS], inputs[_TENSOR_ARGUMENTS:]
    row_scale = tensors[3]
    ctx.scale_wants_gradient = row_scale is not None and row_scale.requires_grad
    ctx.save_for_backward(*tensors, *(output if ctx.scale_wants_gradient else ()))


def _differentiate(
    ctx: Any, grad_output: Tensor | None, grad_sum: Tensor | None, grad_sum_log: Tensor | None, backward: Any = None
) -> tuple:
    """Gradients of the inputs, by the backward operator or by `backward`. A gradient that is None is zero."""
    saved = ctx.saved_tensors  # read once: a checkpoint computes them again at every access
    tensors, outputs = saved[:_TENSOR_ARGUMENTS], saved[_TENSOR_ARGUMENTS:]
    options = list(ctx.options)
    statistics = options[_STATISTICS_AT]
    if grad_output is None:
        grad_output = torch.zeros_like(empty_like_heads(tensors[0], tensors[2].shape[-1]))
    grad_sum_log = grad_sum_log if statistics == "sum+entropy" else None
    grad_sum = None if statistics == "none" else grad_sum
    if grad_sum is None and grad_sum_log is not None:
        grad_sum = torch.zeros_like(grad_sum_log)
    # S and T that nothing was derived from, as where they are only logged, cost the backward pass nothing
    options[_STATISTICS_AT] = STATISTICS[(grad_sum is not None) + (grad_sum_log is not None)]
    gradients = (backward or _BACKWARD)(grad_output, grad_sum, grad_sum_log, *tensors, *options)
    grad_scale = None
    if ctx.scale_wants_gradient:
        row_scale, (output, row_sum, row_sum_log) = tensors[3], outputs
        total = (grad_output.to(row_scale.dtype) * output).sum(-1)
        if grad_sum is not None:
            total = total + grad_sum * row_sum
        if grad_sum_log is not None:
            total = total + grad_sum_log * (row_sum_log + row_sum)
        grad_scale = total / row_scale
        grad_scale = grad_scale.sum(1, keepdim=True) if row_scale.shape[1] == 1 else grad_scale
    return *gradients, grad_scale, *(None,) * (_TENSOR_ARGUMENTS - 4 + len(ctx.options))


pointwise_attention = torch.library.custom_op(
    f"{NAMESPACE}::pointwise_attention", _forward, mutates_args=(), schema=f"({_ARGUMENTS_AND_RESULTS}"
)
_BACKWARD = torch.library.custom_op(
    f"{NAMESPACE}::pointwise_attention_backward",
    _backward,
    mutates_args=(),
    schema=f"(Tensor grad_output, Tensor? grad_sum, Tensor? grad_sum_log, {_ARGUMENTS_AND_RESULTS}",
)
pointwise_attention.register_fake(forward_fake)
_BACKWARD.register_fake(backward_fake)
pointwise_attention.register_autograd(_differentiate, setup_context=_save)


class _LaunchedAttention(torch.autograd.Function):
    """The operator on CUDA outside of compiled graphs, where what torch.library does around a call takes longer than
    the call."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:  # a setup_context of its own would cost time
        output = _forward(*inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple:
        return _differentiate(ctx, *gradients, backward=_backward)
