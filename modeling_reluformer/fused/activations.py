"""What the fast paths and the texts need to know of each activation of attention, beside its formula in `attention_reluformer`.

A new point-wise activation also needs its code in both functions of `triton_pointwise`. The tests name whatever is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Activation(NamedTuple):
    """An activation h of attention. What follows `latex` is about point-wise ones alone.

    title: its name in a text. latex: h(x_ij).
    derivative: h', of the scores.
    zero_at_zero: h(0) = 0. The weight of a key of zeros needs no mask.
    closed_at_zero: h(0) = h'(0) = 0. Such a key has no gradient either.
    homogeneous: h(c x) = c h(x) for c > 0. The scale of the scores may be applied after the sum over the keys.
    """

    title: str
    latex: str
    derivative: Callable[[Tensor], Tensor] | None = None
    zero_at_zero: bool = True
    closed_at_zero: bool = False
    homogeneous: bool = False


def _gelu_derivative(scores: Tensor) -> Tensor:
    normal = 0.5 * (1 + torch.erf(scores * math.sqrt(0.5)))
    return normal + scores * torch.exp(-0.5 * scores.square()) / math.sqrt(2 * math.pi)


def _sigmoid_derivative(scores: Tensor) -> Tensor:
    sigmoid = torch.sigmoid(scores)
    return sigmoid * (1 - sigmoid)


ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(
        "ReLU", r"\mathrm{ReLU}(x_{ij})", lambda scores: scores > 0, closed_at_zero=True, homogeneous=True
    ),
    "relu2": Activation(
        "ReLU²", r"\mathrm{ReLU}(x_{ij})^2", lambda scores: 2 * torch.relu(scores), closed_at_zero=True
    ),
    "relu6": Activation(
        "ReLU6",
        r"\mathrm{ReLU6}(x_{ij})",
        lambda scores: (scores > 0).logical_and_(scores < 6),
        closed_at_zero=True,
    ),
    "gelu": Activation("GELU", r"\mathrm{GELU}(x_{ij})", _gelu_derivative),
    "softplus": Activation("softplus", r"\mathrm{softplus}(x_{ij})", torch.sigmoid, zero_at_zero=False),
    "identity": Activation("identity", r"x_{ij}", torch.ones_like, homogeneous=True),
    "sigmoid": Activation("sigmoid", r"\sigma(x_{ij})", _sigmoid_derivative, zero_at_zero=False),
    "softmax": Activation("softmax", r"\mathrm{softmax}_j(x_{ij})"),
    "sparsemax": Activation("sparsemax", r"\mathrm{sparsemax}_j(x_{ij})"),
    "entmax15": Activation("1.5-entmax", r"1.5\text{-}\mathrm{entmax}_j(x_{ij})"),
}
