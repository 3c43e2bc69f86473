"""Point-wise activations of a block of scores, and their derivatives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .attention_products import product
from .attention_reference import POINTWISE

# h(0) = h'(0) = 0: a key of zeros gets no weight and no gradient, and needs no mask
CLOSED_AT_ZERO = frozenset({"relu", "relu2", "relu6"})


def activate(activation: str, queries: Tensor, keys: Tensor, finite: bool) -> tuple[Tensor, Tensor | None]:
    """h(queries @ keys.T), and the scores themselves where `differentiate` needs them.

    finite: no NaN is to be expected. The ReLU inside oneDNN's product makes a zero of it, torch's own lets it through.
    """
    if activation == "relu":
        return product(queries, keys, relu=True) if finite else product(queries, keys).relu_(), None
    scores = product(queries, keys)
    return POINTWISE[activation](scores.clone() if activation == "identity" else scores), scores


def differentiate(activation: str, gradient: Tensor, weights: Tensor, scores: Tensor | None) -> Tensor:
    """gradient · h'(scores); `gradient` is overwritten where that saves a copy. For ReLU the weights tell the gate."""
    if activation == "relu":
        return torch.ops.aten.threshold_backward.grad_input(gradient, weights, 0, grad_input=gradient)
    return gradient.mul_(_DERIVATIVES[activation](scores))


def _gelu_derivative(scores: Tensor) -> Tensor:
    normal = 0.5 * (1 + torch.erf(scores * math.sqrt(0.5)))
    return normal + scores * torch.exp(-0.5 * scores.square()) / math.sqrt(2 * math.pi)


def _sigmoid_derivative(scores: Tensor) -> Tensor:
    sigmoid = torch.sigmoid(scores)
    return sigmoid * (1 - sigmoid)


_DERIVATIVES = {
    "relu2": lambda scores: 2 * torch.relu(scores),
    "relu6": lambda scores: (scores > 0).logical_and_(scores < 6),
    "sigmoid": _sigmoid_derivative,
    "gelu": _gelu_derivative,
    "softplus": torch.sigmoid,
    "identity": torch.ones_like,
}
