"""What stands in place of the forward of a feed-forward network, or of its projections, and when it computes.

Each is an attribute of one module (`module.forward`), holds that module and nothing that is saved, and is copied and pickled
with it. Whatever it does not compute, the forward of the module's class does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..fused.compiled.library import sparse_library
from . import gather
from .blocks import Block
from .weights import Neurons, PreparedWeights

MOST_ROWS = 8


class SparseFeedForward:
    """The forward of a module that is a feed-forward network and nothing else.

    all_active: multiply zeros too, to measure what skipping them gains.
    """

    def __init__(self, block: Block, *, int8: bool) -> None:
        self.block = block
        self.all_active = False
        self._weights = {
            name: PreparedWeights(linear, transposed=name == block.second, int8=int8)
            for name, linear in block.projections.items()
        }
        for weights in self._weights.values():
            weights.current()
        # What is computed here in the place of the module's forward.
        self._parts = {name: getattr(block.module, name, None) for name in (*self._weights, block.function, "up_fn")}

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        module, weight = self.block.module, self._weights[self.block.first].linear.weight
        if _trains(module):
            for weights in self._weights.values():
                weights.forget()
        if args or kwargs or not _decodes(module, weight, hidden_states) or self._needs_its_class():
            return type(module).forward(module, hidden_states, *args, **kwargs)
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        return self.compute(rows).view(*hidden_states.shape[:-1], -1)

    def compute(self, rows: Tensor) -> Tensor:
        """(rows, features) → (rows, outputs), by the compiled loop or the gather."""
        block = self.block
        prepared = [self._weights.get(name) for name in (block.first, block.up, block.second)]
        first, up, second = (None if weights is None else weights.current() for weights in prepared)
        all_active = self.all_active or not all(weights is None or weights.finite for weights in prepared)
        operators, hidden = _operators(rows), None
        if block.activation is None:
            hidden = self._parts[block.function](_projected(rows, first))
        options = (block.activation or "identity", block.up_activation, hidden, all_active)
        if operators is None:
            return gather.feed_forward(rows, first, up, second, *options)
        return operators.sparse_ffn.default(rows, *first, *(up or (None, None, None)), *second, *options)

    def _needs_its_class(self) -> bool:
        """Whether a part of the module has hooks, which its own forward alone calls, or trains though the module does not, as
        dropout of which samples are drawn.

        Raises:
            ValueError: a projection or an activation is no longer the one it was.
        """
        module = self.block.module
        for name, part in self._parts.items():
            found = getattr(module, name, None)
            if found is not part:
                raise ValueError(
                    f"{self.block.name}: {name} was replaced by a {type(found).__name__} after use_sparse_ffn. Call "
                    "use_sparse_ffn(model, False) before such a change, and use_sparse_ffn(model) after it."
                )
        return nn.modules.module._has_any_global_hook() or any(
            part.training or part._forward_hooks or part._forward_pre_hooks for part in module.children()
        )


class SparseProjection:
    """The forward of one projection of a network that is written out in the forward of a layer; it is linear as before.

    all_active: as in `SparseFeedForward`.
    """

    def __init__(self, linear: nn.Linear, *, second: bool, int8: bool) -> None:
        self.linear, self.second = linear, second
        self.all_active = False
        self._weights = PreparedWeights(linear, transposed=second, int8=int8)
        self._weights.current()

    def __call__(self, hidden_states: Tensor) -> Tensor:
        if _trains(self.linear):
            self._weights.forget()
        if not _decodes(self.linear, self.linear.weight, hidden_states):
            return type(self.linear).forward(self.linear, hidden_states)
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        return self.compute(rows).view(*hidden_states.shape[:-1], -1)

    def compute(self, rows: Tensor) -> Tensor:
        """(rows, inputs) → (rows, outputs), by the compiled loop or by torch."""
        neurons = self._weights.current()
        if not self.second:
            return _projected(rows, neurons)
        all_active, operators = self.all_active or not self._weights.finite, _operators(rows)
        if operators is None:
            return gather.sparse_projection(rows, neurons, all_active)
        return operators.sparse_projection.default(rows, *neurons, all_active)


def _operators(rows: Tensor) -> Any | None:
    return sparse_library(large=False) if rows.dtype in (torch.float32, torch.bfloat16) else None


def _projected(rows: Tensor, neurons: Neurons) -> Tensor:
    operators = _operators(rows)
    return gather.project(rows, neurons) if operators is None else operators.dense_projection.default(rows, *neurons)


def _trains(module: nn.Module) -> bool:
    """Whether the weights may change after a call. What is compiled or traced leaves no trace here: it forgets nothing."""
    return (module.training or torch.is_grad_enabled()) and not torch.compiler.is_compiling()


def _decodes(module: nn.Module, weight: Tensor, hidden_states: Tensor) -> bool:
    """Whether a call is one that decodes: few rows, no gradient, and nothing that traces or changes dtypes."""
    return (
        not module.training
        and 0 < hidden_states.numel() <= MOST_ROWS * hidden_states.shape[-1]
        and type(hidden_states) is Tensor
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and hidden_states.device.type == weight.device.type == "cpu"
        and hidden_states.dtype == weight.dtype
        and not weight.is_inference()  # their changes are not counted
        and not torch.is_autocast_enabled("cpu")
        and not torch.jit.is_tracing()
        and not torch._C._are_functorch_transforms_active()
    )
