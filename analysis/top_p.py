"""How much of a row's scores its largest elements hold: top-p% score sums (§3.4, Figures 2 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from reluformer.analysis.head_sums import HeadSums

DEFAULT_PERCENTAGES = (0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
DEFINITIONS = {
    "p_percent": "share of the elements: of the keys that a query sees, or of the slots of a feed-forward memory",
    "score_sum": (
        "mean over rows of the sum of the largest p% of a row's scores, these normalised to sum 1; where "
        "p% of n elements is no whole number, the next element counts with that fraction, so that equal scores give p%"
    ),
    "elements": "mean of p% of n: below 1, the figure is that fraction of the largest score",
    "rows": "rows of real tokens with at least one score above 0; others have no distribution and are left out",
    "dead_rows": "rows left out because all their scores are 0",
    "all": "a mean over the rows of all heads, or of all heads and layers, of a module",
}


class TopPSums:
    """Top-p% score sums by module, layer and head.

    Args:
        percentages: values of p, each in (0, 100].
    """

    def __init__(self, percentages: Sequence[float] = DEFAULT_PERCENTAGES) -> None:
        self.percentages = tuple(sorted(percentages))
        self.negative: dict[str, int] = {}
        self._sums = HeadSums()

    def update(self, module: str, layer: int, scores: Tensor, visible: Tensor | None = None) -> None:
        """Adds rows.

        A module with a negative score anywhere has no distributions: `negative` then holds the layer (from 0) of the
        first one, and the module is left out of the table.

        Args:
            module: name of the kind of attention or memory. layer: from 0.
            scores: (rows, heads, elements), not normalised unless the model does so.
            visible: boolean (rows, elements); None: all.
        """
        if visible is None:
            visible = scores.new_ones((scores.shape[0], scores.shape[-1]), dtype=torch.bool)
        scores = torch.where(visible.unsqueeze(1), scores, 0.0).double()
        if module in self.negative or bool((scores < 0).any()):
            self.negative.setdefault(module, layer)
            return
        total = scores.sum(dim=-1)
        live = (total > 0).double()
        elements = visible.sum(dim=-1).double()
        shares = scores.sort(dim=-1, descending=True).values / torch.where(total > 0, total, 1.0).unsqueeze(-1)
        columns = [live.sum(dim=0), (1 - live).sum(dim=0), (live * elements.unsqueeze(-1)).sum(dim=0)]
        columns += [largest.sum(dim=0) for largest in self._largest(shares, elements)]
        self._sums.add(module, layer, torch.stack(columns, dim=-1))

    def _largest(self, shares: Tensor, elements: Tensor) -> list[Tensor]:
        """For each p the sum (rows, heads) of the first p% of `shares` (rows, heads, elements), largest first."""
        cumulated = torch.nn.functional.pad(shares.cumsum(dim=-1), (1, 0))
        following = torch.nn.functional.pad(shares, (0, 1))
        sums = []
        for percentage in self.percentages:
            wanted = elements * percentage / 100
            whole = wanted.floor().long().view(-1, 1, 1).expand(-1, shares.shape[1], 1)
            part = (wanted - wanted.floor()).unsqueeze(-1)
            sums.append(cumulated.gather(-1, whole).squeeze(-1) + part * following.gather(-1, whole).squeeze(-1))
        return sums

    def table(self) -> list[dict[str, Any]]:
        """One row for each p of each head, layer and module; columns as in `DEFINITIONS`; null where no row is live."""
        rows = []
        for (module, layer, head), sums in self._sums.groups():
            if module in self.negative or (module.endswith("_ffn") and isinstance(head, int)):
                continue  # a memory has no heads
            live, dead, elements, *held = sums.tolist()
            for percentage, total in zip(self.percentages, held, strict=True):
                rows.append(
                    {
                        "module": module,
                        "layer": layer,
                        "head": head,
                        "p_percent": percentage,
                        "score_sum": total / live if live else None,
                        "elements": elements * percentage / 100 / live if live else None,
                        "rows": int(live),
                        "dead_rows": int(dead),
                    }
                )
        return rows
