"""The analysis `top-p`: how much of a row's scores its largest elements hold: top-p% score sums (§3.4, Figures 2 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator
from torch import Tensor

from reluformer.analysis.analyze import Measured, Rows
from reluformer.analysis.collection import ALL, HeadSums, attention_rows, block_rows
from reluformer.analysis.drawing import GREY, NAMES, finish, modules_of, new_figure, save
from reluformer.analysis.inputs import Subject
from reluformer.configuration.errors import UserError


def top_p(subject: Subject) -> Measured:
    """Score sums of attention rows and, where they can be read, of feed-forward memories, which have no heads."""
    sums, percentages, left_out = HeadSums(), sorted(subject.options.top_p), {}
    for module, layer, weights, visible in attention_rows(subject.model, subject.batches()):
        add_rows(sums, module, layer, weights, percentages, visible)
    try:
        for block, activations, _, _ in block_rows(subject.model, subject.batches()):
            add_rows(sums, f"{block.stack}_ffn", block.layer, activations.unsqueeze(1), percentages)
    except UserError as error:  # attention alone is worth having too
        left_out["feed-forward blocks"] = str(error)
    left_out |= dict.fromkeys(negative_modules(sums), "negative scores, which are no distribution")
    table = top_p_table(sums, percentages)
    if not table:
        raise UserError("top-p: every module of this model has negative scores, which are no distributions")
    p = 1.5 if 1.5 in percentages else percentages[0]
    means = [row for row in table if row["layer"] == ALL and row["p_percent"] == p and row["rows"]]
    summary = f"the top {p:g}% hold " + "; ".join(f"{row['module']} {row['score_sum']:.1%}" for row in means)
    notes = [f"top-p leaves out {name}: {reason}" for name, reason in left_out.items()]
    return Measured(table, summary, partial(_draw, table), {"left_out": left_out or None}, notes)


def add_rows(
    sums: HeadSums,
    module: str,
    layer: int,
    scores: Tensor,
    percentages: Sequence[float],
    visible: Tensor | None = None,
) -> None:
    """Adds the rows of one layer.

    Args:
        sums: gets them. module: name of the kind of attention or memory. layer: from 0.
        scores: (rows, heads, elements), not normalised unless the model does so.
        percentages: values of p, each in (0, 100].
        visible: boolean (rows, elements); None: all.
    """
    if visible is None:
        visible = torch.ones_like(scores[:, 0], dtype=torch.bool)
    scores = torch.where(visible.unsqueeze(1), scores, 0.0).double()
    total = scores.sum(dim=-1)
    elements = visible.sum(dim=-1).double().unsqueeze(-1).expand_as(total)
    shares = scores.sort(dim=-1, descending=True).values / torch.where(total > 0, total, 1.0).unsqueeze(-1)
    counts = {"live": total > 0, "dead": total == 0, "elements": elements * (total > 0)}
    counts["negative"] = (scores < 0).any(dim=-1)
    sums.add(module, layer, counts | {p: _largest(shares, elements * p / 100) for p in percentages})


def negative_modules(sums: HeadSums) -> list[str]:
    """Modules with a negative score anywhere, which have no distributions."""
    whole = [(place["module"], found["negative"]) for place, found in sums.groups() if place["layer"] == ALL]
    return [module for module, negative in whole[1:] if negative]


def top_p_table(sums: HeadSums, percentages: Sequence[float]) -> Rows:
    """One row for each p of each head, layer and module without negative scores; null where no row is live.

    score_sum: mean over the live rows, with a score above 0, of the sum of the largest p% of a row's scores, these normalised to
    sum 1; where p% of n elements is no whole number, the next element counts with that fraction, so that equal scores give p%.
    elements: mean of p% of n: below 1, the figure is that fraction of the largest score.
    """
    rows, left_out = [], [ALL, *negative_modules(sums)]
    for place, found in sums.groups():
        is_memory_head = place["module"].endswith("_ffn") and place["head"] != ALL
        if place["module"] in left_out or is_memory_head:
            continue
        live, counts = found["live"], {"rows": int(found["live"]), "dead_rows": int(found["dead"])}
        for p in percentages:
            means = {
                "score_sum": found[p] / live if live else None,
                "elements": found["elements"] * p / 100 / live if live else None,
            }
            rows.append({**place, "p_percent": p, **means, **counts})
    return rows


def _largest(shares: Tensor, wanted: Tensor) -> Tensor:
    """The sums (rows, heads) of the first `wanted` (rows, heads) of `shares` (rows, heads, elements), largest first."""
    whole = wanted.floor().long().unsqueeze(-1)
    cumulated = torch.nn.functional.pad(shares.cumsum(dim=-1), (1, 0))
    following = torch.nn.functional.pad(shares, (0, 1))
    return cumulated.gather(-1, whole).squeeze(-1) + wanted.frac() * following.gather(-1, whole).squeeze(-1)


def _draw(rows: Rows, path: Path, title: str) -> list[Path]:
    """Score sums over p, a panel for each module."""
    modules = modules_of(rows)
    columns = min(3, len(modules))
    lines = -(-len(modules) // columns)
    figure = new_figure(3.4 * columns + 0.5, 3.0 * lines + 0.5)
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
    for module, axes in zip(modules, grid.flat, strict=False):
        _draw_module([row for row in rows if row["module"] == module and row["head"] == ALL], axes)
        axes.set_title(NAMES[module], fontsize=10)
    for axes in grid.flat[len(modules) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("sum of their scores (%)", fontsize=9)
    return save(figure, path, title)


def _draw_module(rows: Rows, axes: Axes) -> None:
    """A curve for each layer; dashed: equal scores."""
    layers = sorted({row["layer"] for row in rows} - {ALL})
    percentages = sorted({row["p_percent"] for row in rows})
    for layer in layers:
        held = [row["score_sum"] for row in rows if row["layer"] == layer]
        if None in held:
            continue  # a layer of which every row is dead has no curve; the table says so
        color = colormaps["viridis"](0.9 * (layer - 1) / max(1, len(layers) - 1))
        shares = [100 * share for share in held]
        axes.plot(percentages, shares, "o-", markersize=3, color=color, label=f"layer {layer}")
    even = np.geomspace(percentages[0], percentages[-1], 100)
    axes.plot(even, even, "--", color=GREY, label="equal scores")
    axes.set_xscale("log")
    axes.set_xticks([p for p in percentages if p in (0.1, 1, 10, 100)] or percentages)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("top p% of the elements", fontsize=9)
    finish(axes)
    axes.set_ylim(0, 104)
    axes.legend(frameon=False, fontsize=7)
