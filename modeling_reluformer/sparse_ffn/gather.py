"""Sparse feed-forward networks in plain torch, which computes where nothing is compiled, and weights in int8.

y = Σ_i f(w_i·x + b_i) g(u_i·x + c_i) v_i + d        over the neurons i that are not zero in some row
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..attention_reluformer import POINTWISE


class Neurons(NamedTuple):
    """The weights of a projection by neuron.

    weight: (neurons, features), contiguous. scale: (neurons,) float32 of int8 weights, which the compiled loops alone compute,
    else None. bias: None, or float32, or float64 with weights in it; (neurons,), of a second projection (features,).
    """

    weight: Tensor
    scale: Tensor | None
    bias: Tensor | None


def feed_forward(
    x: Tensor,
    first: Neurons,
    up: Neurons | None,
    second: Neurons,
    activation: str,
    up_activation: str = "identity",
    hidden: Tensor | None = None,
    all_active: bool = False,
) -> Tensor:
    """The network of few rows, (rows, outputs) in the dtype of x.

    x: (rows, features). up: None without a gate. activation, up_activation: f and g, of `blocks.ACTIVATIONS` or identity.
    hidden: f(w_i·x + b_i) itself, (rows, neurons), in place of `first` and `activation`. all_active: zeros are multiplied too.
    """
    if hidden is None:
        hidden = POINTWISE[activation](project(x, first))
    if not all_active and x.isfinite().all():  # zero times infinity is NaN
        active = (hidden != 0).any(0).nonzero().squeeze(1)
        hidden, second = hidden[:, active], second._replace(weight=second.weight[active])
        up = None if up is None else Neurons(*(part if part is None else part[active] for part in up))
    if up is not None:
        hidden = hidden * POINTWISE[up_activation](project(x, up))
    return sparse_projection(hidden, second, all_active=True)


def sparse_projection(hidden: Tensor, second: Neurons, all_active: bool = False) -> Tensor:
    """`Σ_i hidden_i v_i + d` of hidden (rows, neurons), over the neurons that are not zero in some row."""
    weight = second.weight
    if not all_active:
        active = (hidden != 0).any(0).nonzero().squeeze(1)
        hidden, weight = hidden[:, active], weight[active]
    result = hidden @ weight
    return result if second.bias is None else result + second.bias.to(result.dtype)


def project(x: Tensor, neurons: Neurons) -> Tensor:
    """`w_i·x + b_i`, (rows, neurons)."""
    return nn.functional.linear(x, neurons.weight, None if neurons.bias is None else neurons.bias.to(x.dtype))


def quantized_neurons(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights in 127 steps either way, int8 (neurons, features), and a scale for each neuron (neurons,)."""
    scale = weight.float().abs().amax(1) / 127
    steps = (weight.float() / scale.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(1)).round()
    return steps.to(torch.int8), scale
