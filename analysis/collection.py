"""What attention and feed-forward blocks compute at real positions, batch by batch: nothing of a batch outlives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from reluformer.analysis.feed_forward import FeedForward, feed_forward_blocks, stack_of
from reluformer.configuration.errors import UserError

ALL = "all"
IGNORED_LABEL = -100
ENCODER_SELF, DECODER_SELF, CROSS = "encoder_self", "decoder_self", "cross"
# The order of tables and pictures: three kinds of attention, and feed-forward memories.
MODULES = (ENCODER_SELF, DECODER_SELF, CROSS, "encoder_ffn", "decoder_ffn")
_OUTPUTS = {ENCODER_SELF: "encoder_attentions", DECODER_SELF: "decoder_attentions", CROSS: "cross_attentions"}


@dataclass(frozen=True)
class Batch:
    """What a model is run on.

    inputs: the arguments of its call. labels: what each row of logits is to predict, (batch, length), -100 for nothing;
    None of pictures. real: by stack, "encoder" and "decoder", boolean (batch, length), True for tokens that are no
    padding; a stack that is missing has none.
    """

    inputs: dict[str, Any]
    labels: Tensor | None = None
    real: dict[str, Tensor] = field(default_factory=dict)


class AttentionRows(NamedTuple):
    """Attention weights (rows, heads, keys) of real queries, and boolean (rows, keys) which keys they see. layer: from
    0."""

    module: str
    layer: int
    weights: Tensor
    visible: Tensor


class BlockRows(NamedTuple):
    """What a feed-forward block computed for real tokens.

    activations: (tokens, neurons), what the last projection multiplies. update: (tokens, features), what is added to
    the residual, after the block's own norm. inputs: (tokens, features), what the block reads.
    """

    block: FeedForward
    activations: Tensor
    update: Tensor
    inputs: Tensor


def attention_rows(model: PreTrainedModel, batches: Iterable[Batch]) -> Iterator[AttentionRows]:
    """The attention of a model, without dropout: of each batch module by module, layer by layer.

    A query of a decoder belongs to the step that predicts the label at its position.

    Raises:
        UserError: a model that returns no weights, or weights that do not fit the keys it is taken to see: n_i would be
            wrong.
    """
    names = _OUTPUTS if model.config.is_encoder_decoder else {f"{stack_of(model)}_self": "attentions"}
    for batch in batches:
        outputs = forward(model, batch, output_attentions=True)
        for module, name in names.items():
            layers = getattr(outputs, name, None) or (None,)
            if layers[0] is None:
                raise UserError(f"{model.config.model_type}: returns no {name}; only models that do can be read")
            for layer, weights in enumerate(layers):
                rows, visible = visible_keys(module, batch, weights)
                real = weights.transpose(1, 2)[rows]
                if layer == 0 and bool(((real != 0) & ~visible.unsqueeze(1)).any()):
                    raise UserError(
                        f"{model.config.model_type}: {module} attention has weight on padding or on later tokens, so "
                        "the number of visible keys is not known; only causal decoders with masked padding can be read"
                    )
                yield AttentionRows(module, layer, real, visible)


def visible_keys(module: str, batch: Batch, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Which queries are real, boolean (batch, queries), and for these in order which keys they see, boolean (rows,
    keys).

    weights: (batch, heads, queries, keys).
    """
    size, _, queries, keys = weights.shape
    all_real = [torch.ones(size, length, dtype=torch.bool, device=weights.device) for length in (queries, keys)]
    rows = batch.real.get("encoder" if module == ENCODER_SELF else "decoder", all_real[0])
    columns = batch.real.get("decoder" if module == DECODER_SELF else "encoder", all_real[1])
    visible = columns.unsqueeze(1).expand(size, queries, keys)
    return rows, (visible.tril() if module == DECODER_SELF else visible)[rows]


def block_rows(model: PreTrainedModel, batches: Iterable[Batch]) -> Iterator[BlockRows]:
    """What every feed-forward block computes, without dropout: of each batch block by block.

    Raises:
        UserError: see `feed_forward_blocks`.
    """
    blocks = feed_forward_blocks(model)
    for batch in batches:
        with recorded(blocks, batch) as rows:
            forward(model, batch)
        yield from rows


@contextmanager
def recorded(blocks: Iterable[FeedForward], batch: Batch) -> Iterator[list[BlockRows]]:
    """A list that gets what these blocks compute, in order, while a model is run on the batch."""
    rows: list[BlockRows] = []
    handles = [handle for block in blocks for handle in _record(block, batch, rows)]
    try:
        yield rows
    finally:
        for handle in handles:
            handle.remove()


def _record(block: FeedForward, batch: Batch, rows: list[BlockRows]) -> list[RemovableHandle]:
    held: list[Tensor] = []  # what the first and the last projection read

    def read(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        held.append(_real_tokens(inputs[0], block, batch))

    def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        residual, activations = held
        rows.append(BlockRows(block, activations, _real_tokens(output, block, batch), residual))
        held.clear()

    return [
        block.keys.register_forward_pre_hook(read),
        block.values.register_forward_pre_hook(read),
        (block.norm or block.values).register_forward_hook(add),
    ]


def _real_tokens(states: Tensor, block: FeedForward, batch: Batch) -> Tensor:
    """(tokens, features) of real tokens."""
    real = batch.real.get(block.stack)
    if real is None:
        return states.flatten(0, -2)
    if states.shape[:-1] == (real.numel(),):  # OPT's: the tokens of all sequences in one row
        states = states.unflatten(0, real.shape)
    return states[real]


@torch.inference_mode()
def forward(model: PreTrainedModel, batch: Batch, **options: bool) -> ModelOutput:
    """One pass over a batch in evaluation mode and "eager" attention, which returns weights; the model is left as it
    was."""
    training, implementation = model.training, model.config._attn_implementation
    model.eval()
    model.set_attn_implementation("eager")
    try:
        return model(**batch.inputs, **options)
    finally:
        model.set_attn_implementation(implementation)
        model.train(training)


def pair_batch(model: PreTrainedModel, pairs: list[tuple[list[int], list[int]]]) -> Batch:
    """Pairs of source ids and labels for an encoder-decoder, teacher-forced, padded on the right.

    Raises:
        UserError: a model that does not say what its decoder reads.
    """
    if not hasattr(model, "prepare_decoder_input_ids_from_labels"):
        raise UserError(
            f"{model.config.model_type}: cannot be teacher-forced (no prepare_decoder_input_ids_from_labels)"
        )
    source, target = (
        pad_sequence([torch.tensor(ids) for ids in side], batch_first=True, padding_value=IGNORED_LABEL).to(
            model.device
        )
        for side in zip(*pairs, strict=True)
    )
    real = {"encoder": source != IGNORED_LABEL, "decoder": target != IGNORED_LABEL}
    inputs = {
        "input_ids": source.where(real["encoder"], 0),
        "attention_mask": real["encoder"].long(),
        "decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels=target),
        "use_cache": False,
    }
    return Batch(inputs, target, real)


def text_batch(ids: Tensor) -> Batch:
    """Contexts (batch, length) of one length for a decoder-only model; each token is to predict the next."""
    labels = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=IGNORED_LABEL)
    real = {"decoder": torch.ones_like(ids, dtype=torch.bool)}
    return Batch({"input_ids": ids, "use_cache": False}, labels, real)


class HeadSums:
    """Sums over rows, in float64, of named figures of each module, layer and head.

    layers: by module and layer, from 0, the figures (heads,) by name.
    """

    def __init__(self) -> None:
        self.layers: dict[tuple[str, int], dict[Any, Tensor]] = {}

    def add(self, module: str, layer: int, figures: dict[Any, Tensor]) -> None:
        """Adds figures (rows, heads), by name, of one layer, counted from 0."""
        sums = self.layers.setdefault((module, layer), {})
        for name, values in figures.items():
            sums[name] = sums.get(name, 0) + values.double().sum(dim=0).cpu()

    def groups(self) -> Iterator[tuple[dict[str, str | int], dict[Any, float]]]:
        """Sums over everything, each module, each of its layers, and each head; layers and heads are counted from 1.

        First of each: `module`, `layer` and `head`, of which `ALL` stands for a sum over them.
        """
        yield {"module": ALL, "layer": ALL, "head": ALL}, _total(self.layers.values())
        for module in sorted({module for module, _ in self.layers}, key=MODULES.index):
            layers = {layer: sums for (name, layer), sums in sorted(self.layers.items()) if name == module}
            yield {"module": module, "layer": ALL, "head": ALL}, _total(layers.values())
            for layer, sums in layers.items():
                group = {"module": module, "layer": layer + 1}
                yield group | {"head": ALL}, _total([sums])
                for head, values in enumerate(zip(*sums.values(), strict=True), start=1):
                    yield group | {"head": head}, dict(zip(sums, map(float, values), strict=True))


def _total(layers: Iterable[dict[Any, Tensor]]) -> dict[Any, float]:
    total: Counter[Any] = Counter()
    for sums in layers:
        total.update({name: float(values.sum()) for name, values in sums.items()})
    return total
