"""Batches of so many rows: all of them once an epoch, in an order that follows from the seed and the epoch.

The batches have no attribute `batch_size`: accelerate would fill the last one with rows of the first, on several processes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from reluformer.configuration.errors import UserError


class ShuffledBatches(Sampler[list[int]]):
    """Numbers of the rows of each batch of an epoch. Every update has as many batches; the last one those with the rows left.

    Args:
        rows: their number.
        batch_size: rows of a batch.
        seed: of the order.
        batches_per_update: processes × accumulation steps.

    Raises:
        UserError: fewer rows than batches of one update.
    """

    def __init__(self, rows: int, batch_size: int, seed: int, batches_per_update: int = 1) -> None:
        if rows < batches_per_update:
            raise UserError(
                f"{rows} training rows are fewer than the {batches_per_update} batches of an update (processes times "
                "training.gradient_accumulation_steps); take fewer of these or more data"
            )
        self.rows, self.seed, self.epoch = rows, seed, 0
        updates, left = divmod(rows, batch_size * batches_per_update)
        shared = 1 if left else 0  # updates whose batches share what is left
        if 0 < left < batches_per_update and updates:
            # or batches would be empty; those of one row take a second one
            shared, updates, left = min(batch_size, 2), updates - 1, left + batch_size * batches_per_update
        last = np.array_split(np.arange(left), shared * batches_per_update) if left else []
        sizes = [batch_size] * (updates * batches_per_update) + [len(part) for part in last]
        self._ends = np.cumsum(sizes).tolist()

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch begins."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.rows).tolist()
        for start, end in zip([0, *self._ends], self._ends, strict=False):
            yield order[start:end]
