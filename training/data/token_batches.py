"""Batches by a budget of padded tokens, the unit in which translation recipes state their batch size."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np

from reluformer.configuration.errors import UserError

logger = logging.getLogger(__name__)

# How far, in tokens, pairs of one longest side may be mixed along the other side: enough for new company in every
# epoch, little enough for close shapes.
LENGTH_JITTER = 2.0


class TokenBatchSampler:
    """Yields lists of pair indices with rows × max(longest source, longest target) ≤ `tokens_per_batch`.

    Pairs are sorted by their longest side and, among equals, by the other side with fresh noise in every epoch; the
    line is cut greedily and the batches are shuffled. The cuts depend on the longest sides alone, so every epoch has
    the same number of batches, and holds each pair once.

    The plan is a function of lengths, budget, seed, epoch and `batches_per_update`: every process computes the same,
    and accelerate's `BatchSamplerShard` deals out the batches in turn. There is no `batch_size` attribute on purpose:
    with one, accelerate expects equal batches and crashes or drops (accelerate#3969).

    An epoch is a whole number of updates, so that 1 process × 4 accumulation steps, 2 × 2 and 4 × 1 see the same
    updates: where the cut leaves some batches over, the largest ones are halved. Only where single pairs are left, the
    epoch's first batches come once more at its end, at most `batches_per_update` − 1, with a warning.

    Args:
        source_lengths, target_lengths: tokens of each pair (pairs,).
        batches_per_update: processes × accumulation steps.

    A training loop must call `set_epoch` before it iterates.

    Raises `UserError`: a pair longer than the budget (index, length, budget).
    """

    def __init__(
        self,
        source_lengths: Sequence[int] | np.ndarray,
        target_lengths: Sequence[int] | np.ndarray,
        *,
        tokens_per_batch: int,
        seed: int,
        batches_per_update: int = 1,
    ):
        source, target = np.asarray(source_lengths, dtype=np.int32), np.asarray(target_lengths, dtype=np.int32)
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self.epoch = 0
        longest = np.maximum(source, target)
        index = int(longest.argmax())
        if longest[index] > tokens_per_batch:
            raise UserError(
                f"pair {index} has {longest[index]} tokens on its longest side, more than tokens_per_batch "
                f"{tokens_per_batch}; raise tokens_per_batch or lower the length limit of the corpus"
            )
        self._longest, self._difference = longest, target - source
        self._bounds = _split(_cut(np.sort(longest)[::-1], tokens_per_batch), batches_per_update)
        self._repeated = -(len(self._bounds) - 1) % batches_per_update
        if self._repeated:
            logger.warning(
                f"{len(self._bounds) - 1} batches of one pair each are no whole number of updates of "
                f"{batches_per_update} batches: the first {self._repeated} of an epoch come once more at its end"
            )

    def __len__(self) -> int:
        """Batches in an epoch, the same in every epoch."""
        return len(self._bounds) - 1 + self._repeated

    def set_epoch(self, epoch: int) -> None:
        """Choose the plan that the next iteration yields."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng([self.seed, self.epoch])
        noise = generator.uniform(-LENGTH_JITTER, LENGTH_JITTER, size=len(self._difference))
        batches = np.arange(len(self._bounds) - 1)
        generator.shuffle(batches)
        order = np.lexsort((self._difference + noise, -self._longest))
        for batch in np.resize(batches, len(self)):
            yield order[self._bounds[batch] : self._bounds[batch + 1]].tolist()


def _cut(longest_first: np.ndarray, tokens_per_batch: int) -> np.ndarray:
    """Bounds (batches + 1,) of consecutive batches within the budget; the first row of each is its longest."""
    bounds = [0]
    while bounds[-1] < len(longest_first):
        rows = tokens_per_batch // max(int(longest_first[bounds[-1]]), 1)
        bounds.append(min(bounds[-1] + rows, len(longest_first)))
    return np.asarray(bounds)


def _split(bounds: np.ndarray, multiple: int) -> np.ndarray:
    """The bounds with the largest batches halved until their number is a multiple of `multiple`, or no batch can be."""
    for _ in range(-(len(bounds) - 1) % multiple):
        rows = np.diff(bounds)
        largest = int(rows.argmax())
        if rows[largest] == 1:
            break
        bounds = np.insert(bounds, largest + 1, bounds[largest] + rows[largest] // 2)
    return bounds
