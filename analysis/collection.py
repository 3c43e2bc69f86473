"""One pass over a text: what attention and feed-forward blocks compute goes to statistics and is dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reluformer.analysis.feed_forward import OnScores, OnUpdate, watch_feed_forward
from reluformer.configuration.errors import UserError

IGNORED_LABEL = -100
ENCODER_SELF, DECODER_SELF, CROSS = "encoder_self", "decoder_self", "cross"
# What the library calls them in a model's output.
_OUTPUT_NAMES = {
    ENCODER_SELF: "encoder_attentions",
    DECODER_SELF: "decoder_attentions",
    CROSS: "cross_attentions",
}


@dataclass(frozen=True)
class Batch:
    """Sentence pairs, padded on the right.

    source_ids: (batch, source). source_mask: boolean, the same, True for real tokens.
    labels: (batch, target), -100 for padding.
    """

    source_ids: Tensor
    source_mask: Tensor
    labels: Tensor

    @property
    def target_mask(self) -> Tensor:
        """Boolean (batch, target), True for real tokens."""
        return self.labels != IGNORED_LABEL


class AttentionStatistic(Protocol):
    """What `observe` gives attention weights to."""

    def update(self, module: str, layer: int, weights: Tensor, visible: Tensor, /) -> None:
        """`weights` (rows, heads, keys) of real queries; `visible` boolean (rows, keys)."""


def observe(
    model: PreTrainedModel,
    batches: Iterable[Batch],
    *,
    attention: Sequence[AttentionStatistic] = (),
    on_scores: OnScores | None = None,
    on_update: OnUpdate | None = None,
) -> None:
    """Runs a model over teacher-forced pairs, without dropout, and hands on what it computes.

    At any time the attention weights of one batch at most are in memory.

    Args:
        model: an encoder-decoder; it computes in "eager" attention here and is given back as it was.
        batches: on the model's device.
        attention: get the rows of real queries, module by module and layer by layer.
        on_scores, on_update: see `watch_feed_forward`.

    Raises:
        UserError: a model that returns no attention weights, or weights that do not fit `visible_keys`.
    """
    rows: dict[str, Tensor] = {}
    with eager(model), torch.inference_mode(), watch_feed_forward(model, rows, on_scores, on_update):
        for batch in batches:
            rows.update(encoder=batch.source_mask, decoder=batch.target_mask)
            if attention:
                _hand_on(attention_weights(model, batch), batch, attention)
            else:
                _forward(model, batch)


def _hand_on(weights: dict[str, list[Tensor]], batch: Batch, statistics: Sequence[AttentionStatistic]) -> None:
    for module, layers in weights.items():
        rows, visible = visible_keys(module, batch)
        for layer in range(len(layers)):
            real = layers[layer].transpose(1, 2)[rows]
            layers[layer] = None  # the copy of the real rows is enough
            for statistic in statistics:
                statistic.update(module, layer, real, visible)


def attention_weights(model: PreTrainedModel, batch: Batch) -> dict[str, list[Tensor]]:
    """The weights (batch, heads, queries, keys) of each layer of the three kinds of attention.

    Call it within `eager`. A query of the decoder belongs to the step that predicts the label at its place.

    Raises:
        UserError: a model that returns no weights; weights of another shape, or with weight on a key that
            `visible_keys` takes for hidden: n_i would be wrong.
    """
    outputs = _forward(model, batch, output_attentions=True)
    found = {}
    for module, name in _OUTPUT_NAMES.items():
        layers = list(getattr(outputs, name, None) or ())
        if not layers or layers[0] is None:
            raise UserError(f"{model.config.model_type}: returns no {name}; it must be an encoder-decoder that does")
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


def visible_keys(module: str, batch: Batch) -> tuple[Tensor, Tensor]:
    """Which queries are real, and which keys they see.

    Returns:
        Boolean (batch, queries), and for the real queries in order boolean (rows, keys).
    """
    source, target = batch.source_mask, batch.target_mask
    if module == ENCODER_SELF:
        return source, source.unsqueeze(1).expand(-1, source.shape[1], -1)[source]
    if module == CROSS:
        return target, source.unsqueeze(1).expand(-1, target.shape[1], -1)[target]
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


def _forward(model: PreTrainedModel, batch: Batch, **options: bool) -> object:
    return model(
        input_ids=batch.source_ids,
        attention_mask=batch.source_mask.long(),
        decoder_input_ids=decoder_inputs(model, batch.labels),
        use_cache=False,
        **options,
    )


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
