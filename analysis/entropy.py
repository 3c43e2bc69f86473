"""The analyses `entropy`, row statistics of attention, and `entropy-share`, the entropy of every head as a share of its
maximum.

Arxiv 2410.09637 reads its heads by quarters of the maximum: many in the last quarter of the early layers is its
"entropic overload".
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reluformer.analysis.analyze import AnalysisResult, Rows, in_words
from reluformer.analysis.collection import ALL, AttentionRows, HeadSums, attention_rows
from reluformer.analysis.drawing import GREY, color_of_model, module_panels, modules_of, save
from reluformer.analysis.inputs import Subject
from reluformer.configuration.errors import UserError

# Label and factor of the columns that are drawn.
_STATISTICS = {
    "entropy": ("entropy H (nats)", 1.0),
    "dead_row_fraction": ("dead rows (%)", 100.0),
    "zero_fraction": ("exact zeros (%)", 100.0),
    "row_sum": ("row sum S", 1.0),
}
_SHARE = {"entropy_share": ("H / log n", 1.0)}
_TINY = 1e-9  # rounding does not lift a head of equal weights into a fifth quarter


def entropy(subject: Subject) -> AnalysisResult:
    """Entropy, dead rows, exact zeros and row sums of every head."""
    table = entropy_table(attention_rows(subject.model, subject.batches()))
    draw = partial(_draw, table, _STATISTICS, color_of_model(subject.model.config))
    return AnalysisResult(table, in_words(table, "entropy", "dead_row_fraction", "zero_fraction"), draw)


def entropy_table(rows: Iterable[AttentionRows]) -> Rows:
    """One row for the model and for each module, layer and head: means over query rows of real tokens.

    entropy: H of the weights normalised to sum 1, in nats; dead rows, with S = 0, count as 0, as in training, and not
    in entropy_of_live_rows. uniform_entropy: log n_i, of equal weights on the n_i visible keys. zero_fraction: exact
    zeros among the weights of visible keys. row_sum: S.

    Args:
        rows: of attention, whose weights need not be normalised.

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
            "dead": row_sum == 0,
            "zeros": ((weights == 0) & visible.unsqueeze(1)).sum(dim=-1),
            "keys": keys,
            "row_sum": row_sum,
        }
        sums.add(module, layer, figures)
    return [{**group, **_means(totals)} for group, totals in sums.groups()]


def _means(sums: dict[str, float]) -> dict[str, Any]:
    rows, live = sums["rows"], sums["rows"] - sums["dead"]
    return {
        "rows": int(rows),
        "entropy": sums["entropy"] / rows,
        "entropy_of_live_rows": sums["entropy"] / live if live else None,
        "uniform_entropy": sums["log_keys"] / rows,
        "dead_row_fraction": sums["dead"] / rows,
        "zero_fraction": sums["zeros"] / sums["keys"],
        "row_sum": sums["row_sum"] / rows,
    }


def _entropy_of_rows(
    what: str, module: str, layer: int, weights: Tensor, visible: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The weights in float64, 0 where they are hidden; entropy (rows, heads) of the rows normalised to sum 1, and their
    sums S.

    A row with S = 0 has entropy 0.
    """
    weights = torch.where(visible.unsqueeze(1), weights, 0.0).double()
    if bool((weights < 0).any()):
        raise UserError(
            f"{what}: {module} attention, layer {layer + 1} has negative weights, its rows are no distributions; "
            "attention-maps can show those of translation models"
        )
    row_sum = weights.sum(dim=-1)
    shares = weights / torch.where(row_sum == 0, 1.0, row_sum).unsqueeze(-1)
    return weights, torch.special.entr(shares).sum(dim=-1), row_sum


def entropy_share(subject: Subject) -> AnalysisResult:
    """Entropy of every head as a share of its maximum."""
    table = share_table(attention_rows(subject.model, subject.batches()))
    draw = partial(_draw, table, _SHARE, color_of_model(subject.model.config))
    return AnalysisResult(table, in_words(table, "entropy_share", "quarter_4", "nan_count"), draw)


def share_table(rows: Iterable[AttentionRows]) -> Rows:
    """One row for the model and for each module, layer and head; arguments and errors as of `entropy_table`.

    entropy_share: mean of H / log n_i over the rows that see at least two keys, and whose weights are all numbers; a
    dead row counts as 0. quarter_1 to quarter_4: share of the heads whose entropy_share lies in each quarter of [0, 1].
    nan_count: weights of visible keys that are NaN.
    """
    sums = HeadSums()
    for module, layer, weights, visible in rows:
        weights, of_rows, _ = _entropy_of_rows("entropy-share", module, layer, weights, visible)
        keys, bad = visible.sum(dim=-1, keepdim=True), weights.isnan()
        counts = (keys > 1) & ~bad.any(dim=-1)
        share = torch.where(counts, of_rows / keys.clamp_min(2).double().log(), 0.0)
        sums.add(module, layer, {"rows": counts, "share": share, "nan_count": bad.sum(dim=-1)})
    for figures in sums.layers.values():
        share = figures["share"] / figures["rows"]  # NaN for a head without such a row, which lies in no quarter
        quarter = (4 * (share + _TINY)).floor().clamp(max=3)
        figures |= {f"quarter_{number + 1}": quarter == number for number in range(4)} | {"heads": share.isfinite()}
    return [{**group, **_shares(totals)} for group, totals in sums.groups()]


def _shares(sums: dict[str, float]) -> dict[str, Any]:
    heads = sums["heads"]
    quarters = {name: sums[name] / heads if heads else None for name in sums if name.startswith("quarter")}
    share = sums["share"] / sums["rows"] if heads else None
    return {"rows": int(sums["rows"]), "entropy_share": share, **quarters, "nan_count": int(sums["nan_count"])}


def _draw(rows: Rows, columns: dict[str, tuple[str, float]], color: str, path: Path, title: str) -> list[Path]:
    """Heads as dots, their layer's mean as a line; a column of panels for each module."""
    modules = modules_of(rows)
    figure, grid = module_panels(modules, len(columns), 1.9, sharex="col", sharey="row")
    for (name, (label, factor)), line in zip(columns.items(), grid, strict=True):
        line[0].set_ylabel(label, fontsize=9)
        for module, axes in zip(modules, line, strict=True):
            known = [row for row in rows if row["module"] == module and row["layer"] != ALL and row[name] is not None]
            heads, means = ([row for row in known if (row["head"] == ALL) is whole] for whole in (False, True))
            layers_of_heads, layers = ([row["layer"] for row in some] for some in (heads, means))
            axes.plot(
                layers_of_heads, [row[name] * factor for row in heads], "o", color=color, alpha=0.45, label="head"
            )
            axes.plot(layers, [row[name] * factor for row in means], color=color, label="mean of the layer")
            if name == "entropy":
                axes.plot(layers, [row["uniform_entropy"] for row in means], "--", color=GREY, label="equal weights")
        least = 1.0 if factor == 100 else 0.0  # of percentages: 0 looks like 0, not like a hundredth
        line[0].set_ylim(0, max(least, line[0].get_ylim()[1]))
    grid[0, 0].legend(frameon=False, fontsize=7)
    return save(figure, path, title)
