"""What the forward passes return."""

from dataclasses import dataclass

import torch
from torch import Tensor
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


@dataclass
class ReLUFormerEncoderOutput(BaseModelOutput):
    """`attention_figures`: (encoder modules, 5), see `module_figures`; `ffn_norms`: (FFNs,), see `activation_norms`; None where
    not asked for."""

    attention_figures: Tensor | None = None
    ffn_norms: Tensor | None = None


@dataclass
class ReLUFormerDecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """`attention_figures`: (decoder modules, 5), see `module_figures`; `ffn_norms`: (FFNs,), see `activation_norms`; None where
    not asked for."""

    attention_figures: Tensor | None = None
    ffn_norms: Tensor | None = None


@dataclass
class ReLUFormerModelOutput(Seq2SeqModelOutput):
    """`attention_figures`: (modules, 5), see `module_figures`; `ffn_norms`: (FFNs,), see `activation_norms`; None where not
    asked for."""

    attention_figures: Tensor | None = None
    ffn_norms: Tensor | None = None


@dataclass
class ReLUFormerSeq2SeqLMOutput(Seq2SeqLMOutput):
    """With `labels`, the loss, its parts per target token and figures of the attention. All are scalars, None where undefined.

    cross_entropy, regularization: loss = cross_entropy + config.regularization_weight · regularization (Eq. 7), plus
        config.ffn_l1_weight · ffn_l1, the mean of `‖a‖₁` over FFNs and target tokens.
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
class ReLUFormerDecoderModelOutput(BaseModelOutputWithPast):
    """`attention_figures`: (layers, 5), see `module_figures`; `ffn_norms`: (FFNs,), see `activation_norms`; None where not
    asked for."""

    attention_figures: Tensor | None = None
    ffn_norms: Tensor | None = None


@dataclass
class ReLUFormerCausalLMOutput(CausalLMOutputWithPast):
    """With `labels`, the loss, its parts per target token and figures of the attention. All are scalars, None where undefined.

    cross_entropy, regularization: loss = cross_entropy + config.regularization_weight · regularization (Eq. 7), plus
        config.ffn_l1_weight · ffn_l1, the mean of `‖a‖₁` over FFNs and target tokens.
    attention_sum, attention_entropy, dead_row_fraction: as in `ReLUFormerSeq2SeqLMOutput`.
    """

    cross_entropy: Tensor | None = None
    regularization: Tensor | None = None
    attention_sum: Tensor | None = None
    attention_entropy: Tensor | None = None
    dead_row_fraction: Tensor | None = None
    ffn_l1: Tensor | None = None


@dataclass
class ReLUFormerVisionOutput(BaseModelOutputWithPooling):
    """`attention_figures`: (layers, 5), see `module_figures`; `ffn_norms`: (FFNs,), see `activation_norms`; None where not
    asked for."""

    attention_figures: Tensor | None = None
    ffn_norms: Tensor | None = None


@dataclass
class ReLUFormerImageClassifierOutput(ImageClassifierOutput):
    """With `labels`, the loss, its parts per picture and figures of the attention. All are scalars, None where undefined.

    cross_entropy, regularization: loss = cross_entropy + config.regularization_weight · regularization (Eq. 7), where
        `cross_entropy` is the loss of the kind of problem, plus config.ffn_l1_weight · ffn_l1.
    attention_sum, attention_entropy, dead_row_fraction: as in `ReLUFormerSeq2SeqLMOutput`.
    """

    cross_entropy: Tensor | None = None
    regularization: Tensor | None = None
    attention_sum: Tensor | None = None
    attention_entropy: Tensor | None = None
    dead_row_fraction: Tensor | None = None
    ffn_l1: Tensor | None = None


def join_figures(figures: list[Tensor | None]) -> Tensor | None:
    figures = [part for part in figures if part is not None]
    return torch.cat([part.to(figures[0].device) for part in figures]) if figures else None
