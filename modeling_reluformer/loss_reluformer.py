"""The training loss: label-smoothed cross-entropy and the regulariser, per sentence, over one normaliser.

    loss = [ sum over target tokens of smoothed cross-entropy + weight · sum_b L_reg(b) · targets_b ] / N

Where `ffn_l1_weight` is set, ffn_l1_weight · sum_b L1(b) · targets_b is a third term of the sum: L1(b) is the mean over the
feed-forward networks of the mean over the real rows of sentence b of ‖a‖₁, the sum of their activations' magnitudes.

L_reg(b) is the mean over attention modules of the mean over heads and real query rows of sentence b. With
N = `num_items_in_batch` the result does not depend on how a batch is cut into steps and processes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers.utils import is_torchdynamo_compiling

from .regularization_reluformer import row_weights
from .visibility_reluformer import wide

IGNORED_LABEL = -100


class SentenceRows(NamedTuple):
    """Row weights (see `row_weights`) for the queries of the encoder, (batch, source), and of the decoder, (batch, target)."""

    encoder: Tensor
    decoder: Tensor


class RegularizedLoss(NamedTuple):
    """Scalars: loss = cross_entropy + weight · regularization + ffn_l1_weight · ffn_l1. What is undefined is None."""

    loss: Tensor
    cross_entropy: Tensor
    regularization: Tensor | None
    attention_sum: Tensor | None
    attention_entropy: Tensor | None
    dead_row_fraction: Tensor | None
    ffn_l1: Tensor | None = None


def check_labels(labels: Tensor, vocab_size: int) -> None:
    """Refuses labels that are not integers of the shape (batch, target) and, on a CPU, labels outside the vocabulary.

    On a GPU this check would have to wait for the device, whose own assertion stops such a batch.

    Raises:
        ValueError: labels of another shape or dtype, or empty ones.
        IndexError: an id that is neither in the vocabulary nor -100.
    """
    if labels.ndim != 2 or labels.dtype != torch.int64:
        raise ValueError(
            f"labels must be integers (int64) of the shape (batch, target); got {labels.dtype} {tuple(labels.shape)}."
        )
    if is_torchdynamo_compiling():
        return
    if labels.numel() == 0:
        raise ValueError(
            f"labels of the shape {tuple(labels.shape)} are empty: a batch needs at least one sequence and token."
        )
    if labels.device.type != "cpu":
        return
    wrong = labels[((labels < 0) & (labels != IGNORED_LABEL)) | (labels >= vocab_size)]
    if wrong.numel():
        raise IndexError(
            f"labels holds the id {int(wrong[0])}; the vocabulary of {vocab_size} tokens has the ids 0 to {vocab_size - 1}, "
            f"and {IGNORED_LABEL} stands for no target."
        )


def sentence_rows(
    labels: Tensor,
    source_mask: Tensor | None,
    source_length: int,
    source_segments: Tensor | None = None,
    target_segments: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> SentenceRows:
    """Which query rows are real and how much each counts.

    Args:
        labels: (batch, target), -100 where there is no target.
        source_mask: (batch, source), 1 for real tokens, or (batch or 1, 1, queries, source), in which a token that no query
            sees is padding; None: all are real.
        source_length: number of source tokens.
        source_segments, target_segments: sequence numbers from 1 where several are packed into one row.
        dtype: of the weights.
    """
    target_sentence = (labels != IGNORED_LABEL).long()
    if source_mask is not None and source_mask.ndim == 4:
        source_mask = source_mask.any(dim=(1, 2)).expand(labels.shape[0], -1)
    # The encoder refuses a mask of another shape.
    if source_mask is not None and source_mask.shape == (labels.shape[0], source_length):
        source_sentence = source_mask.bool().long()
    else:
        source_sentence = labels.new_ones(labels.shape[0], source_length)
    sentences = 1
    if source_segments is not None and target_segments is not None:
        source_sentence, target_sentence = source_sentence * source_segments, target_sentence * target_segments
        sentences = int(torch.maximum(source_segments.max(), target_segments.max()))
    return SentenceRows(
        row_weights(source_sentence, target_sentence, sentences, dtype),
        row_weights(target_sentence, target_sentence, sentences, dtype),
    )


def cross_entropy_sum(logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """Sum of the smoothed cross-entropy of logits (batch, target, vocabulary) over labels (batch, target), -100 ignored."""
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).to(wide(logits.dtype)),
        labels.flatten(),
        ignore_index=IGNORED_LABEL,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def translation_loss(
    cross_entropy_sum: Tensor,
    labels: Tensor,
    figures: Tensor | None,
    *,
    statistics: str,
    regularization_weight: float,
    ffn_norms: Tensor | None = None,
    ffn_l1_weight: float = 0.0,
    num_items_in_batch: Tensor | int | None = None,
) -> RegularizedLoss:
    """The loss of one forward pass.

    Args:
        cross_entropy_sum: scalar, over all labels. labels: (batch, target), -100 ignored.
        figures: (modules, 5), see `module_figures`; None where the attention gives no statistics.
        statistics: which of them were asked for: "none", "sum" or "sum+entropy".
        ffn_norms: (FFNs,), see `activation_norms`; None: no L1 term. ffn_l1_weight: its weight.
        num_items_in_batch: N; None: the number of targets here.
    """
    items = (labels != IGNORED_LABEL).sum() if num_items_in_batch is None else num_items_in_batch
    return regularized_loss(
        cross_entropy_sum,
        items,
        figures,
        statistics=statistics,
        regularization_weight=regularization_weight,
        ffn_norms=ffn_norms,
        ffn_l1_weight=ffn_l1_weight,
    )


def regularized_loss(
    loss_sum: Tensor,
    items: Tensor | int,
    figures: Tensor | None,
    *,
    statistics: str,
    regularization_weight: float,
    ffn_norms: Tensor | None = None,
    ffn_l1_weight: float = 0.0,
) -> RegularizedLoss:
    """The loss of one forward pass over any kind of items: target tokens, or images.

    Args:
        loss_sum: scalar, of the items here, without regulariser.
        items: N, their number in the whole update.
        figures, statistics, regularization_weight, ffn_norms, ffn_l1_weight: see `translation_loss`.
    """
    items = torch.as_tensor(items, device=loss_sum.device).clamp_min(1)
    found = _with_attention(loss_sum, items, figures, statistics, regularization_weight)
    if ffn_norms is None:
        return found
    ffn_l1 = ffn_norms.mean() / items
    return found._replace(loss=found.loss + ffn_l1_weight * ffn_l1, ffn_l1=ffn_l1)


def _with_attention(
    loss_sum: Tensor, items: Tensor, figures: Tensor | None, statistics: str, regularization_weight: float
) -> RegularizedLoss:
    cross_entropy = loss_sum / items
    # A copy: the Trainer multiplies the loss by the number of processes, in place.
    loss = cross_entropy.clone()
    if figures is None:
        return RegularizedLoss(loss, cross_entropy, None, None, None, None)
    row_sum, entropy, dead, rows = figures[:, 1:].detach().sum(0).unbind()
    rows = rows.clamp_min(1)
    if statistics == "sum":
        return RegularizedLoss(loss, cross_entropy, None, row_sum / rows, None, dead / rows)
    regularization = figures[:, 0].mean() / items
    if regularization_weight:
        loss = cross_entropy + regularization_weight * regularization
    return RegularizedLoss(loss, cross_entropy, regularization, row_sum / rows, entropy / rows, dead / rows)
