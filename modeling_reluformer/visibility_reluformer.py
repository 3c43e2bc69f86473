"""Which keys a query can see, without a queries × keys tensor, and how many they are (n_i).

One rule for padding on the left or right, causality, caches that grow or are static, and packed sequences:

    visible(b, i, j) = key_padding_mask[b, j]  and  (j <= i + query_offset, if causal)  and  (same segment, if packed)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
        elif self.causal:
            last = torch.arange(queries, device=device) + self.query_offset
            if self.key_padding_mask is None:
                counts = (last + 1).clamp_max(keys).unsqueeze(0)
            else:
                running = self.key_padding_mask.cumsum(-1)
                counts = running.gather(1, last.clamp_max(keys - 1).unsqueeze(0).expand(batch, -1))
        elif self.key_padding_mask is not None:
            counts = self.key_padding_mask.sum(-1, keepdim=True)
        else:
            counts = torch.full((1, 1), keys, device=device)
        return counts.expand(batch, queries).clamp_min(1).float()

    def _hides_nothing(self, first_query: int, keys: int) -> bool:
        """Whether causality hides no key from these queries: the usual case of one new token behind a growing cache."""
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


def positions_from_padding(key_padding_mask: Tensor, queries: int) -> Tensor:
    """Position of each of the last `queries` tokens among the real tokens of its row, from 0, (batch, queries).

    Padding on the left then shifts nothing; padding itself gets the position of the last real token before it, or 0.
    """
    return (key_padding_mask.bool().cumsum(-1) - 1).clamp_min(0)[:, -queries:]


def positions_from_segments(segments: Tensor) -> Tensor:
    """Position of each token in its packed sequence, from 0; equal numbers must stand side by side. (batch, queries)."""
    index = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return index - torch.where(starts, index, 0).cummax(dim=1).values


def _both(first: Tensor | None, second: Tensor) -> Tensor:
    return second if first is None else first & second
