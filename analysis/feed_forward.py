"""Feed-forward blocks read as key-value memories (Eq. 1 and 2): where they are, and what passes through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from reluformer.configuration.errors import UserError

# Names of the two projections: ReLUFormer, Marian, BART, OPT and their relatives; T5; GPT-2; Llama and its relatives, whose gate
# stands beside the first.
_PROJECTIONS = (("fc1", "fc2"), ("wi", "wo"), ("c_fc", "c_proj"), ("up_proj", "down_proj"))
_LINEAR = (nn.Linear, Conv1D)  # GPT-2's, which holds its weight transposed
# Their residual is the block's input, and what is added is the output of the second projection or of the norm after it.
_POST_NORM = ("reluformer", "marian")

OnScores = Callable[[str, int, Tensor], None]
OnUpdate = Callable[[str, int, Tensor, Tensor], None]


@dataclass(frozen=True)
class FeedForward:
    """One block: `keys` is W_1 (its rows are the keys), `values` W_2 (its columns are the value slots), but for GPT-2's `Conv1D`.

    stack: "encoder" or "decoder". layer: from 0. norm: the layer norm on the result (Table 1), or None.
    """

    stack: str
    layer: int
    keys: nn.Linear | Conv1D
    values: nn.Linear | Conv1D
    norm: nn.Module | None


def feed_forward_blocks(model: PreTrainedModel) -> list[FeedForward]:
    """The blocks of encoder and decoder in order, or of a model that is a decoder alone.

    Raises:
        UserError: none found, or not one for each layer of a stack.
    """
    blocks = []
    stacks = {"decoder": model.base_model}
    if model.config.is_encoder_decoder:
        stacks = {"encoder": model.get_encoder(), "decoder": model.get_decoder()}
    for stack, module in stacks.items():
        found = [names for part in module.modules() if (names := _projections(part)) is not None]
        blocks += [FeedForward(stack, layer, *parts) for layer, parts in enumerate(found)]
        if not found:
            names = " or ".join("/".join(pair) for pair in _PROJECTIONS)
            raise UserError(
                f"{model.config.model_type}: no feed-forward blocks with projections called {names} in its {stack}; "
                "what the memory holds can be read in ReLUFormer, Marian, BART, T5, GPT-2 and Llama models"
            )
    return blocks


def _projections(module: nn.Module) -> tuple[nn.Linear | Conv1D, nn.Linear | Conv1D, nn.Module | None] | None:
    for names in _PROJECTIONS:
        keys, values = (getattr(module, name, None) for name in names)
        if isinstance(keys, _LINEAR) and isinstance(values, _LINEAR):
            return keys, values, getattr(module, "ffn_layer_norm", None)
    return None


def require_post_norm(model: PreTrainedModel) -> None:
    """Raises a `UserError` for models in which a block's input is not known to be its residual."""
    if model.config.model_type not in _POST_NORM:
        raise UserError(
            f"variance-ratio: {model.config.model_type} models are not supported, since their residual need not be the "
            f"feed-forward block's input; it reads {' and '.join(_POST_NORM)} models"
        )


@contextmanager
def watch_feed_forward(
    model: PreTrainedModel,
    rows: Mapping[str, Tensor],
    on_scores: OnScores | None = None,
    on_update: OnUpdate | None = None,
) -> Iterator[None]:
    """Calls back with what every feed-forward block computes in each forward pass; nothing is kept.

    Args:
        model: in evaluation mode.
        rows: boolean (batch, length) for "encoder" and "decoder", True for real tokens; set anew before each pass.
        on_scores: called with stack, layer and the scores (real tokens, slots) that weigh the value slots.
        on_update: called with stack, layer, what is added to the residual, and the residual: (real tokens, features).

    Raises:
        UserError: see `feed_forward_blocks`.
    """
    with ExitStack() as hooks:
        if on_scores is not None or on_update is not None:
            for block in feed_forward_blocks(model):
                for handle in _hooks(block, rows, on_scores, on_update):
                    hooks.callback(handle.remove)
        yield


def _hooks(
    block: FeedForward, rows: Mapping[str, Tensor], on_scores: OnScores | None, on_update: OnUpdate | None
) -> Iterator:
    def real(states: Tensor) -> Tensor:
        if states.shape[:-1] != rows[block.stack].shape:
            raise UserError(
                f"feed-forward block of {block.stack} layer {block.layer + 1}: expected (batch, length, features) with "
                f"{tuple(rows[block.stack].shape)} first, got {tuple(states.shape)}; such a model is not supported"
            )
        return states[rows[block.stack]]

    if on_scores is not None:
        yield block.values.register_forward_pre_hook(
            lambda module, inputs: on_scores(block.stack, block.layer, real(inputs[0]))
        )
    if on_update is not None:
        residual: list[Tensor] = []
        yield block.keys.register_forward_pre_hook(lambda module, inputs: residual.append(inputs[0]))
        yield (block.norm or block.values).register_forward_hook(
            lambda module, inputs, output: on_update(block.stack, block.layer, real(output), real(residual.pop()))
        )
