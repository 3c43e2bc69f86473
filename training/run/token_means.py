"""Means over target tokens of what the model reports with its loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

# Sums over target tokens that the model has divided by the number of targets of the whole update.
SUMS_PER_TARGET = ("loss", "cross_entropy", "regularization", "ffn_l1")
# Means over the batch at hand.
BATCH_MEANS = ("attention_sum", "attention_entropy", "dead_row_fraction")


class TokenMeans:
    """Sums that stay on the device until they are logged, so that a training step never waits for it."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}

    def add(
        self, outputs: Mapping[str, Any], target_tokens: torch.Tensor, divisor: torch.Tensor | int | None = None
    ) -> None:
        """Adds the values of one batch; one that is None, or that the model does not have, is left out.

        `divisor` is what the model divided its sums over target tokens by; None: by the `target_tokens` of the batch.
        """
        tokens = target_tokens.detach().float()
        factors = dict.fromkeys(SUMS_PER_TARGET, tokens if divisor is None else divisor)
        values = {"target_tokens": tokens}
        for name, factor in {**factors, **dict.fromkeys(BATCH_MEANS, tokens)}.items():
            if outputs.get(name) is not None:
                values[name] = outputs[name].detach().float() * factor
        self._sums |= {name: self._sums.get(name, 0) + value for name, value in values.items()}

    def pop(self, reduce: Callable[[torch.Tensor], torch.Tensor]) -> tuple[dict[str, float], int]:
        """Means since the last call, and the number of target tokens; empty and 0 if nothing was added.

        `reduce` sums a tensor over all processes; every process must call this.
        """
        if not self._sums:
            return {}, 0
        totals = dict(zip(self._sums, reduce(torch.stack([*self._sums.values()])).tolist(), strict=True))
        self._sums = {}
        tokens = totals.pop("target_tokens")
        return {name: total / max(tokens, 1) for name, total in totals.items()}, round(tokens)
