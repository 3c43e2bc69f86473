"""The figure `entropy-share`: the entropy of every head as a share of the most it can be, and the heads in each quarter of it.

Arxiv 2410.09637 reads its heads so: many in the last quarter of the early layers is its "entropic overload".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from reluformer.analysis.drawing import NAMES, label_layers, modules_of, new_figure, save
from reluformer.analysis.entropy import entropy_of_rows, require_weights
from reluformer.analysis.figure import TEXT, Figure, Rows, Subject, Taken, Watch
from reluformer.analysis.head_sums import ALL, HeadSums

QUARTERS = ("quarter_1", "quarter_2", "quarter_3", "quarter_4")
DEFINITIONS = {
    "rows": "query rows of real tokens that see at least two keys, and whose weights are all numbers",
    "entropy_share": (
        "mean over rows of H / log n_i: entropy of the weights normalised to sum 1, over that of equal weights on the n_i "
        "visible keys; a dead row counts as 0; null where there is no row"
    ),
    "quarter_1": "share of the heads whose entropy_share lies in [0, 1/4); of one head, 1 where it lies there, else 0",
    "quarter_2": "the same of [1/4, 1/2)",
    "quarter_3": "the same of [1/2, 3/4)",
    "quarter_4": "the same of [3/4, 1]",
    "nan_count": "weights of visible keys that are NaN",
    "all": "over the rows of all heads, of all layers, or of all kinds of attention",
}
_TINY = 1e-9  # rounding does not lift a head of equal weights into a fifth quarter


class EntropyShares:
    """Shares of the maximal entropy, by module, layer and head."""

    def __init__(self) -> None:
        self._sums = HeadSums()

    def update(self, module: str, layer: int, weights: Tensor, visible: Tensor) -> None:
        """Adds rows; arguments and errors as of `RowStatistics.update`."""
        weights = torch.where(visible.unsqueeze(1), weights, 0.0).double()
        bad = weights.isnan()
        require_weights(f"entropy-share: {module} attention, layer {layer + 1}", weights)
        keys = visible.sum(dim=-1, keepdim=True)
        counts = (keys > 1) & ~bad.any(dim=-1)
        entropy, _ = entropy_of_rows(weights)
        share = torch.where(counts, entropy / keys.clamp_min(2).double().log(), 0.0)
        figures = (counts.double(), share, bad.sum(dim=-1).double())
        self._sums.add(module, layer, torch.stack([figure.sum(dim=0) for figure in figures], dim=-1))

    def table(self) -> Rows:
        """One row for the model and for each module, layer and head; columns as in `DEFINITIONS`."""
        groups = [((ALL, ALL, ALL), self._sums.total()), *self._sums.groups()]
        heads = [place for place, _ in groups if place[2] != ALL]
        shares = {place: _share(sums) for place, sums in groups}
        rows = []
        for place, sums in groups:
            inside = [shares[head] for head in heads if _is_inside(head, place)]
            rows.append(
                {
                    **dict(zip(("module", "layer", "head"), place, strict=True)),
                    "rows": int(sums[0]),
                    "entropy_share": shares[place],
                    **_quarters([share for share in inside if share is not None]),
                    "nan_count": int(sums[2]),
                }
            )
        return rows


def _share(sums: Tensor) -> float | None:
    return float(sums[1] / sums[0]) if sums[0] else None


def _is_inside(head: tuple[Any, ...], place: tuple[Any, ...]) -> bool:
    return all(wanted in (ALL, found) for found, wanted in zip(head, place, strict=True))


def _quarters(shares: list[float]) -> dict[str, float | None]:
    if not shares:
        return dict.fromkeys(QUARTERS)
    found = np.bincount([min(int(4 * (share + _TINY)), 3) for share in shares], minlength=4) / len(shares)
    return dict(zip(QUARTERS, found.tolist(), strict=True))


class EntropyShare(Figure):
    """Entropy of every head as a share of its maximum."""

    name = "entropy-share"
    needs = TEXT
    of_decoders = True
    definitions = DEFINITIONS

    def watch(self, model: PreTrainedModel) -> Watch:
        self._shares = EntropyShares()
        return Watch(attention=self._shares)

    def take(self, subject: Subject) -> Taken:
        table = self._shares.table()
        parts = [
            f"{row['module']} {'–' if row['entropy_share'] is None else format(row['entropy_share'], '.1%')} of the maximum, "
            f"{row['quarter_4'] or 0:.0%} of the heads in the last quarter, {row['nan_count']:,} NaN"
            for row in table
            if row["layer"] == ALL and row["module"] != ALL
        ]
        return Taken(table, "; ".join(parts))

    def draw(self, rows: Rows, path: Path, title: str) -> Path:
        """Above, each head's share by layer; below, how many heads of each layer lie in each quarter."""
        modules = modules_of(rows)
        figure = new_figure(3.4 * len(modules) + 1.2, 5.6)
        grid = figure.subplots(2, len(modules), squeeze=False, sharex="col")
        for module, heads_axes, quarter_axes in zip(modules, *grid, strict=True):
            layers = [row for row in rows if row["module"] == module and row["layer"] != ALL and row["head"] == ALL]
            heads = [row for row in rows if row["module"] == module and row["head"] != ALL]
            most = max(row["head"] for row in heads)
            shares = np.full((most, len(layers)), np.nan)
            for row in heads:
                if row["entropy_share"] is not None:
                    shares[row["head"] - 1, row["layer"] - 1] = row["entropy_share"]
            extent = (0.5, len(layers) + 0.5, most + 0.5, 0.5)
            image = heads_axes.imshow(shares, vmin=0, vmax=1, cmap="viridis", aspect="auto", extent=extent)
            heads_axes.set_title(NAMES[module], fontsize=10)
            bottom = np.zeros(len(layers))
            for number, name in enumerate(QUARTERS):
                heights = np.array([row[name] or 0.0 for row in layers])
                quarter_axes.bar(
                    [row["layer"] for row in layers],
                    heights,
                    bottom=bottom,
                    color=image.cmap(0.125 + number / 4),
                    label=f"{number / 4:.2f} to {(number + 1) / 4:.2f}",
                )
                bottom += heights
        grid[0, 0].set_ylabel("head", fontsize=9)
        grid[1, 0].set_ylabel("share of the heads", fontsize=9)
        figure.colorbar(image, ax=grid[0].tolist(), label="H / log n", shrink=0.9)
        grid[1, -1].legend(
            frameon=False, fontsize=7, title="H / log n", title_fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5)
        )
        label_layers(grid[1])
        return save(figure, path, title)


FIGURE = EntropyShare
