"""Which feed-forward networks of a model can skip zeros: found by the names of their projections, refused without exact zeros."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import ReLUSquaredActivation

from ..layers_reluformer import SparseActivation

# Names of the projections (first, factor beside it, second): Llama and its relatives, gated T5, OPT and Marian and ours, T5.
PROJECTIONS = (
    ("gate_proj", "up_proj", "down_proj"),
    ("wi_0", "wi_1", "wo"),
    ("fc1", None, "fc2"),
    ("wi", None, "wo"),
)
_ACTIVATION_NAMES = ("activation_fn", "act_fn", "act", "activation")
_EXACT = {nn.ReLU: "relu", ReLUSquaredActivation: "relu2", nn.ReLU6: "relu6"}
ACTIVATIONS = tuple(_EXACT.values())


class Block(NamedTuple):
    """One feed-forward network of `module`: second(f(first(x)) · g(up(x))).

    first, up, second, function: names in `module` of the projections and of f; up is None without a gate. activation: f, one of
    `ACTIVATIONS`, or None for one that torch computes. up_activation: g, one of them or identity. alone: `module` holds nothing
    else with weights, so that its forward is the network; False: the network is written out in the forward of a layer.
    """

    name: str
    module: nn.Module
    first: str
    up: str | None
    second: str
    function: str
    activation: str | None
    up_activation: str
    alone: bool

    @property
    def projections(self) -> dict[str, nn.Linear]:
        """The projections by name, in the order first, up, second."""
        names = filter(None, (self.first, self.up, self.second))
        return {name: getattr(self.module, name) for name in names}


def sparse_blocks(model: PreTrainedModel) -> list[Block]:
    """The feed-forward networks that decode: those of the decoder, or of a model that has no encoder.

    Raises:
        ValueError: none is found, or one cannot skip zeros; the message names it and says why.
    """
    stack = model.get_decoder() if model.config.is_encoder_decoder else model
    found = [
        _block(f"{name} ({type(module).__name__})", module, *names)
        for name, module in stack.named_modules()
        for names in PROJECTIONS
        if all(isinstance(getattr(module, each, None), nn.Module) for each in names if each)
    ]
    if not found or model.main_input_name == "pixel_values":
        known = ", ".join("/".join(filter(None, names)) for names in PROJECTIONS)
        raise ValueError(
            f"{type(model).__name__} has no feed-forward network that decodes, with projections called {known}."
        )
    return found


def _block(where: str, module: nn.Module, first: str, up: str | None, second: str) -> Block:
    function = next((name for name in _ACTIVATION_NAMES if hasattr(module, name)), None)
    activation = getattr(module, function) if function else None
    up_function = getattr(module, "up_fn", nn.Identity())
    exact = type(activation) in _EXACT or _gives_exact_zeros(activation)
    if not exact or type(up_function) not in (*_EXACT, nn.Identity):
        raise ValueError(
            f"{where} computes {type(up_function if exact else activation).__name__}, which gives no exact zeros to skip; "
            f"use_sparse_ffn needs one of {', '.join(ACTIVATIONS)}."
        )
    others = {name.partition(".")[0] for name, _ in module.named_parameters()} - {first, up, second}
    if up is not None and others:
        raise ValueError(
            f"{where} holds {', '.join(sorted(others))} beside its projections; use_sparse_ffn does not know it."
        )
    names = _EXACT.get(type(activation)), _EXACT.get(type(up_function), "identity")
    block = Block(where, module, first, up, second, function, *names, alone=not others)
    for name, projection in block.projections.items():
        if type(projection) is not nn.Linear or projection.weight.device.type != "cpu":
            raise ValueError(
                f"{where}: {name} is a {type(projection).__qualname__} on {next(projection.parameters()).device}; use_sparse_ffn "
                "needs nn.Linear on a CPU. Quantized weights: take the model before it is quantized, and int8=True. Adapters: "
                "merge them first."
            )
    return block


def _gives_exact_zeros(activation: nn.Module | None) -> bool:
    """Whether activations are exactly 0 other than by chance, of one that torch computes."""
    if not isinstance(activation, SparseActivation):
        return False
    below, at_zero = activation.function(torch.tensor([-1.0, 0.0])).tolist()
    zero_at_zero = activation.quantile is not None and at_zero == 0
    return bool(activation.threshold or activation.top_k) or below == 0 or zero_at_zero
