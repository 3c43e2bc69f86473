"""Where the feed-forward blocks of a model are, read as key-value memories (Eq. 1 and 2)."""

from __future__ import annotations

import re
from typing import NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from reluformer.configuration.errors import UserError

# GPT-2's Conv1D holds its weight transposed.
_LINEAR = (nn.Linear, Conv1D)
# Names of the last projection, which alone tell a block as wide as the model from queries, keys and values.
_LAST = ("fc2", "wo", "c_proj", "down_proj")


class FeedForward(NamedTuple):
    """One block: the rows of `keys` (W_1) are the keys, the columns of `values` (W_2) the value slots; of a Conv1D the reverse.

    With a gate, `keys` is the projection beside it that was made last, such as Llama's `up_proj`.

    stack: "encoder" or "decoder". layer: from 0. norm: the layer norm on the result (Table 1), or None.
    """

    stack: str
    layer: int
    keys: nn.Linear | Conv1D
    values: nn.Linear | Conv1D
    norm: nn.Module | None

    @property
    def value_slots(self) -> Tensor:
        """W_2 as (features, neurons)."""
        return self.values.weight.T if isinstance(self.values, Conv1D) else self.values.weight


def feed_forward_blocks(model: PreTrainedModel) -> list[FeedForward]:
    """The blocks of encoder and decoder in order, or of a model that is one stack alone.

    They are found by their structure: within a numbered layer, a module with one or two projections from d to f features (or one
    to both halves of 2 f) and one back from f to d, and no other projection of its own.

    Raises:
        UserError: a stack without any, layers of which some have none, or a mixture of experts: not all blocks would be found.
    """
    stacks = {stack_of(model): model.base_model}
    if model.config.is_encoder_decoder:
        stacks = {"encoder": model.get_encoder(), "decoder": model.get_decoder()}
    return [
        FeedForward(stack, layer, *projections)
        for stack, module in stacks.items()
        for layer, projections in enumerate(_found_in(module, f"{model.config.model_type}, {stack}"))
    ]


def stack_of(model: PreTrainedModel) -> str:
    """What the one stack of a model that is no encoder-decoder is called: that of a classifier of pictures "encoder"."""
    return "encoder" if model.main_input_name == "pixel_values" else "decoder"


def _found_in(stack: nn.Module, where: str) -> list[tuple[nn.Module, nn.Module, nn.Module | None]]:
    parts = {name: (layer, part) for name, part in stack.named_modules() if (layer := _layer_of(name)) is not None}
    found = {name: block for name, (_, part) in parts.items() if (block := _projections(part)) is not None}
    if not found:
        raise UserError(
            f"{where}: no feed-forward blocks found; expected layers with projections d→f and f→d, or two d→f and one f→d"
        )
    with_block = {parts[name][0] for name in found}
    lists = {layers for layers, _ in with_block}
    if without := sorted({layer for layer, _ in parts.values() if layer[0] in lists} - with_block):
        names = ", ".join(f"{layers}.{number}" for layers, number in without)
        raise UserError(
            f"{where}: no feed-forward block in {names}, but in other layers; such a model is not supported"
        )
    if expert := next((name for name in parts if "experts" in name.split(".")), None):
        raise UserError(f"{where}: {expert} is a mixture of experts, which is not supported")
    return list(found.values())


def _layer_of(name: str) -> tuple[str, int] | None:
    """The list of layers that a module is in, and the number of its layer, by the first number in its name."""
    match = re.match(r"(?:(.*?)\.)?(\d+)(?:\.|$)", name)
    return match and (match[1] or "", int(match[2]))


def _projections(module: nn.Module) -> tuple[nn.Module, nn.Module, nn.Module | None] | None:
    named = _own_projections(module)
    if len(named) not in (2, 3):
        return None
    *first, (neurons, features) = map(_shape, named.values())
    plain, halves = (features, neurons), (features, 2 * neurons)
    names, own = list(named), list(named.values())
    if first not in ([plain], [plain, plain], [halves]) or (neurons == features and names[-1] not in _LAST):
        return None
    return own[-2], own[-1], getattr(module, "ffn_layer_norm", None)


def _own_projections(module: nn.Module) -> dict[str, nn.Linear | Conv1D]:
    """Those of the module itself, and of its children that hold a single one, as BERT's."""
    inside = {
        name: [part for part in child.modules() if isinstance(part, _LINEAR)] for name, child in module.named_children()
    }
    return {name: parts[0] for name, parts in inside.items() if len(parts) == 1}


def _shape(linear: nn.Linear | Conv1D) -> tuple[int, int]:
    """Features that go in and that come out."""
    return tuple(linear.weight.shape if isinstance(linear, Conv1D) else reversed(linear.weight.shape))
