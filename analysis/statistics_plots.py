"""Pictures of the tables of `reluformer analyze`, from their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from reluformer.analysis.head_sums import ALL

Rows = Sequence[Mapping[str, Any]]

_BLUE, _ORANGE, _RED, _GREY = "#1f5fa8", "#e08214", "#b2182b", "#666666"
_NAMES = {
    "encoder_self": "encoder self-attention",
    "decoder_self": "decoder self-attention",
    "cross": "cross-attention",
    "encoder_ffn": "encoder FFN memory",
    "decoder_ffn": "decoder FFN memory",
    "encoder": "encoder",
    "decoder": "decoder",
}
_ENTROPY_PANELS = (
    ("entropy", "entropy H (nats)", 1.0),
    ("dead_row_fraction", "dead rows (%)", 100.0),
    ("zero_fraction", "exact zeros (%)", 100.0),
    ("row_sum", "row sum S", 1.0),
)


def plot_entropy(rows: Rows, path: Path, title: str) -> Path:
    """Entropy, dead rows, zeros and row sums: heads as dots, their layer's mean as a line, a column for each module."""
    modules = _modules(rows)
    figure = _figure(3.0 * len(modules) + 0.8, 1.9 * len(_ENTROPY_PANELS) + 0.6)
    grid = figure.subplots(len(_ENTROPY_PANELS), len(modules), squeeze=False, sharex="col", sharey="row")
    for (name, label, factor), line in zip(_ENTROPY_PANELS, grid, strict=True):
        line[0].set_ylabel(label, fontsize=9)
        for module, axes in zip(modules, line, strict=True):
            heads = [row for row in rows if row["module"] == module and row["head"] != ALL]
            means = [row for row in rows if row["module"] == module and row["layer"] != ALL and row["head"] == ALL]
            layers = [row["layer"] for row in means]
            dots = [row[name] * factor for row in heads]
            places = [row["layer"] for row in heads]
            axes.plot(places, dots, "o", color=_BLUE, alpha=0.45, markersize=4, label="head", clip_on=False)
            axes.plot(layers, [row[name] * factor for row in means], color=_BLUE, label="mean of the layer")
            if name == "entropy":
                uniform = [row["uniform_entropy"] for row in means]
                axes.plot(layers, uniform, "--", color=_GREY, label="equal weights")
            _finish(axes)
        shown = [row[name] * factor for row in rows] + [row["uniform_entropy"] for row in rows] * (name == "entropy")
        least = 1.0 if factor == 100 else 0.0  # of percentages: 0 looks like 0, not like a hundredth
        line[0].set_ylim(0, 1.08 * max(least, *shown) or 1.0)
    for module, axes in zip(modules, grid[0], strict=True):
        axes.set_title(_NAMES[module], fontsize=10)
    _label_layers(grid[-1])
    grid[0, 0].legend(frameon=False, fontsize=7)
    return _save(figure, path, title)


def plot_top_p(rows: Rows, path: Path, title: str) -> Path:
    """Score sums over p, a curve for each layer, a panel for each module; dashed: equal scores."""
    modules = _modules(rows)
    columns = min(3, len(modules))
    lines = -(-len(modules) // columns)
    figure = _figure(3.4 * columns + 0.5, 3.0 * lines + 0.5)
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
        axes.plot(even, even, "--", color=_GREY, label="equal scores")
        axes.set_xscale("log")
        axes.set_xticks([p for p in percentages if p in (0.1, 1, 10, 100)] or percentages)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_title(_NAMES[module], fontsize=10)
        axes.set_xlabel("top p% of the elements", fontsize=9)
        _finish(axes)
        axes.set_ylim(0, 104)
        axes.legend(frameon=False, fontsize=7)
    for axes in grid.flat[len(modules) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("sum of their scores (%)", fontsize=9)
    return _save(figure, path, title)


def plot_variance_ratio(rows: Rows, path: Path, title: str) -> Path:
    """Var(FFN out) / Var(residual) of each layer, over features and over tokens."""
    columns = {"variance_ratio": ("over features", _BLUE), "variance_ratio_over_tokens": ("over tokens", _ORANGE)}
    return _bars(rows, columns, "Var(FFN out) / Var(residual)", path, title)


def plot_anisotropy(rows: Rows, path: Path, title: str) -> Path:
    """Mean pairwise cosine of the value slots of each layer."""
    return _bars(rows, {"anisotropy": ("", _BLUE)}, "anisotropy (mean cosine of value slots)", path, title)


def plot_variance_simulation(rows: Rows, path: Path, title: str) -> Path:
    """Measured variance over n beside n/2, and their ratio with two standard errors."""
    lengths = [row["n"] for row in rows]
    figure = _figure(8.0, 3.4)
    left, right = figure.subplots(1, 2)
    left.plot(lengths, [row["expected_variance"] for row in rows], color=_GREY, label="n/2 (Theorem 4.1)")
    left.plot(lengths, [row["variance"] for row in rows], "o", color=_BLUE, label="simulated")
    left.set_yscale("log", base=2)
    left.set_ylabel("variance of y", fontsize=9)
    left.legend(frameon=False, fontsize=8)
    ratios = [row["variance"] / row["expected_variance"] for row in rows]
    errors = [2 * row["standard_error"] / row["expected_variance"] for row in rows]
    right.axhline(1, color=_GREY)
    right.errorbar(lengths, ratios, yerr=errors, fmt="o", color=_BLUE, capsize=3, label="± 2 standard errors")
    right.set_ylabel("variance / (n/2)", fontsize=9)
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("n", fontsize=9)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return _save(figure, path, title)


def _bars(rows: Rows, columns: dict[str, tuple[str, str]], label: str, path: Path, title: str) -> Path:
    modules = _modules(rows)
    figure = _figure(3.4 * len(modules) + 0.5, 3.2)
    grid = figure.subplots(1, len(modules), squeeze=False, sharey=True)
    width = 0.8 / len(columns)
    for module, axes in zip(modules, grid[0], strict=True):
        chosen = [row for row in rows if row["module"] == module and row["layer"] != ALL]
        for place, (name, (series, color)) in enumerate(columns.items()):
            known = [row for row in chosen if row[name] is not None]
            offset = (place - (len(columns) - 1) / 2) * width
            bars = axes.bar(
                [row["layer"] + offset for row in known],
                [row[name] for row in known],
                width * 0.95,
                color=color,
                label=series,
            )
            axes.bar_label(bars, fmt="%.2g", fontsize=7, padding=1)
        axes.axhline(0, color=_GREY, linewidth=0.8)
        axes.margins(y=0.12)
        axes.set_title(_NAMES[module], fontsize=10)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].set_ylabel(label, fontsize=9)
    if len(columns) > 1:
        grid[0, 0].legend(frameon=False, fontsize=8)
    _label_layers(grid[0])
    return _save(figure, path, title)


def _modules(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["module"] for row in rows if row["module"] != ALL))


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _finish(axes: Axes) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _label_layers(line: Sequence[Axes]) -> None:
    for axes in line:
        axes.set_xlabel("layer", fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _save(figure: Figure, path: Path, title: str) -> Path:
    figure.suptitle(title, fontsize=11, parse_math=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
