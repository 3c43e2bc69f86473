"""Where the feed-forward blocks of a model are, read as key-value memories (Eq. 1 and 2)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from reluformer.configuration.errors import UserError

# Names of the first projection (of two beside each other one) and the last: OPT, Marian, ViT and ours; Llama; T5;
# GPT-2; BERT.
_PROJECTIONS = (
    ("fc1", "fc2"),
    ("up_proj", "down_proj"),
    ("wi", "wo"),
    ("wi_1", "wo"),
    ("c_fc", "c_proj"),
    ("intermediate.dense", "output.dense"),
)


class FeedForward(NamedTuple):
    """One block: the rows of `keys` (W_1) are the keys, the columns of `values` (W_2) the value slots; of a Conv1D the
    reverse.

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
    """The blocks of encoder and decoder in order, or of a model that is one stack alone, found by the names of their
    projections.

    Raises:
        UserError: a stack without any, or a mixture of experts, of which not all blocks would be found.
    """
    stacks = {stack_of(model): model.base_model}
    if model.config.is_encoder_decoder:
        stacks = {"encoder": model.get_encoder(), "decoder": model.get_decoder()}
    return [block for stack, module in stacks.items() for block in _blocks_of(stack, module, model.config.model_type)]


def stack_of(model: PreTrainedModel) -> str:
    """What the one stack of a model that is no encoder-decoder is called: that of a classifier of pictures
    "encoder"."""
    return "encoder" if model.main_input_name == "pixel_values" else "decoder"


def _blocks_of(stack: str, module: nn.Module, model_type: str) -> list[FeedForward]:
    parts = dict(module.named_modules())
    if expert := next((name for name in parts if "expert" in name), None):
        raise UserError(f"{model_type}, {stack}: {expert} is a mixture of experts, which is not supported")
    blocks: list[FeedForward] = []
    for name, part in parts.items():
        for names in _PROJECTIONS:
            keys, values = (parts.get(f"{name}.{each}") for each in names)
            if keys is not None and values is not None:
                norm = getattr(part, "ffn_layer_norm", None)
                blocks.append(FeedForward(stack, len(blocks), keys, values, norm))
    if not blocks:
        known = ", ".join("/".join(names) for names in _PROJECTIONS)
        raise UserError(f"{model_type}, {stack}: no feed-forward blocks found; expected projections called {known}")
    return blocks
