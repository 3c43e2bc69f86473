"""One pass over a text: what attention and feed-forward blocks compute goes to statistics and is dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reluformer.analysis.feed_forward import OnScores, OnUpdate, watch_feed_forward
from reluformer.configuration.errors import UserError

IGNORED_LABEL = -100
ENCODER_SELF, DECODER_SELF, CROSS = "encoder_self", "decoder_self", "cross"


@dataclass(frozen=True)
class Batch:
    """Sentence pairs, padded on the right, for an encoder-decoder.

    source_ids: (batch, source). source_mask: boolean, the same, True for real tokens.
    labels: (batch, target), -100 for padding.
    """

    source_ids: Tensor
    source_mask: Tensor
    labels: Tensor

    # What the library calls each kind of attention in the model's output.
    output_names: ClassVar[Mapping[str, str]] = {
        ENCODER_SELF: "encoder_attentions",
        DECODER_SELF: "decoder_attentions",
        CROSS: "cross_attentions",
    }

    @property
    def target_mask(self) -> Tensor:
        """Boolean (batch, target), True for real tokens."""
        return self.labels != IGNORED_LABEL

    @property
    def rows(self) -> dict[str, Tensor]:
        """The real tokens of each stack of layers, boolean (batch, length)."""
        return {"encoder": self.source_mask, "decoder": self.target_mask}

    def inputs(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """What the model is called with."""
        return {
            "input_ids": self.source_ids,
            "attention_mask": self.source_mask.long(),
            "decoder_input_ids": decoder_inputs(model, self.labels),
        }


@dataclass(frozen=True)
class TextBatch:
    """Contexts of one length for a decoder-only model, without padding. input_ids: (batch, length)."""

    input_ids: Tensor

    output_names: ClassVar[Mapping[str, str]] = {DECODER_SELF: "attentions"}

    @property
    def target_mask(self) -> Tensor:
        """Boolean (batch, length): all tokens are real."""
        return torch.ones_like(self.input_ids, dtype=torch.bool)

    @property
    def rows(self) -> dict[str, Tensor]:
        """As in `Batch`."""
        return {"decoder": self.target_mask}

    def inputs(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """What the model is called with."""
        return {"input_ids": self.input_ids}


class AttentionStatistic(Protocol):
    """What `observe` gives attention weights to."""

    def update(self, module: str, layer: int, weights: Tensor, visible: Tensor, /) -> None:
        """`weights` (rows, heads, keys) of real queries; `visible` boolean (rows, keys)."""


def observe(
    model: PreTrainedModel,
    batches: Iterable[Batch | TextBatch],
    *,
    attention: Sequence[AttentionStatistic] = (),
    on_scores: OnScores | None = None,
    on_update: OnUpdate | None = None,
) -> None:
    """Runs a model over teacher-forced pairs or contexts, without dropout, and hands on what it computes.

    At any time the attention weights of one batch at most are in memory.

    Args:
        model: it computes in "eager" attention here and is given back as it was.
        batches: on the model's device.
        attention: get the rows of real queries, module by module and layer by layer.
        on_scores, on_update: see `watch_feed_forward`.

    Raises:
        UserError: a model that returns no attention weights, or weights that do not fit `visible_keys`.
    """
    rows: dict[str, Tensor] = {}
    with eager(model), torch.inference_mode(), watch_feed_forward(model, rows, on_scores, on_update):
        for batch in batches:
            rows.update(batch.rows)
            if attention:
                _hand_on(attention_weights(model, batch), batch, attention)
            else:
                _forward(model, batch)


def _hand_on(
    weights: dict[str, list[Tensor]], batch: Batch | TextBatch, statistics: Sequence[AttentionStatistic]
) -> None:
    for module, layers in weights.items():
        rows, visible = visible_keys(module, batch)
        for layer in range(len(layers)):
            real = layers[layer].transpose(1, 2)[rows]
            layers[layer] = None  # the copy of the real rows is enough
            for statistic in statistics:
                statistic.update(module, layer, real, visible)


def attention_weights(model: PreTrainedModel, batch: Batch | TextBatch) -> dict[str, list[Tensor]]:
    """The weights (batch, heads, queries, keys) of each layer of each kind of attention.

    Call it within `eager`. A query of the decoder belongs to the step that predicts the label at its place.

    Raises:
        UserError: a model that returns no weights; weights of another shape, or with weight on a key that
            `visible_keys` takes for hidden: n_i would be wrong.
    """
    outputs = _forward(model, batch, output_attentions=True)
    found = {}
    for module, name in batch.output_names.items():
        layers = list(getattr(outputs, name, None) or ())
        if not layers or layers[0] is None:
            raise UserError(f"{model.config.model_type}: returns no {name}; only models that do can be read")
        rows, visible = visible_keys(module, batch)
        expected = (rows.shape[0], rows.shape[1], visible.shape[1])
        for layer, weights in enumerate(layers, start=1):
            shape = (weights.shape[0], *weights.shape[2:])
            if shape != expected:
                raise UserError(
                    f"{model.config.model_type}: {name} of layer {layer} have (batch, queries, keys) {shape}, expected "
                    f"{expected}; only attention over all keys can be read"
                )
        _check_hidden(model, module, layers[0].transpose(1, 2)[rows], visible)
        found[module] = layers
    return found


def visible_keys(module: str, batch: Batch | TextBatch) -> tuple[Tensor, Tensor]:
    """Which queries are real, and which keys they see.

    Returns:
        Boolean (batch, queries), and for the real queries in order boolean (rows, keys).
    """
    target = batch.target_mask
    if module == ENCODER_SELF:
        source = batch.source_mask
        return source, source.unsqueeze(1).expand(-1, source.shape[1], -1)[source]
    if module == CROSS:
        return target, batch.source_mask.unsqueeze(1).expand(-1, target.shape[1], -1)[target]
    length = target.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()
    return target, causal.expand(target.shape[0], -1, -1)[target]


def _check_hidden(model: PreTrainedModel, module: str, weights: Tensor, visible: Tensor) -> None:
    if bool((weights != 0).logical_and(~visible.unsqueeze(1)).any()):
        raise UserError(
            f"{model.config.model_type}: {module} attention has weight on padding or on later tokens, so the number of "
            "visible keys is not known; only causal decoders with masked padding can be read"
        )


def decoder_inputs(model: PreTrainedModel, labels: Tensor) -> Tensor:
    """What the decoder reads when it is to predict `labels` (batch, target): the same shape."""
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if shift is None:
        raise UserError(
            f"{model.config.model_type}: cannot be teacher-forced (no prepare_decoder_input_ids_from_labels)"
        )
    return shift(labels=labels)


def _forward(model: PreTrainedModel, batch: Batch | TextBatch, **options: bool) -> object:
    return model(**batch.inputs(model), use_cache=False, **options)


@contextmanager
def eager(model: PreTrainedModel) -> Iterator[None]:
    """The model in evaluation mode and in the one implementation that returns weights; both are restored."""
    training, implementation = model.training, model.config._attn_implementation
    model.eval()
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)
        model.train(training)
