"""Batches of so many rows: all of them once an epoch, in an order that follows from the seed and the epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler


class ShuffledBatches(Sampler[list[int]]):
    """Numbers of the rows of each batch of an epoch; the last batch holds those that are left.

    Args:
        rows: their number.
        batch_size: rows of a batch.
        seed: of the order.
    """

    def __init__(self, rows: int, batch_size: int, seed: int) -> None:
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch begins."""
        self.epoch = epoch

    def __len__(self) -> int:
        return math.ceil(self.rows / self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.rows).tolist()
        for start in range(0, self.rows, self.batch_size):
            yield order[start : start + self.batch_size]
