"""The analyses `entropy`, row statistics of attention, and `entropy-share`, the entropy of every head as a share of its maximum.

Arxiv 2410.09637 reads its heads by quarters of the maximum: many in the last quarter of the early layers is its "entropic
overload".
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from reluformer.analysis.analyze import Measured, Rows, in_words
from reluformer.analysis.collection import ALL, AttentionRows, HeadSums, attention_rows
from reluformer.analysis.drawing import GREY, color_of_model, finish, module_panels, modules_of, save
from reluformer.analysis.inputs import Subject
from reluformer.configuration.errors import UserError
from reluformer.modeling_reluformer.loss_reluformer import DEFAULT_ENTROPY_MARGIN

# Column, label, factor.
_PANELS = (
    ("entropy", "entropy H (nats)", 1.0),
    ("dead_row_fraction", "dead rows (%)", 100.0),
    ("zero_fraction", "exact zeros (%)", 100.0),
    ("row_sum", "row sum S", 1.0),
)


def entropy(subject: Subject) -> Measured:
    """Entropy, dead rows, exact zeros and row sums of every head."""
    config = subject.model.config
    margin = getattr(config, "entropy_margin", DEFAULT_ENTROPY_MARGIN)  # which other models do not have
    table = entropy_table(attention_rows(subject.model, subject.batches()), margin)
    draw = partial(_draw_entropy, table, color_of_model(config))
    summary = in_words(table, "entropy", "dead_row_fraction", "zero_fraction")
    return Measured(table, summary, draw, {"entropy_margin": margin})


def entropy_table(rows: Iterable[AttentionRows], entropy_margin: float = DEFAULT_ENTROPY_MARGIN) -> Rows:
    """One row for the model and for each module, layer and head: means over query rows of real tokens.

    entropy: H of the weights normalised to sum 1, in nats; dead rows, with S = 0, count as 0, as in training, and not in
    entropy_of_live_rows. uniform_entropy: log n_i, of equal weights on the n_i visible keys. above_margin_fraction: rows with H
    above entropy_margin · log n_i. zero_fraction: exact zeros among the weights of visible keys. row_sum: S.

    Args:
        rows: of attention, whose weights need not be normalised.
        entropy_margin: of C_i = entropy_margin · log n_i (Eq. 7).

    Raises:
        UserError: a negative weight, with which a row is no distribution.
    """
    sums = HeadSums()
    for module, layer, weights, visible in rows:
        weights, of_rows, row_sum = _entropy_of_rows("entropy", module, layer, weights, visible)
        keys = visible.sum(dim=-1, keepdim=True).double().expand_as(of_rows)
        figures = {
            "rows": torch.ones_like(of_rows),
            "entropy": of_rows,
            "log_keys": keys.log(),
            # A row that sees one key has no entropy to bound; 1e-12 is far above rounding and far below any figure.
            "above": of_rows > entropy_margin * keys.log() + 1e-12,
            "dead": row_sum == 0,
            "zeros": ((weights == 0) & visible.unsqueeze(1)).sum(dim=-1),
            "keys": keys,
            "row_sum": row_sum,
        }
        sums.add(module, layer, figures)
    return [{**place, **_means(found)} for place, found in sums.groups()]


def _means(sums: dict[str, float]) -> dict[str, Any]:
    rows, live = sums["rows"], sums["rows"] - sums["dead"]
    return {
        "rows": int(rows),
        "entropy": sums["entropy"] / rows,
        "entropy_of_live_rows": sums["entropy"] / live if live else None,
        "uniform_entropy": sums["log_keys"] / rows,
        "above_margin_fraction": sums["above"] / rows,
        "dead_row_fraction": sums["dead"] / rows,
        "zero_fraction": sums["zeros"] / sums["keys"],
        "row_sum": sums["row_sum"] / rows,
    }


def _entropy_of_rows(
    what: str, module: str, layer: int, weights: Tensor, visible: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The weights in float64, 0 where they are hidden; entropy (rows, heads) of the rows normalised to sum 1, and their sums S.

    A row with S = 0 has entropy 0.
    """
    weights = torch.where(visible.unsqueeze(1), weights, 0.0).double()
    if bool((weights < 0).any()):
        raise UserError(
            f"{what}: {module} attention, layer {layer + 1} has negative weights, its rows are no distributions; attention-maps "
            "can show those of translation models"
        )
    row_sum = weights.sum(dim=-1)
    shares = weights / torch.where(row_sum == 0, 1.0, row_sum).unsqueeze(-1)
    return weights, torch.special.entr(shares).sum(dim=-1), row_sum


def _draw_entropy(rows: Rows, color: str, path: Path, title: str) -> list[Path]:
    """Heads as dots, their layer's mean as a line; a column for each module."""
    modules = modules_of(rows)
    figure, grid = module_panels(modules, len(_PANELS), 3.0, 1.9, sharex="col", sharey="row")
    for (name, label, factor), line in zip(_PANELS, grid, strict=True):
        line[0].set_ylabel(label, fontsize=9)
        for module, axes in zip(modules, line, strict=True):
            heads = [row for row in rows if row["module"] == module and row["head"] != ALL]
            means = [row for row in rows if row["module"] == module and row["layer"] != ALL and row["head"] == ALL]
            places, dots = [row["layer"] for row in heads], [row[name] * factor for row in heads]
            layers = [row["layer"] for row in means]
            axes.plot(places, dots, "o", color=color, alpha=0.45, markersize=4, label="head", clip_on=False)
            axes.plot(layers, [row[name] * factor for row in means], color=color, label="mean of the layer")
            if name == "entropy":
                uniform = [row["uniform_entropy"] for row in means]
                axes.plot(layers, uniform, "--", color=GREY, label="equal weights")
            finish(axes)
        least = 1.0 if factor == 100 else 0.0  # of percentages: 0 looks like 0, not like a hundredth
        line[0].set_ylim(0, max(least, line[0].get_ylim()[1]))
    grid[0, 0].legend(frameon=False, fontsize=7)
    return save(figure, path, title)


# entropy-share

QUARTERS = ("quarter_1", "quarter_2", "quarter_3", "quarter_4")
_TINY = 1e-9  # rounding does not lift a head of equal weights into a fifth quarter


def entropy_share(subject: Subject) -> Measured:
    """Entropy of every head as a share of its maximum."""
    table = share_table(attention_rows(subject.model, subject.batches()))
    return Measured(table, in_words(table, "entropy_share", "quarter_4", "nan_count"), partial(_draw_shares, table))


def share_table(rows: Iterable[AttentionRows]) -> Rows:
    """One row for the model and for each module, layer and head; arguments and errors as of `entropy_table`.

    entropy_share: mean of H / log n_i over the rows that see at least two keys, and whose weights are all numbers; a dead row
    counts as 0. quarter_1 to quarter_4: share of the heads whose entropy_share lies in each quarter of [0, 1]. nan_count: weights
    of visible keys that are NaN.
    """
    sums = HeadSums()
    for module, layer, weights, visible in rows:
        weights, of_rows, _ = _entropy_of_rows("entropy-share", module, layer, weights, visible)
        keys, bad = visible.sum(dim=-1, keepdim=True), weights.isnan()
        counts = (keys > 1) & ~bad.any(dim=-1)
        share = torch.where(counts, of_rows / keys.clamp_min(2).double().log(), 0.0)
        sums.add(module, layer, {"rows": counts, "share": share, "nan_count": bad.sum(dim=-1)})
    groups = list(sums.groups())
    shares = [(place, found["share"] / found["rows"]) for place, found in groups if found["rows"]]
    heads = [(place, share) for place, share in shares if place["head"] != ALL]
    return [
        {
            **place,
            "rows": int(found["rows"]),
            "entropy_share": found["share"] / found["rows"] if found["rows"] else None,
            **_quarters([share for head, share in heads if _is_inside(head, place)]),
            "nan_count": int(found["nan_count"]),
        }
        for place, found in groups
    ]


def _is_inside(head: dict[str, Any], place: dict[str, Any]) -> bool:
    return all(wanted in (ALL, head[name]) for name, wanted in place.items())


def _quarters(shares: list[float]) -> dict[str, float | None]:
    if not shares:
        return dict.fromkeys(QUARTERS)
    found = np.bincount([min(int(4 * (share + _TINY)), 3) for share in shares], minlength=4) / len(shares)
    return dict(zip(QUARTERS, found.tolist(), strict=True))


def _draw_shares(rows: Rows, path: Path, title: str) -> list[Path]:
    """Above, each head's share by layer; below, how many heads of each layer lie in each quarter."""
    modules = modules_of(rows)
    figure, grid = module_panels(modules, 2, 3.4, 2.5, sharex="col")
    for module, above, below in zip(modules, *grid, strict=True):
        layers = [row for row in rows if row["module"] == module and row["layer"] != ALL and row["head"] == ALL]
        heads = [row for row in rows if row["module"] == module and row["head"] != ALL]
        shares = np.array([row["entropy_share"] for row in heads], dtype=float).reshape(len(layers), -1).T
        extent = (0.5, len(layers) + 0.5, len(shares) + 0.5, 0.5)
        image = above.imshow(shares, vmin=0, vmax=1, cmap="viridis", aspect="auto", extent=extent)
        above.yaxis.set_major_locator(MaxNLocator(integer=True))
        bottom = np.zeros(len(layers))
        for number, name in enumerate(QUARTERS):
            heights = np.array([row[name] or 0.0 for row in layers])
            label = f"{number / 4:.2f} to {(number + 1) / 4:.2f}"
            places = [row["layer"] for row in layers]
            below.bar(places, heights, bottom=bottom, color=image.cmap(0.125 + number / 4), label=label)
            bottom += heights
    grid[0, 0].set_ylabel("head", fontsize=9)
    grid[1, 0].set_ylabel("share of the heads", fontsize=9)
    figure.colorbar(image, ax=grid[0].tolist(), label="H / log n", shrink=0.9)
    beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    grid[1, -1].legend(frameon=False, fontsize=7, title="H / log n", title_fontsize=7, **beside)
    return save(figure, path, title)
