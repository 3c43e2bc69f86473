"""Which keys a query can see, without a queries × keys tensor, how many they are (n_i), and the row scale that follows (r_i).

One rule for padding on the left or right, causality, caches that grow or are static, and packed sequences:

    visible(b, i, j) = key_padding_mask[b, j]  and  (j <= i + query_offset, if causal)  and  (same segment, if packed)

    r_i = 1 / (gamma sqrt(n_i / 2))   variance (Eq. 6)        r_i = n_i^-alpha   length        r_i = 1   none
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

ATTENTION_SCALINGS = ("variance", "length", "none")
# The paper gives no value. In the study `gamma`, 8 and 16 are the best on sentences of about 15 tokens.
DEFAULT_GAMMA = 8.0
DEFAULT_ALPHA = 1.0
LARGEST_ALPHA = 2  # the text of arXiv 2309.08586 says 1; the axes of its figures seem to run further


@dataclass(frozen=True)
class Visibility:
    """What every attention function needs to know for its mask, in compact form.

    key_padding_mask: boolean (batch, keys), True for real tokens; None: all are real.
    causal: whether key j is visible to query i only if j <= i + query_offset.
    query_offset: number of keys before the first query (the length of the cache): int, or a tensor for a static cache.
    query_segments, key_segments: (batch, queries) and (batch, keys), sequence numbers from 1 of packed sequences.
    given_mask: boolean (batch, 1, queries, keys), a whole mask given by the caller; replaces all of the above.
    """

    key_padding_mask: Tensor | None = None
    causal: bool = False
    query_offset: int | Tensor = 0
    query_segments: Tensor | None = None
    key_segments: Tensor | None = None
    given_mask: Tensor | None = None

    def dense(self, queries: int, keys: int, device: torch.device, first_query: int = 0) -> Tensor | None:
        """The mask as booleans that broadcast to (batch, heads, queries, keys); None where every key is visible."""
        rows = slice(first_query, first_query + queries)
        if self.given_mask is not None:
            return self.given_mask[:, :, rows]
        mask = None
        if self.key_padding_mask is not None:
            mask = self.key_padding_mask[:, None, None, :]
        if self.causal and not self._hides_nothing(first_query, keys):
            last_key = torch.arange(first_query, first_query + queries, device=device) + self.query_offset
            mask = _both(mask, torch.arange(keys, device=device) <= last_key[None, None, :, None])
        if self.query_segments is not None:
            same = self.query_segments[:, rows, None] == self.key_segments[:, None, :]
            mask = _both(mask, same.unsqueeze(1))
        return mask

    def last_visible_key(self, end_query: int, keys: int) -> int:
        """One past the last key that any query before `end_query` can see. Keys behind it need not be computed."""
        if self.causal and self.given_mask is None and isinstance(self.query_offset, int):
            return min(keys, end_query + self.query_offset)
        return keys

    def count(self, batch: int, queries: int, keys: int, device: torch.device) -> Tensor:
        """n_i, the number of visible keys of each query, (batch, queries), float32, at least 1 (a row may see nothing)."""
        if self.given_mask is not None:
            counts = self.given_mask[:, 0].sum(-1)
        elif self.query_segments is not None:
            counts = self._seen_in_causal_segments() if self.causal else self._segment_lengths()
        elif self.causal and not self._hides_nothing(0, keys):
            offset = _within(self.query_offset, -queries, keys)
            last = (torch.arange(queries, device=device) + offset).clamp(0, keys - 1).unsqueeze(0)
            if self.key_padding_mask is None:
                counts = last + 1
            else:
                counts = self.key_padding_mask.cumsum(-1).gather(1, last.expand(batch, -1))
        elif self.key_padding_mask is not None:
            counts = self.key_padding_mask.sum(-1, keepdim=True)
        else:
            return torch.full((batch, queries), max(keys, 1), dtype=torch.float32, device=device)
        return counts.expand(batch, queries).clamp_min(1).float()

    def _hides_nothing(self, first_query: int, keys: int) -> bool:
        """Whether causality hides no key from these queries: the usual case of one new token behind a growing cache."""
        if keys == 0:
            return True
        return isinstance(self.query_offset, int) and first_query + self.query_offset + 1 >= keys

    def _seen_in_causal_segments(self) -> Tensor:
        """Number of real keys from the start of each query's segment up to the query, (batch, queries)."""
        positions = positions_from_segments(self.query_segments)
        if self.key_padding_mask is None:
            return positions + 1
        seen = self.key_padding_mask.cumsum(-1)
        starts = torch.arange(seen.shape[1], device=seen.device) - positions
        return seen - (seen - self.key_padding_mask.long()).gather(1, starts)

    def _segment_lengths(self) -> Tensor:
        """Number of real keys in the segment of each query, (batch, queries)."""
        segments = self.key_segments
        if self.key_padding_mask is not None:
            segments = segments.masked_fill(~self.key_padding_mask, -1)  # of no query
        in_order = segments.sort(dim=-1).values
        wanted = self.query_segments.contiguous()
        return torch.searchsorted(in_order, wanted, right=True) - torch.searchsorted(in_order, wanted)


def positions_from_padding(key_padding_mask: Tensor, queries: int, seen: int | Tensor | None = None) -> Tensor:
    """Position of each of `queries` tokens behind `seen` others among the real tokens of its row, from 0, (batch, queries).

    Padding on the left then shifts nothing; padding itself gets the position of the last real token before it, or 0. Without
    `seen`, the tokens are the last of the mask, which is wider than that with a static cache.
    """
    positions = (key_padding_mask.bool().cumsum(-1) - 1).clamp_min(0)
    if seen is None or (isinstance(seen, int) and seen + queries == positions.shape[1]):
        return positions[:, -queries:]
    columns = torch.arange(queries, device=positions.device) + seen
    return positions.index_select(1, columns.clamp_max(positions.shape[1] - 1))


def segments_from_positions(position_ids: Tensor) -> Tensor:
    """Number of each token's packed sequence, from 1, (batch, queries): one begins where a position does not follow the last."""
    first = torch.ones_like(position_ids[:, :1])
    return torch.cat([first, (position_ids.diff(dim=1) != 1).to(first.dtype)], dim=1).cumsum(1)


def positions_from_segments(segments: Tensor) -> Tensor:
    """Position of each token in its packed sequence, from 0; equal numbers must stand side by side. (batch, queries)."""
    index = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    return index - torch.where(_segment_starts(segments), index, 0).cummax(dim=1).values


def segments_that_return(segments: Tensor) -> Tensor:
    """Rows in which the number of a packed sequence stands again behind another one, boolean (batch,)."""
    index = torch.arange(segments.shape[1], device=segments.device)
    starting = torch.where(_segment_starts(segments) & (segments > 0), segments, -1 - index)  # no two below 0 are equal
    return (starting.sort(dim=1).values.diff(dim=1) == 0).any(dim=1)


def _segment_starts(segments: Tensor) -> Tensor:
    """Whether another number stands before each token, or none, (batch, queries)."""
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return starts


def count_in_sequences(
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    queries: int,
    keys: int,
    *,
    key_padding_mask: Tensor | None = None,
    causal: bool = False,
    query_offset: int | Tensor = 0,
) -> Tensor:
    """n_i of sequences packed into one row, (1, queries), float32, at least 1; arguments as in `relu_attention`.

    Reads no number of the tensors, so that it never waits for a device.
    """
    rows = torch.arange(queries, device=cu_seqlens_q.device)
    starts, ends = cu_seqlens_q[:-1].long(), cu_seqlens_q[1:].long()
    sequence = torch.bucketize(rows, ends, right=True).clamp_max(ends.shape[0] - 1)
    first, end = cu_seqlens_k[:-1].long()[sequence], cu_seqlens_k[1:].long()[sequence]
    if causal:
        seen = rows - starts[sequence] + 1 + _within(query_offset, -queries, keys)
        end = torch.minimum(first + seen.clamp_min(0), end)
    if key_padding_mask is None:
        counts = end - first
    else:
        real = nn.functional.pad(key_padding_mask[0].cumsum(0), (1, 0))
        counts = real[end] - real[first]
    return counts.clamp_min(1).float().unsqueeze(0)


def scale_of_rows(
    visible_keys: Tensor, scaling: str, *, gamma: float | Tensor | None = None, alpha: float | None = None
) -> Tensor | None:
    """r_i, in the shape and dtype of `visible_keys`; None for 1.

    Args:
        visible_keys: n_i, (batch, 1 or heads, queries), at least 1.
        scaling: one of `ATTENTION_SCALINGS`.
        gamma: of "variance"; None: the caller divides by it. A tensor (heads,) gives one to each head.
        alpha: of "length"; default 1.
    """
    if scaling == "none":
        return None
    if scaling == "length":
        return visible_keys.pow(-(DEFAULT_ALPHA if alpha is None else alpha))
    scale = (visible_keys / 2).rsqrt_()
    if gamma is None:
        return scale
    return scale / gamma.to(scale.dtype).view(-1, 1) if isinstance(gamma, Tensor) else scale.div_(gamma)


def check_scaling(scaling: str, gamma: float | Tensor | None, alpha: float | None, heads: int | None = None) -> None:
    """Refuses what `scale_of_rows` does not take; `heads`: of the query, where gamma may be a tensor.

    Raises:
        ValueError: an unknown scaling, a value that is none, or one that the scaling does not use.
    """
    if scaling not in ATTENTION_SCALINGS:
        raise ValueError(f"scaling={scaling!r} is unknown; choose one of {', '.join(ATTENTION_SCALINGS)}.")
    for name, value, its_scaling in (("gamma", gamma, "variance"), ("alpha", alpha, "length")):
        if value is not None and scaling != its_scaling:
            raise ValueError(
                f"{name} belongs to scaling={its_scaling!r}, and scaling is {scaling!r}: leave {name} out, or scaling."
            )
    if isinstance(gamma, Tensor):
        if heads is None or gamma.shape not in ((), (heads,)) or not gamma.is_floating_point():
            raise ValueError(
                f"gamma must be a number, or a floating tensor with one for all heads or one for each, () or ({heads},); "
                f"got {gamma.dtype} {tuple(gamma.shape)}."
            )
    elif gamma is not None and not (is_number(gamma) and 0 < gamma < float("inf")):
        raise ValueError(f"gamma={gamma!r} must be a finite number above 0.")
    if alpha is not None and not (is_number(alpha) and 0 <= alpha <= LARGEST_ALPHA):
        raise ValueError(f"alpha={alpha!r} must be a number from 0 to {LARGEST_ALPHA:g}.")


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of row scales and statistics: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _within(offset: int | Tensor, low: int, high: int) -> int | Tensor:
    """The offset, where it makes no difference nearer to 0, so that no sum with it overflows."""
    return offset.long().clamp(low, high) if isinstance(offset, Tensor) else max(low, min(offset, high))


def _both(first: Tensor | None, second: Tensor) -> Tensor:
    return second if first is None else first & second
