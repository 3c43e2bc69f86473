"""From row statistics to the regulariser L_reg (Eq. 7) and to the figures that are logged beside it.

    H_i   = log S_i - T_i / S_i
    L_reg = |log S_i| + max(H_i - C_i, 0),     C_i = entropy_margin · log n_i

A dead row (S_i = 0) contributes 0 with gradient 0, and stays in the denominator of every mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

DEFAULT_ENTROPY_MARGIN = 0.7  # of Eq. 7


def row_entropy(row_sum: Tensor, row_sum_log: Tensor) -> Tensor:
    """Entropy H of each row's normalised weights, in nats; 0 for a dead row. All shapes (…, heads, queries)."""
    alive = row_sum > 0
    safe_sum = torch.where(alive, row_sum, 1.0)
    return torch.log(safe_sum) - torch.where(alive, row_sum_log, 0.0) / safe_sum


def row_penalty(row_sum: Tensor, entropy: Tensor, visible_keys: Tensor, entropy_margin: float) -> Tensor:
    """Eq. 7 for each row, (…, batch, heads, queries). `visible_keys` is n_i, (batch, queries), at least 1."""
    safe_sum = torch.where(row_sum > 0, row_sum, 1.0)
    bound = entropy_margin * torch.log(visible_keys.to(entropy.dtype)).unsqueeze(1)
    return torch.log(safe_sum).abs() + torch.relu(entropy - bound)


def module_figures(
    row_sum: Tensor,
    row_sum_log: Tensor | None,
    visible_keys: Tensor,
    row_weight: Tensor,
    *,
    entropy_margin: float,
) -> Tensor:
    """The sums of attention modules over their rows, for the loss and the logs; several modules at once spare a GPU launches.

    Args:
        row_sum, row_sum_log: S and T, ([modules,] batch, heads, queries); T None where the entropy was not asked for.
        visible_keys: n_i, (batch, queries).
        row_weight: (batch, queries), 0 for rows that are padding. For the loss: targets_b / rows_b.

    Returns:
        ([modules,] 5): the weighted sum of Eq. 7 over the rows (mean over the heads); then, over the real rows, the sums of S,
        of H and of dead rows (means over the heads), and their number. The first alone carries a gradient.
    """
    real = (row_weight > 0).to(row_sum.dtype)
    heads = row_sum.shape[-2]

    def over_rows(values: Tensor, weight: Tensor) -> Tensor:
        return (values * weight.unsqueeze(-2)).sum((-3, -2, -1)) / heads

    if row_sum_log is None:
        penalty = entropy_sum = row_sum.new_zeros(row_sum.shape[:-3])
    else:
        entropy = row_entropy(row_sum, row_sum_log)
        penalty = row_penalty(row_sum, entropy, visible_keys, entropy_margin)
        penalty = over_rows(penalty, row_weight.to(penalty.dtype))
        entropy_sum = over_rows(entropy.detach(), real)
    row_sums, dead = over_rows(row_sum.detach(), real), over_rows((row_sum == 0).to(row_sum.dtype), real)
    return torch.stack([penalty, row_sums, entropy_sum, dead, real.sum().expand_as(dead)], dim=-1)


def row_weights(
    row_sentence: Tensor, label_sentence: Tensor, sentences: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Weight of every query row in sum_b L_reg(b) · targets_b: targets_b / rows_b for a row of sentence b, 0 for padding.

    Args:
        row_sentence: (batch, queries), the number of the sentence each row belongs to, from 1; 0 for padding. Numbers are
            per batch row: without packing every real row is of sentence 1.
        label_sentence: (batch, targets), the same for the labels, 0 where the label is -100.
        sentences: the highest number.

    Returns:
        (batch, queries), of the `dtype`.
    """
    batch = row_sentence.shape[0]

    def count(sentence: Tensor) -> Tensor:
        counts = torch.zeros(batch, sentences + 1, device=sentence.device, dtype=dtype)
        return counts.scatter_add_(1, sentence.long(), torch.ones_like(sentence, dtype=counts.dtype))

    weight = count(label_sentence) / count(row_sentence).clamp_min(1)
    weight[:, 0] = 0
    return weight.gather(1, row_sentence.long())
