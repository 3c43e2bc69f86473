"""The activations of attention: the one table that says what each of them is.

To add a point-wise activation, add it here, its formula to `attention_reference` and its code to both functions of
`fused.triton_pointwise`. The tests name whatever is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Pointwise(NamedTuple):
    """An activation h that turns each score into a weight of its own.

    title: its name in a text. latex: h(x_ij).
    function: h; it may return its argument. derivative: h', of the scores.
    never_negative: its weights can be read as an unnormalised distribution. S, H and L_reg (Eq. 7) need that.
    zero_at_zero: h(0) = 0. The weight of a key of zeros needs no mask.
    closed_at_zero: h(0) = h'(0) = 0. Such a key has no gradient either.
    homogeneous: h(c x) = c h(x) for c > 0. The scale of the scores may be applied after the sum over the keys.
    """

    title: str
    latex: str
    function: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    never_negative: bool
    zero_at_zero: bool
    closed_at_zero: bool = False
    homogeneous: bool = False


def _gelu_derivative(scores: Tensor) -> Tensor:
    normal = 0.5 * (1 + torch.erf(scores * math.sqrt(0.5)))
    return normal + scores * torch.exp(-0.5 * scores.square()) / math.sqrt(2 * math.pi)


def _sigmoid_derivative(scores: Tensor) -> Tensor:
    sigmoid = torch.sigmoid(scores)
    return sigmoid * (1 - sigmoid)


# Messages list the names in this order.
POINTWISE: dict[str, Pointwise] = {
    "relu": Pointwise(
        title="ReLU",
        latex=r"\mathrm{ReLU}(x_{ij})",
        function=torch.relu,
        derivative=lambda scores: scores > 0,
        never_negative=True,
        zero_at_zero=True,
        closed_at_zero=True,
        homogeneous=True,
    ),
    "relu2": Pointwise(
        title="ReLU²",
        latex=r"\mathrm{ReLU}(x_{ij})^2",
        function=lambda scores: torch.relu(scores).square(),
        derivative=lambda scores: 2 * torch.relu(scores),
        never_negative=True,
        zero_at_zero=True,
        closed_at_zero=True,
    ),
    "relu6": Pointwise(
        title="ReLU6",
        latex=r"\mathrm{ReLU6}(x_{ij})",
        function=nn.functional.relu6,
        derivative=lambda scores: (scores > 0).logical_and_(scores < 6),
        never_negative=True,
        zero_at_zero=True,
        closed_at_zero=True,
    ),
    "gelu": Pointwise(
        title="GELU",
        latex=r"\mathrm{GELU}(x_{ij})",
        function=nn.functional.gelu,
        derivative=_gelu_derivative,
        never_negative=False,
        zero_at_zero=True,
    ),
    "softplus": Pointwise(
        title="softplus",
        latex=r"\mathrm{softplus}(x_{ij})",
        function=nn.functional.softplus,
        derivative=torch.sigmoid,
        never_negative=True,
        zero_at_zero=False,
    ),
    "identity": Pointwise(
        title="identity",
        latex=r"x_{ij}",
        function=lambda scores: scores,
        derivative=torch.ones_like,
        never_negative=False,
        zero_at_zero=True,
        homogeneous=True,
    ),
    "sigmoid": Pointwise(
        title="sigmoid",
        latex=r"\sigma(x_{ij})",
        function=torch.sigmoid,
        derivative=_sigmoid_derivative,
        never_negative=True,
        zero_at_zero=False,
    ),
}
NON_NEGATIVE = tuple(name for name, activation in POINTWISE.items() if activation.never_negative)


class Normalized(NamedTuple):
    """An activation that makes the weights of a row sum to one, so that its keys compete. See `Pointwise`."""

    title: str
    latex: str


NORMALIZED: dict[str, Normalized] = {
    "softmax": Normalized("softmax", r"\mathrm{softmax}_j(x_{ij})"),
    "sparsemax": Normalized("sparsemax", r"\mathrm{sparsemax}_j(x_{ij})"),
    "entmax15": Normalized("1.5-entmax", r"1.5\text{-}\mathrm{entmax}_j(x_{ij})"),
}
ACTIVATIONS: dict[str, Pointwise | Normalized] = {**POINTWISE, **NORMALIZED}
