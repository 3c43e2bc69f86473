"""One pass over a text: what attention and feed-forward blocks compute goes to statistics and is dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from reluformer.analysis.feed_forward import OnScores, OnUpdate, watch_feed_forward
from reluformer.configuration.errors import UserError

ALL = "all"
# The order of tables and pictures: three kinds of attention, and feed-forward memories, which have one "head".
MODULES = ("encoder_self", "decoder_self", "cross", "encoder_ffn", "decoder_ffn")
Place = tuple[str, int | str, int | str]


class HeadSums:
    """A vector of float64 sums for each (module, layer, head); nothing else is kept."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int], Tensor] = {}

    def add(self, module: str, layer: int, values: Tensor) -> None:
        """Adds `values` (heads, figures) to the sums of one layer, counted from 0."""
        values = values.double().cpu()
        known = self._sums.get((module, layer))
        self._sums[module, layer] = values if known is None else known + values

    def modules(self) -> list[str]:
        """The modules met so far, in the order of `MODULES`."""
        return sorted({module for module, _ in self._sums}, key=MODULES.index)

    def heads(self, module: str) -> int:
        """How many heads the layers of a module have."""
        return next(len(values) for (name, _), values in self._sums.items() if name == module)

    def total(self) -> Tensor:
        """The sums (figures,) over everything."""
        return sum(values.sum(dim=0) for values in self._sums.values())

    def groups(self) -> Iterator[tuple[Place, Tensor]]:
        """(module, layer, head) and sums (figures,): each head, each layer, each module; layers and heads from 1.

        `ALL` stands for a sum over heads or layers.
        """
        for module in self.modules():
            layers = sorted(layer for name, layer in self._sums if name == module)
            yield (module, ALL, ALL), sum(self._sums[module, layer].sum(dim=0) for layer in layers)
            for layer in layers:
                sums = self._sums[module, layer]
                yield (module, layer + 1, ALL), sums.sum(dim=0)
                for head, figures in enumerate(sums, start=1):
                    yield (module, layer + 1, head), figures


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
    def rows(self) -> dict[str, Tensor | None]:
        """The real tokens of each stack of layers, boolean (batch, length); None: all are."""
        return {"encoder": self.source_mask, "decoder": self.target_mask}

    @property
    def predicted(self) -> Tensor:
        """The label of each row of logits, -100 where there is none: (batch, target)."""
        return self.labels

    @property
    def token_ids(self) -> dict[str, Tensor]:
        """The ids that name the tokens of each stack, (batch, length); of the decoder, those that it predicts."""
        return {"encoder": self.source_ids, "decoder": self.labels}

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
    def rows(self) -> dict[str, Tensor | None]:
        """As in `Batch`."""
        return {"decoder": self.target_mask}

    @property
    def predicted(self) -> Tensor:
        """As in `Batch`: the next token of each."""
        return torch.nn.functional.pad(self.input_ids[:, 1:], (0, 1), value=IGNORED_LABEL)

    @property
    def token_ids(self) -> dict[str, Tensor]:
        """As in `Batch`; here those that the decoder reads."""
        return {"decoder": self.input_ids}

    def inputs(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """What the model is called with."""
        return {"input_ids": self.input_ids}


@dataclass(frozen=True)
class ImageBatch:
    """Pictures for a classifier. pixel_values: (batch, channels, height, width). labels: (batch,). tokens: of a picture."""

    pixel_values: Tensor
    labels: Tensor
    tokens: int

    output_names: ClassVar[Mapping[str, str]] = {ENCODER_SELF: "attentions"}

    @property
    def source_mask(self) -> Tensor:
        """Boolean (batch, tokens): all tokens are real."""
        return self.pixel_values.new_ones(len(self.pixel_values), self.tokens, dtype=torch.bool)

    @property
    def rows(self) -> dict[str, Tensor | None]:
        """As in `Batch`."""
        return {"encoder": None}

    @property
    def predicted(self) -> Tensor:
        """As in `Batch`: the class of each picture, (batch,)."""
        return self.labels

    @property
    def token_ids(self) -> dict[str, Tensor]:
        """As in `Batch`: patches have none."""
        return {}

    def inputs(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """What the model is called with."""
        return {"pixel_values": self.pixel_values}


AnyBatch = Batch | TextBatch | ImageBatch


class AttentionStatistic(Protocol):
    """What `observe` gives attention weights to."""

    def update(self, module: str, layer: int, weights: Tensor, visible: Tensor, /) -> None:
        """`weights` (rows, heads, keys) of real queries; `visible` boolean (rows, keys)."""


def observe(
    model: PreTrainedModel,
    batches: Iterable[AnyBatch],
    *,
    attention: Sequence[AttentionStatistic] = (),
    on_scores: OnScores | None = None,
    on_update: OnUpdate | None = None,
    on_batch: Callable[[AnyBatch], None] | None = None,
    on_logits: Callable[[AnyBatch, Tensor], None] | None = None,
) -> None:
    """Runs a model over teacher-forced pairs, contexts or pictures, without dropout, and hands on what it computes.

    At any time the attention weights of one batch at most are in memory.

    Args:
        model: it computes in "eager" attention here and is given back as it was.
        batches: on the model's device.
        attention: get the rows of real queries, module by module and layer by layer.
        on_scores, on_update: see `watch_feed_forward`.
        on_batch: called with each batch before the model is.
        on_logits: called with each batch and the model's logits of it.

    Raises:
        UserError: a model that returns no attention weights, or weights that do not fit `visible_keys`.
    """
    rows: dict[str, Tensor | None] = {}
    with eager(model), torch.inference_mode(), watch_feed_forward(model, rows, on_scores, on_update):
        for batch in batches:
            rows.update(batch.rows)
            if on_batch is not None:
                on_batch(batch)
            if attention or on_scores or on_update or on_logits:
                outputs = forward(model, batch, **({"output_attentions": True} if attention else {}))
                if on_logits is not None:
                    on_logits(batch, outputs.logits)
                weights = _weights_of(model, outputs, batch) if attention else {}
                del outputs  # `_hand_on` drops the weights layer by layer
                _hand_on(weights, batch, attention)


def _hand_on(weights: dict[str, list[Tensor]], batch: AnyBatch, statistics: Sequence[AttentionStatistic]) -> None:
    for module, layers in weights.items():
        rows, visible = visible_keys(module, batch)
        for layer in range(len(layers)):
            real = layers[layer].transpose(1, 2)[rows]
            layers[layer] = None  # the copy of the real rows is enough
            for statistic in statistics:
                statistic.update(module, layer, real, visible)


def attention_weights(model: PreTrainedModel, batch: AnyBatch) -> dict[str, list[Tensor]]:
    """The weights (batch, heads, queries, keys) of each layer of each kind of attention.

    Call it within `eager`. A query of the decoder belongs to the step that predicts the label at its place.

    Raises:
        UserError: a model that returns no weights; weights of another shape, or with weight on a key that
            `visible_keys` takes for hidden: n_i would be wrong.
    """
    return _weights_of(model, forward(model, batch, output_attentions=True), batch)


def _weights_of(model: PreTrainedModel, outputs: ModelOutput, batch: AnyBatch) -> dict[str, list[Tensor]]:
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


def visible_keys(module: str, batch: AnyBatch) -> tuple[Tensor, Tensor]:
    """Which queries are real, and which keys they see.

    Returns:
        Boolean (batch, queries), and for the real queries in order boolean (rows, keys).
    """
    if module == ENCODER_SELF:
        source = batch.source_mask
        return source, source.unsqueeze(1).expand(-1, source.shape[1], -1)[source]
    target = batch.target_mask
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


def forward(model: PreTrainedModel, batch: AnyBatch, **options: bool) -> ModelOutput:
    """One pass over a batch, without a cache."""
    cached = {} if isinstance(batch, ImageBatch) else {"use_cache": False}
    return model(**batch.inputs(model), **cached, **options)


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
