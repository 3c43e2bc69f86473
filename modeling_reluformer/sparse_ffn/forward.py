"""Which feed-forward networks can skip zeros, and what stands in place of their forward, or of that of their
projections.

y = Σ_i f(w_i·x + b_i) g(u_i·x + c_i) v_i + d        over the neurons i that are not zero in some row

Each is an attribute of one module (`module.forward`), is not saved, and is copied and pickled with its module. Where it
cannot compute a call, the module's own forward runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ReLUSquaredActivation

from ..compiled.library import library, quantized_neurons
from ..layers_reluformer import SparseActivation

MOST_ROWS = 8
DTYPES = (torch.float32, torch.bfloat16)
# Names of the projections (first, factor beside it, second): Llama and its relatives, gated T5, OPT and Marian and
# ours, T5.
PROJECTIONS = (
    ("gate_proj", "up_proj", "down_proj"),
    ("wi_0", "wi_1", "wo"),
    ("fc1", None, "fc2"),
    ("wi", None, "wo"),
)
_ACTIVATION_NAMES = ("activation_fn", "act_fn", "act", "activation")
_EXACT = {nn.ReLU: "relu", ReLUSquaredActivation: "relu2", nn.ReLU6: "relu6"}
SKIPPABLE_ACTIVATIONS = tuple(_EXACT.values())


class SparseBlock(NamedTuple):
    """One feed-forward network of `module`: second(f(first(x)) · g(up(x))).

    first, up, second, function: names in `module` of the projections and of f; up is None without a gate. activation:
    f, one of `SKIPPABLE_ACTIVATIONS`, or None for one that torch computes. up_activation: g, one of them or identity.
    alone: `module` holds nothing else with weights, so that its forward is the network; False: the network is written
    out in the forward of a layer.
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


def sparse_blocks(model: PreTrainedModel) -> list[SparseBlock]:
    """The feed-forward networks that decode: those of the decoder, or of a model that has no encoder.

    Raises:
        ValueError: none is found, or one cannot skip zeros; the message names it and says why.
    """
    stack = model.get_decoder() if model.config.is_encoder_decoder else model
    blocks = [
        _block(f"{name} ({type(module).__name__})", module, *names)
        for name, module in stack.named_modules()
        for names in PROJECTIONS
        if all(isinstance(getattr(module, each, None), nn.Module) for each in names if each)
    ]
    if not blocks or model.main_input_name == "pixel_values":
        known = ", ".join("/".join(filter(None, names)) for names in PROJECTIONS)
        raise ValueError(
            f"{type(model).__name__} has no feed-forward network that decodes, with projections called {known}."
        )
    return blocks


def _block(where: str, module: nn.Module, first: str, up: str | None, second: str) -> SparseBlock:
    function = next((name for name in _ACTIVATION_NAMES if hasattr(module, name)), None)
    activation = getattr(module, function) if function else None
    up_function = getattr(module, "up_fn", nn.Identity())
    exact = type(activation) in _EXACT or _gives_exact_zeros(activation)
    if not exact or type(up_function) not in (*_EXACT, nn.Identity):
        raise ValueError(
            f"{where} computes {type(up_function if exact else activation).__name__}, which gives no exact zeros to "
            f"skip; use_sparse_ffn needs one of {', '.join(SKIPPABLE_ACTIVATIONS)}."
        )
    others = {name.partition(".")[0] for name, _ in module.named_parameters()} - {first, up, second}
    if up is not None and others:
        raise ValueError(
            f"{where} holds {', '.join(sorted(others))} beside its projections; use_sparse_ffn does not know it."
        )
    names = _EXACT.get(type(activation)), _EXACT.get(type(up_function), "identity")
    block = SparseBlock(where, module, first, up, second, function, *names, alone=not others)
    for name, projection in block.projections.items():
        if type(projection) is not nn.Linear or projection.weight.device.type != "cpu":
            raise ValueError(
                f"{where}: {name} is a {type(projection).__qualname__} on {next(projection.parameters()).device}; "
                "use_sparse_ffn needs nn.Linear on a CPU. Quantized weights: take the model before it is quantized, "
                "and int8=True. Adapters: merge them first."
            )
    return block


def _gives_exact_zeros(activation: nn.Module | None) -> bool:
    """Whether activations are exactly 0 other than by chance, of one that torch computes."""
    if not isinstance(activation, SparseActivation):
        return False
    below, at_zero = activation.function(torch.tensor([-1.0, 0.0])).tolist()
    zero_at_zero = activation.quantile is not None and at_zero == 0
    return bool(activation.threshold or activation.top_k) or below == 0 or zero_at_zero


class Neurons(NamedTuple):
    """The weights of a projection by neuron.

    weight: (neurons, features), contiguous. scale: (neurons,) float32 of int8 weights, else None. bias: None, or
    float32, (neurons,), of a second projection (features,).
    """

    weight: Tensor
    scale: Tensor | None
    bias: Tensor | None


class PreparedWeights:
    """The `Neurons` of an `nn.Linear`, made anew where its weight or bias has changed.

    A change is seen by the version counter of the tensors, their address in memory and their dtype. What is written
    through `weight.data` is not counted by torch, and is not seen.

    transposed: neurons are the inputs of `linear`. int8: with one scale for each neuron.
    """

    def __init__(self, linear: nn.Linear, *, transposed: bool, int8: bool) -> None:
        self.linear, self.transposed, self.int8 = linear, transposed, int8
        self.current()

    def forget(self) -> None:
        """Drops the copies. To be called in training: fused optimizers do not count their changes."""
        self._seen = self._neurons = self._held = None

    @torch.no_grad()
    def current(self) -> Neurons:
        """The weights as they are now."""
        weight, bias = self.linear.weight, self.linear.bias
        seen = [(part._version, part.data_ptr(), part.dtype) for part in (weight, bias) if part is not None]
        if seen != getattr(self, "_seen", None):
            rows = (weight.t() if self.transposed else weight).detach().contiguous()
            bias = None if bias is None else bias.detach().float().contiguous()
            scaled = quantized_neurons(rows) if self.int8 else (rows, None)
            self._neurons, self._seen = Neurons(*scaled, bias), seen
            self._held = weight.detach()  # so that nothing else comes to lie in its place
        return self._neurons

    def __getstate__(self) -> dict[str, object]:
        """Without the copies: a pickled or copied model makes its own."""
        return {name: getattr(self, name) for name in ("linear", "transposed", "int8")}


class _Sparse:
    """The forward of a module. all_active: multiply zeros too, to measure what skipping them gains."""

    all_active = False

    def __init__(self, module: nn.Module, weights: dict[str, PreparedWeights]) -> None:
        self.module, self.weights = module, weights

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # Weights may change after a call in training. What is compiled leaves no trace here: it forgets nothing.
        if (self.module.training or torch.is_grad_enabled()) and not torch.compiler.is_compiling():
            for each in self.weights.values():
                each.forget()
        weight = next(iter(self.weights.values())).linear.weight
        operators = library(large=False)
        decodes = operators is not None and _decodes(self.module, weight, hidden_states) and self.is_plain()
        if args or kwargs or not decodes:
            return type(self.module).forward(self.module, hidden_states, *args, **kwargs)
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        return self.compute(operators, rows).view(*hidden_states.shape[:-1], -1)

    def is_plain(self) -> bool:
        """Whether nothing has come between the parts of the module since."""
        return True


class SparseFeedForward(_Sparse):
    """The forward of a module that is a feed-forward network and nothing else."""

    def __init__(self, block: SparseBlock, *, int8: bool) -> None:
        linears = block.projections.items()
        weights = {
            name: PreparedWeights(linear, transposed=name == block.second, int8=int8) for name, linear in linears
        }
        super().__init__(block.module, weights)
        self.block = block
        self._parts = {name: getattr(block.module, name, None) for name in (*weights, block.function, "up_fn")}

    def is_plain(self) -> bool:
        """False where a part has hooks, which the module's own forward alone calls, or was replaced."""
        return (
            all(getattr(self.module, name, None) is part for name, part in self._parts.items())
            and not nn.modules.module._has_any_global_hook()
            and not any(part._forward_hooks or part._forward_pre_hooks for part in self.module.children())
        )

    def compute(self, operators: Any, rows: Tensor) -> Tensor:
        """(rows, features) → (rows, outputs)."""
        block, hidden = self.block, None
        first, up, second = (
            None if name is None else self.weights[name].current() for name in (block.first, block.up, block.second)
        )
        if block.activation is None:
            hidden = self._parts[block.function](operators.dense_projection.default(rows, *first))
        options = (block.activation or "identity", block.up_activation, hidden, self.all_active)
        return operators.sparse_ffn.default(rows, *first, *(up or (None, None, None)), *second, *options)


class SparseProjection(_Sparse):
    """The forward of one projection of a network that is written out in the forward of a layer; it is linear as
    before."""

    def __init__(self, linear: nn.Linear, *, second: bool, int8: bool) -> None:
        super().__init__(linear, {"weight": PreparedWeights(linear, transposed=second, int8=int8)})
        self.second = second

    def compute(self, operators: Any, rows: Tensor) -> Tensor:
        """(rows, features) → (rows, outputs)."""
        neurons = self.weights["weight"].current()
        if not self.second:
            return operators.dense_projection.default(rows, *neurons)
        return operators.sparse_projection.default(rows, *neurons, self.all_active)


def _decodes(module: nn.Module, weight: Tensor, hidden_states: Tensor) -> bool:
    """Whether a call is one that decodes: few rows, no gradient, and nothing that traces or changes dtypes."""
    return (
        not module.training
        and 0 < hidden_states.numel() <= MOST_ROWS * hidden_states.shape[-1]
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and hidden_states.device.type == weight.device.type == "cpu"
        and hidden_states.dtype == weight.dtype
        and weight.dtype in DTYPES
        and not weight.is_inference()  # their changes are not counted
        and not torch.is_autocast_enabled("cpu")
    )
