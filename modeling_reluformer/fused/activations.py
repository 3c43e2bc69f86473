"""What the fast paths and the texts need to know of each activation of attention, beside its formula in
`attention_reluformer`.

With its formula and a row here, a new point-wise activation is computed on every device, by blocks in PyTorch. To be
as fast as the others it also needs its code in `activate` and `activation_gradient` of `triton_kernels`, and a struct
and a row in C++ (compiled/attention/activations.h and kernels.h).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_aten = torch.ops.aten


class Activation(NamedTuple):
    """An activation h of attention. What follows `latex` is about point-wise ones alone.

    title: its name in a text. latex: h(x_ij).
    backward: (g, x, u) → g · h'(x), with u = h(x).
    zero_at_zero: h(0) = 0. The weight of a key of zeros needs no mask.
    closed_at_zero: h(0) = h'(0) = 0. Such a key has no gradient either.
    homogeneous: h(c x) = c h(x) for c > 0. The scale of the scores may be applied after the sum over the keys.
    has_kernels: the Triton kernels compute it; without them, blocks in PyTorch do on CUDA.
    """

    title: str
    latex: str
    backward: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    zero_at_zero: bool = True
    closed_at_zero: bool = False
    homogeneous: bool = False
    has_kernels: bool = False


ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(
        "ReLU",
        r"\mathrm{ReLU}(x_{ij})",
        lambda g, x, u: _aten.threshold_backward(g, u, 0),
        closed_at_zero=True,
        homogeneous=True,
        has_kernels=True,
    ),
    "relu2": Activation(
        "ReLU²",
        r"\mathrm{ReLU}(x_{ij})^2",
        lambda g, x, u: g * (2 * torch.relu(x)),
        closed_at_zero=True,
        has_kernels=True,
    ),
    "relu6": Activation(
        "ReLU6",
        r"\mathrm{ReLU6}(x_{ij})",
        lambda g, x, u: _aten.hardtanh_backward(g, x, 0, 6),
        closed_at_zero=True,
        has_kernels=True,
    ),
    "gelu": Activation("GELU", r"\mathrm{GELU}(x_{ij})", lambda g, x, u: _aten.gelu_backward(g, x), has_kernels=True),
    "softplus": Activation(
        "softplus",
        r"\mathrm{softplus}(x_{ij})",
        lambda g, x, u: _aten.softplus_backward(g, x, 1, 20),
        zero_at_zero=False,
        has_kernels=True,
    ),
    "identity": Activation("identity", r"x_{ij}", lambda g, x, u: g, homogeneous=True, has_kernels=True),
    "sigmoid": Activation(
        "sigmoid", r"\sigma(x_{ij})", lambda g, x, u: _aten.sigmoid_backward(g, u), zero_at_zero=False, has_kernels=True
    ),
    "softmax": Activation("softmax", r"\mathrm{softmax}_j(x_{ij})"),
    "sparsemax": Activation("sparsemax", r"\mathrm{sparsemax}_j(x_{ij})"),
    "entmax15": Activation("1.5-entmax", r"1.5\text{-}\mathrm{entmax}_j(x_{ij})"),
}
