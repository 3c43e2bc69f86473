"""Means of what the model reports with its loss, kept on the device until they are logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

# Sums over target tokens that the model has divided by the number of targets of the whole update.
SUMS_PER_TARGET = ("loss", "cross_entropy", "regularization", "ffn_l1")
# Means over the batch at hand.
BATCH_MEANS = ("attention_sum", "attention_entropy", "dead_row_fraction")


_TARGETS = "target_tokens"


class FigureMeans:
    """Means over batches, weighted by target tokens.

    Nothing is copied off the device before [`pop`], so that a training step never waits for the device.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._weights: dict[str, torch.Tensor] = {}

    def add(
        self, figures: Mapping[str, Any], target_tokens: torch.Tensor, divisor: torch.Tensor | int | None = None
    ) -> None:
        """Adds the figures of one batch; one that is None, or that the model does not have, is left out.

        Args:
            figures: the model's output, or any mapping to scalars.
            target_tokens: tokens of this batch that count in the loss; scalar.
            divisor: what the model divided its sums over target tokens by; None: by `target_tokens`.
        """
        weight = target_tokens.detach().float()
        self._accumulate(_TARGETS, weight, torch.ones_like(weight))
        for names, factor in ((SUMS_PER_TARGET, weight if divisor is None else divisor), (BATCH_MEANS, weight)):
            for name in names:
                if figures.get(name) is not None:
                    self._accumulate(name, figures[name].detach().float() * factor, weight)

    def _accumulate(self, name: str, value: torch.Tensor, weight: torch.Tensor) -> None:
        if name in self._sums:
            self._sums[name] += value
            self._weights[name] += weight
        else:
            self._sums[name], self._weights[name] = value.clone(), weight.clone()

    def pop(self, reduce: Callable[[torch.Tensor], torch.Tensor]) -> tuple[dict[str, float], int]:
        """Means since the last call, and the number of target tokens; empty and 0 if nothing was added.

        Args:
            reduce: sums a tensor over all processes; every process must call this.
        """
        if not self._sums:
            return {}, 0
        names = [name for name in self._sums if name != _TARGETS]
        sums = reduce(torch.stack([self._sums[name] for name in (*names, _TARGETS)])).tolist()
        weights = reduce(torch.stack([self._weights[name] for name in (*names, _TARGETS)])).tolist()
        self._clear()
        means = {
            name: total / weight for name, total, weight in zip(names, sums[:-1], weights[:-1], strict=True) if weight
        }
        return means, round(sums[-1])
