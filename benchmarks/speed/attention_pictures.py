"""Two pictures from the result files: speedup over softmax against length, and extra peak memory against length."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.speed.contenders import OURS, SDPA
from benchmarks.speed.matrix_products import FLOOR

_BLUE, _ORANGE, _GREEN, _GREY = "#1f5fa8", "#e08214", "#2a8c4a", "#666666"
PLAIN, _, WITH_STATISTICS = OURS
SPEED_LINES = {
    FLOOR: (_GREY, "--", "matrix products only (floor)"),
    PLAIN: (_BLUE, "-", "ReLU, fused"),
    WITH_STATISTICS: (_ORANGE, "-", "ReLU, fused, with S and T"),
}
MEMORY_LINES = {
    "fused": (_BLUE, "ReLU, fused"),
    "sdpa": (_GREEN, "softmax, SDPA"),
    "eager relu": (_ORANGE, "ReLU, eager"),
}
MEMORY_PANELS = {"attention": "attention alone, 8 heads of 64", "model": "a model, 2 padded sequences"}


def plot_speedups(result: Mapping[str, Any], path: Path) -> Path:
    """Speedup over SDPA softmax (line: median of the rounds, band: P10–P90) against length, not causal, batch 1."""
    rows, columns = ("float32", "bfloat16"), ("forward", "forward+backward")
    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, 2, sharex=True, squeeze=False)
    for row, dtype in enumerate(rows):
        for column, which in enumerate(columns):
            cells = [
                cell
                for cell in result["cells"]
                if (cell["dtype"], cell["pass"], cell["causal"], cell["batch"]) == (dtype, which, False, 1)
            ]
            _draw_speedups(grid[row, column], cells)
            grid[row, column].set_title(f"{dtype}, {which}", fontsize=10)
    for axes in grid[:, 0]:
        axes.set_ylabel("speedup over SDPA softmax")
    for axes in grid[1]:
        axes.set_xlabel("length n")
    grid[0, 0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
    return path


def plot_memory(result: Mapping[str, Any], path: Path) -> Path:
    """Extra peak of a training step against length, both logarithmic; hollow: not run, computed from shorter ones."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(1, 2, sharey=True, squeeze=False)
    for axes, (what, title) in zip(grid[0], MEMORY_PANELS.items(), strict=True):
        cells = [cell for cell in result["cells"] if cell["what"] == what]
        for contender, (color, label) in MEMORY_LINES.items():
            mine = [cell for cell in cells if cell["contender"] == contender]
            for key, filled in (("extra_bytes", True), ("expected_bytes", False)):
                points = [(cell["length"], cell[key] / 1e9) for cell in mine if key in cell]
                if points:
                    style = {"linestyle": "-" if filled else "none", "markerfacecolor": color if filled else "none"}
                    axes.plot(
                        *zip(*points, strict=True), marker="o", color=color, label=label if filled else None, **style
                    )
        axes.set_yscale("log")
        _length_axis(axes, [cell["length"] for cell in cells])
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("length n")
    grid[0, 0].set_ylabel("extra peak memory, GB")
    grid[0, 0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
    return path


def _draw_speedups(axes: Axes, cells: list[Mapping[str, Any]]) -> None:
    for name, (color, style, label) in SPEED_LINES.items():
        points = [(cell["length"], cell["speedups"][name][SDPA]) for cell in cells]
        lengths = [length for length, _ in points]
        median, low, high = ([figures[key] for _, figures in points] for key in ("median", "p10", "p90"))
        axes.plot(lengths, median, style, color=color, marker="o", markersize=3.5, label=label)
        axes.fill_between(lengths, low, high, color=color, alpha=0.15, linewidth=0)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_ylim(bottom=0)
    _length_axis(axes, [cell["length"] for cell in cells])


def _length_axis(axes: Axes, lengths: list[int]) -> None:
    ticks = sorted(set(lengths))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{length:,}" for length in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
