"""Packed sequences of several rows, as `relu_attention` takes them: one row, and where each sequence starts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .attention_fused import relu_attention
from .visibility_reluformer import Visibility


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, arguments: dict[str, Any]
) -> tuple[Tensor, ...] | Tensor:
    """`relu_attention` within the segments of `visibility`; shapes and results as there.

    Padding, segment 0, sees the padding that the mask does not hide: nobody reads those rows.
    """
    batch = query.shape[0]
    cu_seqlens_q, cu_seqlens_k = sequence_ends(visibility.query_segments, visibility.key_segments)
    row_scale = arguments["row_scale"]
    if row_scale is not None:
        arguments = {**arguments, "row_scale": row_scale.transpose(0, 1).flatten(1).unsqueeze(0)}
    mask = visibility.key_padding_mask
    found = relu_attention(
        *(_in_one_row(tensor) for tensor in (query, key, value)),
        key_padding_mask=None if mask is None else mask.expand(batch, -1).reshape(1, -1),
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        **arguments,
    )
    results = found if isinstance(found, tuple) else (found,)
    apart = tuple(item[0].unflatten(1, (batch, query.shape[2])).transpose(0, 1) for item in results)
    return apart if isinstance(found, tuple) else apart[0]


def sequence_ends(query_segments: Tensor, key_segments: Tensor) -> tuple[Tensor, Tensor]:
    """Segment numbers (batch, queries) and (batch, keys) → `cu_seqlens` of both, int32, over the rows laid end to end.

    Every number that either side of a row has is a sequence, empty on the side that lacks it.

    Raises:
        ValueError: the numbers of a row do not rise (0, padding, may stand at either end).
    """
    count = int(torch.maximum(query_segments.max(), key_segments.max())) + 1
    padded_first = bool((query_segments[:, 0] == 0).any() | (key_segments[:, 0] == 0).any())
    lengths = []
    for name, segments in (("query", query_segments), ("key", key_segments)):
        order = segments if padded_first else torch.where(segments == 0, count, segments)
        if (order.diff(dim=1) < 0).any():
            raise ValueError(
                f"Packed sequences must be numbered in the order in which they stand, padding (0) at one end of all rows; "
                f"the {name} segments are {segments.tolist()}."
            )
        order = order if padded_first else order - 1
        lengths.append(torch.stack([torch.bincount(row, minlength=count) for row in order.long()]).flatten())
    starts = (torch.nn.functional.pad(length.cumsum(0), (1, 0)).int() for length in lengths)
    return tuple(starts)


def _in_one_row(tensor: Tensor) -> Tensor:
    """(batch, heads, length, features) → (1, heads, batch · length, features)."""
    return tensor.transpose(0, 1).flatten(1, 2).unsqueeze(0)
