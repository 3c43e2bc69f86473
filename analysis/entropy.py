"""The analyses `entropy`, row statistics of attention, and `entropy-share`, the entropy of every head as a share of its maximum.

Arxiv 2410.09637 reads its heads by quarters of the maximum: many in the last quarter of the early layers is its "entropic
overload".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from reluformer.analysis.collection import ALL, HeadSums, Place
from reluformer.analysis.drawing import GREY, NAMES, color_of_model, finish, label_layers, modules_of, new_figure, save
from reluformer.analysis.figure import TEXT, Figure, Rows, Subject, Taken, Watch
from reluformer.configuration.errors import UserError
from reluformer.modeling_reluformer.loss_reluformer import DEFAULT_ENTROPY_MARGIN

DEFINITIONS = {
    "rows": "query rows of real tokens; one query of each head is one row",
    "entropy": "mean row entropy H of the weights normalised to sum 1, in nats; dead rows count as 0, as in training",
    "entropy_of_live_rows": "the same mean over the rows with S > 0 alone; null if there are none",
    "uniform_entropy": "mean of log n_i, the entropy of equal weights over the n_i visible keys",
    "above_margin_fraction": "share of rows whose entropy exceeds entropy_margin * log n_i (Eq. 7)",
    "dead_row_fraction": "share of rows with S = 0",
    "zero_fraction": "share of exact zeros among the weights of visible keys",
    "row_sum": "mean row sum S of the weights as the model uses them",
    "all": "over the rows of all heads, of all layers, or of all three kinds of attention, as in the logs of training",
}
# Column, label, factor.
_PANELS = (
    ("entropy", "entropy H (nats)", 1.0),
    ("dead_row_fraction", "dead rows (%)", 100.0),
    ("zero_fraction", "exact zeros (%)", 100.0),
    ("row_sum", "row sum S", 1.0),
)


class RowStatistics:
    """Entropy and sparsity of attention rows by module, layer and head.

    Args:
        entropy_margin: of C_i = entropy_margin · log n_i (Eq. 7).
    """

    def __init__(self, entropy_margin: float) -> None:
        self.entropy_margin = entropy_margin
        self._sums = HeadSums()

    def update(self, module: str, layer: int, weights: Tensor, visible: Tensor) -> None:
        """Adds rows.

        Args:
            module: name of the kind of attention. layer: from 0.
            weights: (rows, heads, keys), not normalised unless the model does so.
            visible: boolean (rows, keys); what is not visible is not looked at.

        Raises:
            UserError: a negative weight, with which a row is no distribution.
        """
        seen = visible.unsqueeze(1)
        weights = torch.where(seen, weights, 0.0).double()
        require_weights(f"entropy: {module} attention, layer {layer + 1}", weights)
        entropy, row_sum = entropy_of_rows(weights)
        dead = row_sum == 0
        keys = visible.sum(dim=-1, keepdim=True).double()
        log_keys = keys.log().expand_as(entropy)
        figures = (
            torch.ones_like(entropy),
            dead,
            row_sum,
            entropy,
            log_keys,
            # A row that sees one key has no entropy to bound; 1e-12 is far above rounding and far below any figure.
            entropy > self.entropy_margin * log_keys + 1e-12,
            keys.expand_as(entropy),
            ((weights == 0) & seen).sum(dim=-1),
        )
        self._sums.add(module, layer, torch.stack([figure.double().sum(dim=0) for figure in figures], dim=-1))

    def table(self) -> list[dict[str, Any]]:
        """One row for the model and for each module, layer and head; columns as in `DEFINITIONS`."""
        return [_row(*group) for group in [((ALL, ALL, ALL), self._sums.total()), *self._sums.groups()]]


def require_weights(where: str, weights: Tensor) -> None:
    """Raises a `UserError` for a negative weight, with which a row is no distribution. where: for the message."""
    if bool((weights < 0).any()):
        raise UserError(
            f"{where} has negative weights, its rows are no distributions; attention-maps can show those of translation models"
        )


def entropy_of_rows(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy in nats of rows (…, keys) normalised to sum 1, and their sums S, both (…); a row with S = 0 has entropy 0."""
    row_sum = weights.sum(dim=-1)
    return torch.special.entr(weights / torch.where(row_sum == 0, 1.0, row_sum).unsqueeze(-1)).sum(dim=-1), row_sum


def _row(place: Place, sums: Tensor) -> dict[str, Any]:
    count, dead, row_sum, entropy, log_keys, above, visible, zeros = sums.tolist()
    return {
        **dict(zip(("module", "layer", "head"), place, strict=True)),
        "rows": int(count),
        "entropy": entropy / count,
        "entropy_of_live_rows": entropy / (count - dead) if count > dead else None,
        "uniform_entropy": log_keys / count,
        "above_margin_fraction": above / count,
        "dead_row_fraction": dead / count,
        "zero_fraction": zeros / visible,
        "row_sum": row_sum / count,
    }


class Entropy(Figure):
    """Entropy, dead rows, exact zeros and row sums of every head."""

    name = "entropy"
    needs = TEXT
    of_decoders = True
    definitions = DEFINITIONS

    def watch(self, model: PreTrainedModel) -> Watch:
        # Models of other kinds have no margin in their configuration.
        self._rows = RowStatistics(getattr(model.config, "entropy_margin", DEFAULT_ENTROPY_MARGIN))
        self._color = color_of_model(model.config)
        return Watch(attention=self._rows)

    def take(self, subject: Subject) -> Taken:
        table = self._rows.table()
        parts = [
            f"{row['module']} H {row['entropy']:.3f}, dead rows {row['dead_row_fraction']:.1%}, "
            f"zeros {row['zero_fraction']:.1%}"
            for row in table
            if row["layer"] == ALL
        ]
        return Taken(table, "; ".join(parts), {"entropy_margin": self._rows.entropy_margin})

    def draw(self, rows: Rows, path: Path, title: str) -> Path:
        """Entropy, dead rows, zeros and row sums: heads as dots, their layer's mean as a line, a column for each module."""
        modules = modules_of(rows)
        figure = new_figure(3.0 * len(modules) + 0.8, 1.9 * len(_PANELS) + 0.6)
        grid = figure.subplots(len(_PANELS), len(modules), squeeze=False, sharex="col", sharey="row")
        for (name, label, factor), line in zip(_PANELS, grid, strict=True):
            line[0].set_ylabel(label, fontsize=9)
            for module, axes in zip(modules, line, strict=True):
                heads = [row for row in rows if row["module"] == module and row["head"] != ALL]
                means = [row for row in rows if row["module"] == module and row["layer"] != ALL and row["head"] == ALL]
                layers = [row["layer"] for row in means]
                dots = [row[name] * factor for row in heads]
                places = [row["layer"] for row in heads]
                axes.plot(places, dots, "o", color=self._color, alpha=0.45, markersize=4, label="head", clip_on=False)
                axes.plot(layers, [row[name] * factor for row in means], color=self._color, label="mean of the layer")
                if name == "entropy":
                    uniform = [row["uniform_entropy"] for row in means]
                    axes.plot(layers, uniform, "--", color=GREY, label="equal weights")
                finish(axes)
            shown = [row[name] * factor for row in rows]
            if name == "entropy":
                shown += [row["uniform_entropy"] for row in rows]
            least = 1.0 if factor == 100 else 0.0  # of percentages: 0 looks like 0, not like a hundredth
            line[0].set_ylim(0, 1.08 * max(least, *shown) or 1.0)
        for module, axes in zip(modules, grid[0], strict=True):
            axes.set_title(NAMES[module], fontsize=10)
        label_layers(grid[-1])
        grid[0, 0].legend(frameon=False, fontsize=7)
        return save(figure, path, title)


# entropy-share

QUARTERS = ("quarter_1", "quarter_2", "quarter_3", "quarter_4")
SHARE_DEFINITIONS = {
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
    definitions = SHARE_DEFINITIONS

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
