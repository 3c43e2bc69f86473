"""The analysis `top-p`: how much of a row's scores its largest elements hold: top-p% score sums (§3.4, Figures 2 and
4)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from matplotlib import colormaps
from matplotlib.ticker import NullLocator
from torch import Tensor

from reluformer.analysis.analyze import AnalysisResult, Rows
from reluformer.analysis.collection import ALL, HeadSums, attention_rows, block_rows
from reluformer.analysis.drawing import GREY, NAMES, finish, modules_of, new_figure, save
from reluformer.analysis.inputs import Subject
from reluformer.configuration.errors import UserError

PERCENTAGES = (0.1, 0.2, 0.5, 0.75, 1, 1.25, 1.5, 2, 5, 10, 20, 50, 100)


def top_p(subject: Subject) -> AnalysisResult:
    """Score sums of attention rows and, where they can be read, of feed-forward memories, which have no heads."""
    sums, left_out = HeadSums(), {}
    for module, layer, weights, visible in attention_rows(subject.model, subject.batches()):
        add_rows(sums, module, layer, weights, visible)
    try:
        for block, activations, _, _ in block_rows(subject.model, subject.batches()):
            add_rows(sums, f"{block.stack}_ffn", block.layer, activations.unsqueeze(1))
    except UserError as error:  # attention alone is worth having too
        left_out["feed-forward blocks"] = str(error)
    left_out |= dict.fromkeys(negative_modules(sums), "negative scores, which are no distribution")
    table = top_p_table(sums)
    if not table:
        raise UserError("top-p: every module of this model has negative scores, which are no distributions")
    means = [row for row in table if row["layer"] == ALL and row["p_percent"] == 1.5 and row["rows"]]
    summary = "the top 1.5% hold " + "; ".join(f"{row['module']} {row['score_sum']:.1%}" for row in means)
    notes = [f"top-p leaves out {name}: {reason}" for name, reason in left_out.items()]
    return AnalysisResult(table, summary, partial(_draw, table), notes)


def add_rows(sums: HeadSums, module: str, layer: int, scores: Tensor, visible: Tensor | None = None) -> None:
    """Adds the rows of one layer.

    Args:
        sums: gets them. module: name of the kind of attention or memory. layer: from 0.
        scores: (rows, heads, elements), not normalised unless the model does so.
        visible: boolean (rows, elements); None: all.
    """
    if visible is None:
        visible = torch.ones_like(scores[:, 0], dtype=torch.bool)
    scores = torch.where(visible.unsqueeze(1), scores, 0.0).double()
    total = scores.sum(dim=-1)
    elements = visible.sum(dim=-1).double().unsqueeze(-1).expand_as(total)
    shares = scores.sort(dim=-1, descending=True).values / torch.where(total > 0, total, 1.0).unsqueeze(-1)
    figures = {p: _largest(shares, elements * p / 100) for p in PERCENTAGES}
    sums.add(module, layer, {"live": total > 0, "negative": (scores < 0).any(dim=-1), **figures})


def _largest(shares: Tensor, wanted: Tensor) -> Tensor:
    """The sums (rows, heads) of the first `wanted` (rows, heads) of `shares` (rows, heads, elements), largest first."""
    whole = wanted.floor().long().unsqueeze(-1)
    cumulated = torch.nn.functional.pad(shares.cumsum(dim=-1), (1, 0))
    following = torch.nn.functional.pad(shares, (0, 1))
    return cumulated.gather(-1, whole).squeeze(-1) + wanted.frac() * following.gather(-1, whole).squeeze(-1)


def negative_modules(sums: HeadSums) -> list[str]:
    """Modules with a negative score anywhere, which have no distributions."""
    return sorted({module for (module, _), figures in sums.layers.items() if figures["negative"].any()})


def top_p_table(sums: HeadSums) -> Rows:
    """One row for each p of each head, layer and module without negative scores; null where no row is live.

    score_sum: mean over the live rows, with a score above 0, of the sum of the largest p% of a row's scores, these
    normalised to sum 1; where p% of n elements is no whole number, the next element counts with that fraction, so that
    equal scores give p%.
    """
    rows, left_out = [], [ALL, *negative_modules(sums)]
    for group, totals in sums.groups():
        is_memory_head = group["module"].endswith("_ffn") and group["head"] != ALL
        if group["module"] in left_out or is_memory_head:
            continue
        live = int(totals["live"])
        for p in PERCENTAGES:
            rows.append({**group, "p_percent": p, "score_sum": totals[p] / live if live else None, "rows": live})
    return rows


def _draw(rows: Rows, path: Path, title: str) -> list[Path]:
    """Score sums over p: a panel for each module, in it a curve for each layer; dashed: equal scores."""
    modules = modules_of(rows)
    figure = new_figure(3.0 * len(modules) + 0.5, 3.5)
    grid = figure.subplots(1, len(modules), squeeze=False, sharey=True)[0]
    for module, axes in zip(modules, grid, strict=True):
        of_module = [row for row in rows if row["module"] == module and row["head"] == ALL and row["layer"] != ALL]
        layers = [row["layer"] for row in of_module]
        for layer in dict.fromkeys(layers):
            # A layer of which every row is dead has no curve.
            points = [
                (row["p_percent"], row["score_sum"]) for row in of_module if row["layer"] == layer and row["rows"]
            ]
            color = colormaps["viridis"](0.9 * layer / max(layers))
            shares = [100 * share for _, share in points]
            axes.plot([p for p, _ in points], shares, "o-", markersize=3, color=color, label=f"layer {layer}")
        axes.plot(PERCENTAGES, PERCENTAGES, "--", color=GREY, label="equal scores")
        axes.set_title(NAMES[module], fontsize=10)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("top p% of the elements", fontsize=9)
        finish(axes)
        axes.legend(frameon=False, fontsize=7)
    grid[0].set_ylabel("sum of their scores (%)", fontsize=9)
    return save(figure, path, title)
