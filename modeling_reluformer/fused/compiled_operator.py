"""Which calls of `relu_attention` the compiled library computes. A Hub kernel, which has none, has another file in this
place."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ..compiled.library import is_settled, library
from .operator import backward_fake, forward_fake
from .specification import Specification

_DTYPES = (torch.float32, torch.bfloat16)
# From this many scores on, in a call whose gradient is wanted, the library is built if there is none. Without
# gradients, as in generation, only a call that takes seconds is worth waiting for it.
SCORES_WORTH_BUILDING = 2**20
SCORES_WORTH_BUILDING_WITHOUT_GRADIENTS = 2**29


def compiled_operator(query: Tensor, key: Tensor, specification: Specification) -> Any | None:
    """The operator that computes a call, with the arguments of `pointwise_attention`; None if the Python loop is to."""
    if query.dtype not in _DTYPES or query.device.type != "cpu":
        return None
    # A derivative in C++ does not take part in the transforms of torch.func, of which an error would tell nobody what
    # to do.
    if torch._C._are_functorch_transforms_active() and not torch.compiler.is_compiling():
        return None
    # after the first calls no size is asked for any more: small models wait for each Python call
    large = not is_settled() and not torch.compiler.is_compiling() and _is_worth_building(query, key)
    return torch.ops.reluformer_cpu.attention.default if _serves(query.dtype, specification.activation, large) else None


def _serves(dtype: torch.dtype, activation: str, large: bool) -> bool:
    operators = library(large)
    # asked at each call: torch.export, among others, turns oneDNN off for a while
    if operators is None or not torch.backends.mkldnn.enabled:
        return False
    return dtype in _served_dtypes(operators) and activation in _served_activations(operators)


# What `torch.compiler.assume_constant_result` sets; that one imports the whole compiler.
_serves._dynamo_marked_constant = True


def _is_worth_building(query: Tensor, key: Tensor) -> bool:
    scores = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad):
        return scores >= SCORES_WORTH_BUILDING
    return scores >= SCORES_WORTH_BUILDING_WITHOUT_GRADIENTS


@functools.cache
def _served_activations(operators: Any) -> frozenset[str]:
    return frozenset(operators.activations())


@functools.cache
def _served_dtypes(operators: Any) -> frozenset[torch.dtype]:
    """Those that this processor and its torch compute."""
    _register_fakes()
    return frozenset(dtype for dtype in _DTYPES if operators.supports(dtype))


@functools.cache
def _register_fakes() -> None:
    """Tells torch.compile what the operators return, once they exist."""
    torch.library.register_fake("reluformer_cpu::attention", forward_fake)
    torch.library.register_fake("reluformer_cpu::attention_backward", backward_fake)
