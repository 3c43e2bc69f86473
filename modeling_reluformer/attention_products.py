"""Matrix products of the blockwise path, and the activation of their results. ReLU is a part of the product where oneDNN can."""

from __future__ import annotations

import torch
from torch import Tensor

from .attention_activations import POINTWISE

# oneDNN's product of two plain tensors. For float32, `torch.mm` uses MKL instead. On a processor that is not Intel's, MKL runs
# at less than half of oneDNN's speed for the shapes of attention (benchmarks/NOTES.md). Inductor calls the same operator.
_ONEDNN_DTYPES = (torch.float32, torch.bfloat16)


def _find_onednn():
    if not torch.backends.mkldnn.is_available():
        return None
    operator = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return None if operator is None else operator.default


_ONEDNN_LINEAR = _find_onednn()
_allocator_is_steady = False


def steady_allocator() -> None:
    """Makes the C library keep freed blocks of scores. Acts once per process.

    glibc returns blocks of this size to the system and faults their pages in again at each use, which costs half of the
    time (benchmarks/NOTES.md). Once a larger block has been freed, its threshold rises to that size, 32 MiB at most. With
    another C library this is one allocation without effect.
    """
    global _allocator_is_steady
    if not _allocator_is_steady:
        torch.empty(31 * 2**20, dtype=torch.uint8)
        _allocator_is_steady = True


def uses_onednn(tensor: Tensor) -> bool:
    """Whether products with this tensor go to oneDNN: on a CPU whose torch has it switched on, float32 and bfloat16."""
    return (
        _ONEDNN_LINEAR is not None
        and tensor.device.type == "cpu"
        and tensor.dtype in _ONEDNN_DTYPES
        and torch.backends.mkldnn.enabled
    )


def are_finite(*tensors: Tensor) -> bool:
    """Whether all numbers are finite. Finite numbers whose sum overflows count as not finite."""
    return bool(sum(tensor.sum() for tensor in tensors).isfinite())


def product(first: Tensor, second: Tensor, relu: bool = False) -> Tensor:
    """(m, k) and (n, k) → first @ second.T, (m, n); its ReLU if asked for. `second` may be any transposed view."""
    if uses_onednn(first) and first.numel() > 0 and second.numel() > 0:
        return _ONEDNN_LINEAR(first, second, None, "relu" if relu else "none", [], "")
    result = torch.mm(first, second.t())
    return result.relu_() if relu else result


def activate(activation: str, queries: Tensor, keys: Tensor, finite: bool) -> tuple[Tensor, Tensor | None]:
    """h(queries @ keys.T), and the scores themselves where `differentiate` needs them.

    finite: no NaN is to be expected. The ReLU inside oneDNN's product turns it into zero; torch's own keeps it.
    """
    if activation == "relu":
        return product(queries, keys, relu=True) if finite else product(queries, keys).relu_(), None
    scores = product(queries, keys)
    weights = POINTWISE[activation].function(scores)
    return weights.clone() if weights is scores else weights, scores  # the caller writes to the weights


def differentiate(activation: str, gradient: Tensor, weights: Tensor, scores: Tensor | None) -> Tensor:
    """gradient · h'(scores); `gradient` is overwritten where that saves a copy. For ReLU the weights tell the gate."""
    if activation == "relu":
        return torch.ops.aten.threshold_backward.grad_input(gradient, weights, 0, grad_input=gradient)
    return gradient.mul_(POINTWISE[activation].derivative(scores))
