"""What the loss of a language model needs beside that of translation: each token's label is the next token of its sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .loss_reluformer import IGNORED_LABEL


def next_token_labels(labels: Tensor, segment_ids: Tensor | None = None) -> Tensor:
    """Labels as the Trainer gives them, one for each input token → the label that each position predicts, both (batch, length).

    The last position predicts nothing, nor does the last of a packed sequence.

    Args:
        labels: (batch, length), -100 where a token is no target.
        segment_ids: (batch, length), numbers of packed sequences, 0 for padding.

    Raises:
        ValueError: labels and segment_ids of different shapes.
    """
    shifted = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL)
    if segment_ids is None:
        return shifted
    if segment_ids.shape != labels.shape:
        raise ValueError(
            f"segment_ids must have the shape (batch, length) of the labels, {tuple(labels.shape)}; "
            f"got {tuple(segment_ids.shape)}."
        )
    following = nn.functional.pad(segment_ids[:, 1:], (0, 1), value=0)
    return torch.where((following == segment_ids) & (segment_ids > 0), shifted, IGNORED_LABEL)


__all__ = ["next_token_labels"]
