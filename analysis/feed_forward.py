"""Feed-forward blocks read as key-value memories (Eq. 1 and 2): where they are, and what passes through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from reluformer.configuration.errors import UserError

# GPT-2's, which holds its weight transposed.
_LINEAR = (nn.Linear, Conv1D)
# Names of the last projection, which alone tell a block as wide as the model from queries, keys and values.
_LAST = ("fc2", "wo", "c_proj", "down_proj")
# Their residual is the block's input, and what is added is the output of the second projection or of the norm after it.
_POST_NORM = ("reluformer", "marian")

OnScores = Callable[[str, int, Tensor], None]
OnUpdate = Callable[[str, int, Tensor, Tensor], None]


@dataclass(frozen=True)
class FeedForward:
    """One block: `keys` is W_1 (its rows are the keys), `values` W_2 (its columns are the value slots), but for GPT-2's `Conv1D`.

    With a gate, `keys` is the projection beside it that was made last: Llama's `up_proj`.

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
        UserError: a stack without any; the message says which projections it has instead. Layers of which some have none, or a
            mixture of experts: the blocks that are found would not be all.
    """
    blocks = []
    stacks = {stack_of(model): model.base_model}
    if model.config.is_encoder_decoder:
        stacks = {"encoder": model.get_encoder(), "decoder": model.get_decoder()}
    for stack, module in stacks.items():
        numbered = {name: part for name, part in module.named_modules() if _layer_of(name) is not None}
        found = {name: block for name, part in numbered.items() if (block := _projections(part)) is not None}
        blocks += [FeedForward(stack, layer, *block) for layer, block in enumerate(found.values())]
        if not found:
            raise UserError(
                f"{model.config.model_type}: no feed-forward blocks in its {stack}; expected layers with projections d→f and "
                f"f→d, or two d→f and one f→d; {_what_there_is(list(numbered.values()))}"
            )
        _refuse_parts(f"{model.config.model_type}, {stack}", list(numbered), list(found))
    return blocks


def _layer_of(name: str) -> tuple[str, int] | None:
    """The list of layers that a module is in, and the number of its layer, by the first number in its name."""
    words = name.split(".")
    at = next((place for place, word in enumerate(words) if word.isdigit()), None)
    return None if at is None else (".".join(words[:at]), int(words[at]))


def _refuse_parts(where: str, numbered: list[str], found: list[str]) -> None:
    """Refuses layers whose other networks would be left out."""
    layers = {_layer_of(name) for name in found}
    lists = {each for each, _ in layers}
    if without := sorted({layer for name in numbered if (layer := _layer_of(name))[0] in lists} - layers):
        names = ", ".join(f"{each}.{number}" for each, number in without)
        raise UserError(
            f"{where}: no feed-forward block in {names}, but in other layers; such a model is not supported"
        )
    if expert := next((name for name in numbered if "experts" in name.split(".")), None):
        raise UserError(f"{where}: {expert} is a mixture of experts, which is not supported")


def stack_of(model: PreTrainedModel) -> str:
    """What the one stack of a model that is no encoder-decoder is called: that of a classifier of pictures "encoder"."""
    return "encoder" if model.main_input_name == "pixel_values" else "decoder"


def _projections(module: nn.Module) -> tuple[nn.Linear | Conv1D, nn.Linear | Conv1D, nn.Module | None] | None:
    named = _own_projections(module)
    if len(named) not in (2, 3):
        return None
    names, own = zip(*named, strict=True)
    *first, (neurons, features) = [_shape(linear) for linear in own]
    plain, halves = (features, neurons), (features, 2 * neurons)
    if first not in ([plain], [plain, plain], [halves]) or (neurons == features and names[-1] not in _LAST):
        return None
    return own[-2], own[-1], getattr(module, "ffn_layer_norm", None)


def _own_projections(module: nn.Module) -> list[tuple[str, nn.Linear | Conv1D]]:
    """Those of the module itself, and of its children that hold a single one, as BERT's."""
    found = []
    for name, child in module.named_children():
        inside = [part for part in child.modules() if isinstance(part, _LINEAR)]
        found += [(name, part) for part in inside] if len(inside) == 1 else []
    return found


def _shape(linear: nn.Linear | Conv1D) -> tuple[int, int]:
    """Features that go in and that come out."""
    return tuple(linear.weight.shape if isinstance(linear, Conv1D) else reversed(linear.weight.shape))


def _what_there_is(parts: list[nn.Module], shown: int = 3) -> str:
    """The projections of the first modules of each class, for an error."""
    kinds = {type(part).__name__: own for part in reversed(parts) if len(own := _own_projections(part)) > 1}
    lists = []
    for kind, own in list(kinds.items())[:shown]:
        shapes = [f"{name} {'→'.join(map(str, _shape(linear)))}" for name, linear in own]
        lists.append(f"{kind} with {', '.join(shapes)}")
    return f"found {'; '.join(lists)}" if lists else "found no layers with two projections"


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
    rows: Mapping[str, Tensor | None],
    on_scores: OnScores | None = None,
    on_update: OnUpdate | None = None,
) -> Iterator[None]:
    """Calls back with what every feed-forward block computes in each forward pass; nothing is kept.

    Args:
        model: in evaluation mode.
        rows: boolean (batch, length) for "encoder" and "decoder", True for real tokens, None where all are; set anew before
            each pass.
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
    block: FeedForward, rows: Mapping[str, Tensor | None], on_scores: OnScores | None, on_update: OnUpdate | None
) -> Iterator:
    def real(states: Tensor) -> Tensor:
        wanted = rows[block.stack]
        if wanted is None:
            return states.flatten(0, -2)
        if states.shape[:-1] == (wanted.numel(),):  # OPT's: the tokens of all sequences in one row
            states = states.unflatten(0, wanted.shape)
        if states.shape[:-1] != wanted.shape:
            raise UserError(
                f"feed-forward block of {block.stack} layer {block.layer + 1}: expected (batch, length, features) with "
                f"{tuple(wanted.shape)} first, got {tuple(states.shape)}; such a model is not supported"
            )
        return states[wanted]

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
