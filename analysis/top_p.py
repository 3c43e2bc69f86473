"""The figure `top-p`: how much of a row's scores its largest elements hold: top-p% score sums (§3.4, Figures 2 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.ticker import NullLocator
from torch import Tensor
from transformers import PreTrainedModel

from reluformer.analysis.collection import ALL, HeadSums
from reluformer.analysis.drawing import GREY, NAMES, finish, modules_of, new_figure, save
from reluformer.analysis.feed_forward import feed_forward_blocks
from reluformer.analysis.figure import TEXT, Figure, Rows, Subject, Taken, Watch
from reluformer.configuration.errors import UserError

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


@dataclass
class TopP(Figure):
    """Score sums of attention rows and, where they can be read, of feed-forward memories."""

    name = "top-p"
    needs = TEXT
    definitions = DEFINITIONS
    top_p: Sequence[float] = DEFAULT_PERCENTAGES

    def watch(self, model: PreTrainedModel) -> Watch:
        self._sums, self._no_memory = TopPSums(self.top_p), None
        try:
            feed_forward_blocks(model)
        except UserError as error:  # attention alone is worth having too
            self._no_memory = str(error)
            return Watch(attention=self._sums)
        return Watch(attention=self._sums, on_scores=self._add_memory)

    def _add_memory(self, stack: str, layer: int, scores: Tensor) -> None:
        self._sums.update(f"{stack}_ffn", layer, scores.unsqueeze(1))

    def take(self, subject: Subject) -> Taken:
        table = self._sums.table()
        if not table:
            raise UserError("top-p: every module of this model has negative scores, which are no distributions")
        left_out = {name: f"negative scores, first in layer {at + 1}" for name, at in self._sums.negative.items()}
        if self._no_memory is not None:
            left_out["encoder_ffn, decoder_ffn"] = self._no_memory
        p = 1.5 if 1.5 in self.top_p else self.top_p[0]
        means = [row for row in table if row["layer"] == ALL and row["p_percent"] == p and row["rows"]]
        summary = f"the top {p:g}% hold " + "; ".join(f"{row['module']} {row['score_sum']:.1%}" for row in means)
        notes = [f"top-p leaves out {name}: {reason}" for name, reason in left_out.items()]
        return Taken(table, summary, {"left_out": left_out or None}, notes)

    def draw(self, rows: Rows, path: Path, title: str) -> Path:
        """Score sums over p, a curve for each layer, a panel for each module; dashed: equal scores."""
        modules = modules_of(rows)
        columns = min(3, len(modules))
        lines = -(-len(modules) // columns)
        figure = new_figure(3.4 * columns + 0.5, 3.0 * lines + 0.5)
        grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
        for module, axes in zip(modules, grid.flat, strict=False):
            chosen = [row for row in rows if row["module"] == module and row["head"] == ALL and row["layer"] != ALL]
            layers = sorted({row["layer"] for row in chosen})
            percentages = sorted({row["p_percent"] for row in chosen})
            for layer in layers:
                curve = [(row["p_percent"], row["score_sum"]) for row in chosen if row["layer"] == layer]
                if any(held is None for _, held in curve):
                    continue  # a layer of which every row is dead has no curve; the table says so
                color = colormaps["viridis"](0.9 * (layer - 1) / max(1, len(layers) - 1))
                p, held = zip(*curve, strict=True)
                axes.plot(p, [100 * share for share in held], "o-", markersize=3, color=color, label=f"layer {layer}")
            even = np.geomspace(percentages[0], percentages[-1], 100)
            axes.plot(even, even, "--", color=GREY, label="equal scores")
            axes.set_xscale("log")
            axes.set_xticks([p for p in percentages if p in (0.1, 1, 10, 100)] or percentages)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_title(NAMES[module], fontsize=10)
            axes.set_xlabel("top p% of the elements", fontsize=9)
            finish(axes)
            axes.set_ylim(0, 104)
            axes.legend(frameon=False, fontsize=7)
        for axes in grid.flat[len(modules) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            axes.set_ylabel("sum of their scores (%)", fontsize=9)
        return save(figure, path, title)
