"""What the forward passes return."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPast,
    BaseModelOutputWithPastAndCrossAttentions,
    BaseModelOutputWithPooling,
    CausalLMOutputWithPast,
    ImageClassifierOutput,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)

from .attention_reluformer import AttentionContext
from .regularization_reluformer import module_figures

# Of a layer: hidden states, norms of its FFN, and, where figures are wanted, S and T of the rows of each of its attentions,
# (batch, heads, queries) each. Not nested: reentrant checkpointing differentiates no tensor of an inner tuple.
LayerOutput = tuple[Tensor | None, ...]


@dataclass
class LayerFigures:
    """`attention_figures`: (modules, 5), see `module_figures`; `ffn_norms`: (FFNs,), see `activation_norms`; None where not
    asked for. A mixin before the library's output, whose fields come first."""

    attention_figures: Tensor | None = None
    ffn_norms: Tensor | None = None


@dataclass
class LossFigures:
    """With `labels`, the loss, its parts per item and figures of the attention. All are scalars, None where undefined.

    An item is what the loss is a mean over: a target token, or a picture. A mixin, as `LayerFigures`.

    cross_entropy, regularization: loss = cross_entropy + config.regularization_weight · regularization (Eq. 7), plus
        config.ffn_l1_weight · ffn_l1, the mean of `‖a‖₁` over FFNs and items. For pictures `cross_entropy` is the loss of the
        kind of problem.
    attention_sum, attention_entropy, dead_row_fraction: means of S, of H (nats) and of rows without any positive weight
        over all attention modules, heads and real query rows.
    """

    cross_entropy: Tensor | None = None
    regularization: Tensor | None = None
    attention_sum: Tensor | None = None
    attention_entropy: Tensor | None = None
    dead_row_fraction: Tensor | None = None
    ffn_l1: Tensor | None = None


@dataclass
class ReLUFormerEncoderOutput(LayerFigures, BaseModelOutput):
    """Of the encoder of a translation model."""


@dataclass
class ReLUFormerDecoderOutput(LayerFigures, BaseModelOutputWithPastAndCrossAttentions):
    """Of the decoder of a translation model."""


@dataclass
class ReLUFormerModelOutput(LayerFigures, Seq2SeqModelOutput):
    """Of encoder and decoder: the figures of both, the encoder's first."""


@dataclass
class ReLUFormerSeq2SeqLMOutput(LossFigures, Seq2SeqLMOutput):
    """Of a translation model: its loss, see `LossFigures`."""


@dataclass
class ReLUFormerDecoderModelOutput(LayerFigures, BaseModelOutputWithPast):
    """Of a language model without its head."""


@dataclass
class ReLUFormerCausalLMOutput(LossFigures, CausalLMOutputWithPast):
    """Of a language model: its loss, see `LossFigures`."""


@dataclass
class ReLUFormerVisionOutput(LayerFigures, BaseModelOutputWithPooling):
    """Of a Vision Transformer without its classifier."""


@dataclass
class ReLUFormerImageClassifierOutput(LossFigures, ImageClassifierOutput):
    """Of a classifier of pictures: its loss, see `LossFigures`."""


def join_figures(figures: list[Tensor | None]) -> Tensor | None:
    figures = [part for part in figures if part is not None]
    return torch.cat([part.to(figures[0].device) for part in figures]) if figures else None


def run_layers(
    layers: Iterable[nn.Module], hidden_states: Tensor, *arguments: Any, **options: Any
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """hidden_states (batch, length, features) through all layers → the same, `attention_figures` and `ffn_norms` of them all."""
    sums, norms = [], []
    for layer in layers:
        hidden_states, layer_norms, *layer_sums = layer(hidden_states, *arguments, **options)
        norms.append(layer_norms)
        sums.append(layer_sums)
    contexts = [item for item in arguments if isinstance(item, AttentionContext)]
    # one kind of attention after the other, so that the modules of a kind, which share their shape, are computed at once
    stacked = [
        None if parts[0] is None else torch.stack([part.to(parts[0].device) for part in parts])
        for parts in zip(*sums, strict=True)
    ]
    figures = [_figures(*kind) for kind in zip(contexts, stacked[::2], stacked[1::2], strict=False)]
    return hidden_states, join_figures(figures), join_figures(norms)


def _figures(context: AttentionContext, row_sum: Tensor, row_sum_log: Tensor | None) -> Tensor:
    """`module_figures` of the attention modules that share a context; S and T (modules, batch, heads, queries)."""
    visible_keys, row_weight = (item.to(row_sum.device) for item in (context.visible_keys, context.row_weight))
    return module_figures(row_sum, row_sum_log, visible_keys, row_weight, entropy_margin=context.entropy_margin)
