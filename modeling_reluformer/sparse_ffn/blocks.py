"""Which feed-forward networks of a model can skip zeros: found by their structure, refused where zeros are not exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ReLUSquaredActivation

# Names of the projections (first, factor beside it, second): Llama and its relatives, gated T5, OPT and Marian and ours, T5.
PROJECTIONS = (
    ("gate_proj", "up_proj", "down_proj"),
    ("wi_0", "wi_1", "wo"),
    ("fc1", None, "fc2"),
    ("wi", None, "wo"),
)
_ACTIVATION_NAMES = ("activation_fn", "act_fn", "act", "activation")
_EXACT_MODULES = {nn.ReLU: "relu", ReLUSquaredActivation: "relu2", nn.ReLU6: "relu6"}
_EXACT_FUNCTIONS = {torch.relu: "relu", nn.functional.relu: "relu", nn.functional.relu6: "relu6"}
ACTIVATIONS = tuple(_EXACT_MODULES.values())


class Block(NamedTuple):
    """One feed-forward network: second(f(first(x)) · g(up(x))).

    name: of `module` in its model. first, up, second: names of the projections in `module`; up is None without a gate.
    function: name of f in `module`. activation: f, one of `ACTIVATIONS`, or None for one that torch computes. up_activation: g,
    one of them or identity. alone: `module` holds nothing else with weights, so that its forward is the network; False: the
    network is written out in the forward of a layer.
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
    kind = type(model).__name__
    stack = model
    if model.config.is_encoder_decoder:
        stack = model.get_decoder()
    elif model.main_input_name != "input_ids":
        raise ValueError(
            f"{kind} takes {model.main_input_name} and decodes nothing; use_sparse_ffn serves decoding alone."
        )
    found = [
        _block(name, module, *names)
        for name, module in stack.named_modules()
        if (names := _names_in(module)) is not None
    ]
    if not found:
        known = ", ".join("/".join(filter(None, names)) for names in PROJECTIONS)
        raise ValueError(
            f"{kind} has no feed-forward network with projections called {known}; use_sparse_ffn knows no other."
        )
    return found


def _names_in(module: nn.Module) -> tuple[str, str | None, str] | None:
    for names in PROJECTIONS:
        if all(isinstance(getattr(module, name, None), nn.Module) for name in names if name):
            return names
    return None


def _block(name: str, module: nn.Module, first: str, up: str | None, second: str) -> Block:
    where = f"{name} ({type(module).__name__})"
    function = _activation(where, module)
    factor = getattr(module, "up_fn", nn.Identity())
    if _exact(factor) is None and type(factor) is not nn.Identity:
        _refuse_activation(where, factor)
    names = [each for each in (first, up, second) if each]
    weighted = {each.partition(".")[0] for each, _ in module.named_parameters()}
    activations = _exact(getattr(module, function)), _exact(factor) or "identity"
    block = Block(name, module, first, up, second, function, *activations, alone=weighted <= set(names))
    _refuse_projections(where, block)
    if up is not None and not block.alone:
        others = ", ".join(sorted(weighted - set(names)))
        raise ValueError(
            f"{where} holds {others} beside {', '.join(names)}: use_sparse_ffn does not know what it computes."
        )
    return block


def _activation(where: str, module: nn.Module) -> str:
    """The name of f in its module. One that torch computes says by `gives_exact_zeros` that it has any."""
    name = next((name for name in _ACTIVATION_NAMES if hasattr(module, name)), None)
    function = getattr(module, name) if name else None
    if name is None or (_exact(function) is None and not getattr(function, "gives_exact_zeros", False)):
        _refuse_activation(where, function)
    return name


def _refuse_activation(where: str, function: Any) -> NoReturn:
    name = (
        "an activation of another kind" if function is None else getattr(function, "__name__", type(function).__name__)
    )
    raise ValueError(
        f"{where} computes {name}, which gives no exact zeros to skip; use_sparse_ffn needs one of {', '.join(ACTIVATIONS)}."
    )


def _exact(activation: Callable[[Tensor], Tensor] | Any) -> str | None:
    if isinstance(activation, nn.Module):
        return _EXACT_MODULES.get(type(activation))
    return _EXACT_FUNCTIONS.get(activation)


def _refuse_projections(where: str, block: Block) -> None:
    projections = block.projections
    for name, projection in projections.items():
        if type(projection) is not nn.Linear:
            kind = f"{type(projection).__module__}.{type(projection).__qualname__}"
            raise ValueError(
                f"{where}: {name} is a {kind}, use_sparse_ffn needs nn.Linear. Quantized weights: take the model before it is "
                "quantized, and use_sparse_ffn(model, int8=True). Adapters: merge them first."
            )
        if projection.weight.device.type != "cpu":
            raise ValueError(
                f"{where}: {name} is on {projection.weight.device}, use_sparse_ffn serves models on a CPU."
            )
        if any(part.is_inference() for part in projection.parameters()):
            raise ValueError(
                f"{where}: {name} was made in torch.inference_mode, in which changes of weights are not counted; load the "
                "model outside of it."
            )
    for name, part in {**projections, type(block.module).__name__: block.module}.items():
        if "forward" in vars(part):
            raise ValueError(
                f"{where}: the forward of {name} was replaced, by hooks of accelerate for one; use_sparse_ffn would undo that."
            )
    dtypes = {projection.weight.dtype for projection in projections.values()}
    if len(dtypes) > 1 or not all(dtype.is_floating_point for dtype in dtypes):
        raise ValueError(
            f"{where}: the projections are of {' and '.join(sorted(map(str, dtypes)))}; give them one dtype."
        )
