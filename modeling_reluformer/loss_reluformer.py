"""The training loss: the cross-entropy and the regulariser L_reg (Eq. 7), per sentence, over one normaliser.

    loss = [ sum over items of cross-entropy + weight · sum_b L_reg(b) · items_b ] / N

    H_i   = log S_i - T_i / S_i
    L_reg = |log S_i| + max(H_i - C_i, 0),     C_i = entropy_margin · log n_i

An item is a target token, or an image. L_reg(b) is the mean over attention modules of the mean over heads and real
query rows of sentence b. A dead row (S_i = 0) contributes 0 with gradient 0, and stays in the denominator of every
mean. With N = `num_items_in_batch` the result does not depend on how a batch is cut into steps and processes, the draws
of a share aside.

Where `regularization_share` is below 1, a pass in training takes L_reg of a random share of the attention modules (see
`ModuleSample`) and divides their sum by the share: the loss and its gradient are unbiased, and the other modules need
neither S nor T.

Where `ffn_l1_weight` is set, ffn_l1_weight · sum_b L1(b) · items_b is a third term of the sum: L1(b) is the mean over
the feed-forward networks of the mean over the real rows of sentence b of ‖a‖₁, the sum of their activations'
magnitudes.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .attention_reluformer import wide

DEFAULT_ENTROPY_MARGIN = 0.7  # of Eq. 7
IGNORED_LABEL = -100


@dataclass
class LossParts:
    """With `labels`, the loss, its parts per item (a target token, an image) and means of the attention; scalars or
    None.

    cross_entropy, regularization: loss = cross_entropy + config.regularization_weight · regularization (Eq. 7), plus
        config.ffn_l1_weight · ffn_l1, the mean of `‖a‖₁`. For images `cross_entropy` is the loss of the kind of
        problem.
    attention_sum, attention_entropy, dead_row_fraction: means of S, of H (nats) and of rows without any positive weight
        over the attention modules that were measured (see `ModuleSample`), their heads and the real query rows.
    """

    cross_entropy: Tensor | None = None
    regularization: Tensor | None = None
    attention_sum: Tensor | None = None
    attention_entropy: Tensor | None = None
    dead_row_fraction: Tensor | None = None
    ffn_l1: Tensor | None = None


@dataclass(frozen=True)
class ModuleSample:
    """The attention modules whose regulariser one pass in training computes, spread evenly over the model.

    Module m of M is taken where m · share + offset and (m + 1) · share + offset lie on two sides of a whole number,
    with one offset drawn from [0, 1) for the pass: each module with probability `share`, and always about share · M of
    them. For example share = 1/4 and M = 9: every fourth module, from one of the first four on, which makes two modules
    or three.

    taken: of each module, in the order of the model's figures: all of the encoder, the self-attentions of the decoder,
    and its cross-attentions.

    It is a value of Python, and so no part of a compiled graph: `torch.compile` makes one graph for each sample that it
    meets, in which the modules that are not taken compute no statistics. A share of 1/4 has four of them.
    """

    taken: tuple[bool, ...]

    @classmethod
    @torch.compiler.disable(reason="give forward a module_sample: model.draw_modules() draws it outside the graph")
    def draw(cls, share: float, modules: int) -> ModuleSample:
        """By one number of torch's generator of the CPU, which checkpoints of a training keep. `torch.compile` ends a
        graph."""
        offset = torch.rand((), dtype=torch.float64).item()
        steps = [math.floor(offset + share * module) for module in range(modules + 1)]
        return cls(tuple(after > before for before, after in itertools.pairwise(steps)))


@dataclass(frozen=True)
class Measured:
    """What a pass with labels measures in a stack of layers, for its loss.

    row_weight: (batch, queries), see `row_weights`. statistics: of the rows of attention, "none", "sum" or
        "sum+entropy".
    ffn_norms: whether the `activation_norms` of the feed-forward networks, too. sample: of which attention modules the
    statistics are taken; None: of all. first_module: the number in `sample` of the first module of the stack.
    """

    row_weight: Tensor
    statistics: str
    ffn_norms: bool
    sample: ModuleSample | None = None
    first_module: int = 0

    def takes(self, module: int) -> bool:
        """Whether the pass takes the statistics of this module of the stack."""
        return self.sample is None or self.sample.taken[self.first_module + module]


def row_entropy(row_sum: Tensor, row_sum_log: Tensor) -> Tensor:
    """Entropy H of each row's normalised weights, in nats; 0 for a dead row. All shapes (…, heads, queries)."""
    alive = row_sum > 0
    safe_sum = torch.where(alive, row_sum, 1.0)
    return torch.log(safe_sum) - torch.where(alive, row_sum_log, 0.0) / safe_sum


def row_penalty(row_sum: Tensor, entropy: Tensor, visible_keys: Tensor, entropy_margin: float) -> Tensor:
    """Eq. 7 for each row, (…, batch, heads, queries). `visible_keys`: n_i, at least 1, of a shape that broadcasts to
    the rows."""
    safe_sum = torch.where(row_sum > 0, row_sum, 1.0)
    bound = entropy_margin * torch.log(visible_keys.to(entropy.dtype))
    return torch.log(safe_sum).abs() + torch.relu(entropy - bound)


def module_sums(
    row_sum: Tensor, row_sum_log: Tensor | None, visible_keys: Tensor, row_weight: Tensor, *, entropy_margin: float
) -> Tensor:
    """The sums of attention modules over their rows, for the loss and the logs; several modules at once spare a GPU
    launches.

    row_sum, row_sum_log: S and T, ([modules,] batch, heads, queries); T None where the entropy was not asked for.
    visible_keys: n_i, ([modules,] batch, queries). row_weight: (batch, queries), 0 for rows that are padding; for the
        loss, see `row_weights`.

    Returns:
        ([modules,] 5): the weighted sum of Eq. 7 over the rows (mean over the heads); then, over the real rows, the
        sums of S, of H and of dead rows (means over the heads), and their number. The first alone carries a gradient.
    """
    real = (row_weight > 0).to(row_sum.dtype)
    heads = row_sum.shape[-2]

    def over_rows(values: Tensor, weight: Tensor) -> Tensor:
        return (values * weight.unsqueeze(-2)).sum((-3, -2, -1)) / heads

    if row_sum_log is None:
        penalty = entropy_sum = row_sum.new_zeros(row_sum.shape[:-3])
    else:
        entropy = row_entropy(row_sum, row_sum_log)
        penalty = row_penalty(row_sum, entropy, visible_keys.unsqueeze(-2), entropy_margin)
        penalty = over_rows(penalty, row_weight.to(penalty.dtype))
        entropy_sum = over_rows(entropy.detach(), real)
    row_sums, dead = over_rows(row_sum.detach(), real), over_rows((row_sum == 0).to(row_sum.dtype), real)
    return torch.stack([penalty, row_sums, entropy_sum, dead, real.sum().expand_as(dead)], dim=-1)


def activation_norms(activations: Tensor, row_weight: Tensor) -> Tensor:
    """The weighted sum of `‖a‖₁` over the rows of a feed-forward network, (1,).

    activations: (batch, length, neurons), what the last projection multiplies. row_weight: (batch, length), see
        `row_weights`.
    """
    norms = activations.abs().sum(dim=-1, dtype=wide(activations.dtype))
    return (norms * row_weight).sum().unsqueeze(0)


def row_weights(
    row_sentence: Tensor, label_sentence: Tensor, sentences: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Weight of every query row in sum_b L_reg(b) · targets_b: targets_b / rows_b for a row of sentence b, (batch,
    queries).

    row_sentence: (batch, queries), the number of each row's sentence in its row of the batch, from 1; 0 for padding,
    which weighs 0. label_sentence: (batch, targets), the same for the labels, 0 where the label is -100. sentences: the
    highest.
    """
    batch = row_sentence.shape[0]

    def count(sentence: Tensor) -> Tensor:
        counts = torch.zeros(batch, sentences + 1, device=sentence.device, dtype=dtype)
        return counts.scatter_add_(1, sentence.long(), torch.ones_like(sentence, dtype=counts.dtype))

    weight = count(label_sentence) / count(row_sentence).clamp_min(1)
    weight[:, 0] = 0
    return weight.gather(1, row_sentence.long())


def sentence_rows(
    labels: Tensor,
    source_mask: Tensor | None,
    source_length: int,
    source_segments: Tensor | None = None,
    target_segments: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """`row_weights` for the queries of the encoder, (batch, source), and of the decoder, (batch, target).

    labels: (batch, target), -100 where there is no target. source_mask: (batch, source_length), 1 for real tokens, or
    (batch or 1, 1, queries, source_length), in which a token that no query sees is padding; None: all are real.
    source_segments, target_segments: sequence numbers from 1 where several are packed into one row.
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
    both = (source_sentence, target_sentence)
    return tuple(row_weights(rows, target_sentence, sentences, dtype) for rows in both)


def cross_entropy_sum(logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """Sum of the smoothed cross-entropy of logits (batch, target, vocabulary) over labels (batch, target), -100
    ignored."""
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).to(wide(logits.dtype)),
        labels.flatten(),
        ignore_index=IGNORED_LABEL,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def regularized_loss(
    loss_sum: Tensor,
    items: Tensor | int,
    sums: Tensor | None,
    *,
    statistics: str,
    regularization_weight: float,
    regularization_share: float = 1.0,
    ffn_norms: Tensor | None = None,
    ffn_l1_weight: float = 0.0,
) -> dict[str, Tensor]:
    """The loss of one forward pass: `loss`, and the fields of `LossParts` that are defined.

    loss_sum: scalar, of the items here, without regulariser. items: N, their number in the whole update. sums:
    (modules, 5), see `module_sums`; None where the attention gives no statistics. statistics: which of them were asked
    for, see `Measured`.
    regularization_share: the probability with which each module was taken; the sums of the others are 0.
    ffn_norms: (FFNs,), see `activation_norms`; None: no L1 term.
    """
    items = torch.as_tensor(items, device=loss_sum.device).clamp_min(1)
    # A copy: the Trainer multiplies the loss by the number of processes, in place.
    losses = {"cross_entropy": loss_sum / items, "loss": loss_sum / items}
    if sums is not None:
        sums = sums.to(loss_sum.device)  # of a model whose layers are spread over several
        row_sum, entropy, dead, rows = sums[:, 1:].detach().sum(0).unbind()
        rows = rows.clamp_min(1)
        losses |= {"attention_sum": row_sum / rows, "dead_row_fraction": dead / rows}
        if statistics == "sum+entropy":
            losses |= {
                "regularization": sums[:, 0].mean() / (items * regularization_share),
                "attention_entropy": entropy / rows,
            }
            if regularization_weight:
                losses["loss"] = losses["loss"] + regularization_weight * losses["regularization"]
    if ffn_norms is not None:
        losses["ffn_l1"] = ffn_norms.mean().to(items.device) / items
        losses["loss"] = losses["loss"] + ffn_l1_weight * losses["ffn_l1"]
    return losses
