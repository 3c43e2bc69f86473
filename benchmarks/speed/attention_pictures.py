"""Two pictures from the result files: speedup over softmax against length, and extra peak memory against length."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from benchmarks.speed.contenders import PLAIN, SDPA, WITH_STATISTICS
from benchmarks.speed.matrix_products import FLOOR
from reluformer.analysis.colors import GREY, RELU, SOFTMAX, shade

# Colour, marker, label; lines of ReLU are shades of its colour.
SPEED_LINES = {
    FLOOR: (GREY, "s", "matrix products only (floor)"),
    PLAIN: (RELU, "o", "ReLU, fused"),
    WITH_STATISTICS: (shade(RELU, 0.5), "^", "ReLU, fused, with S and T"),
}
MEMORY_LINES = {
    "fused": (RELU, "o", "ReLU, fused"),
    "sdpa": (SOFTMAX, "s", "softmax, SDPA"),
    "eager relu": (shade(RELU, 0.5), "^", "ReLU, eager"),
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
            wanted = (dtype, which, False, 1)
            cells = [
                cell
                for cell in result["cells"]
                if (cell["dtype"], cell["pass"], cell["causal"], cell["batch"]) == wanted and FLOOR in cell["speedups"]
            ]
            _draw_speedups(grid[row, column], cells)
            grid[row, column].set_title(f"{dtype}, {which}", fontsize=10)
    for axes in grid[:, 0]:
        axes.set_ylabel("speedup over SDPA softmax")
    for axes in grid[1]:
        axes.set_xlabel("length n")
    _name_marks(figure, grid[0, 0], Patch(color=GREY, alpha=0.25, linewidth=0, label="band: P10 to P90 of the rounds"))
    figure.savefig(path, dpi=130)
    return path


def plot_memory(result: Mapping[str, Any], path: Path) -> Path:
    """Extra peak of a training step against length, both logarithmic; hollow: not run, computed from shorter ones."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(1, 2, sharey=True, squeeze=False)
    for axes, (what, title) in zip(grid[0], MEMORY_PANELS.items(), strict=True):
        cells = [cell for cell in result["cells"] if cell["what"] == what]
        for contender, (color, marker, label) in MEMORY_LINES.items():
            mine = [cell for cell in cells if cell["contender"] == contender]
            for key, filled in (("extra_bytes", True), ("expected_bytes", False)):
                points = [(cell["length"], cell[key] / 1e9) for cell in mine if key in cell]
                if points:
                    style = {"linestyle": "-" if filled else "none", "markerfacecolor": color if filled else "none"}
                    axes.plot(
                        *zip(*points, strict=True), marker=marker, color=color, label=label if filled else None, **style
                    )
        axes.set_yscale("log")
        _length_axis(axes, [cell["length"] for cell in cells])
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("length n")
    grid[0, 0].set_ylabel("extra peak memory, GB")
    hollow = {"linestyle": "none", "marker": "o", "markerfacecolor": "none", "color": GREY}
    _name_marks(figure, grid[0, 0], Line2D([], [], label="hollow: not run, computed from shorter ones", **hollow))
    figure.savefig(path, dpi=130)
    return path


def _name_marks(figure: Figure, axes: Axes, mark: Patch | Line2D) -> None:
    """One legend above all panels: the lines of a panel, and what is drawn of each of them alike."""
    lines, _ = axes.get_legend_handles_labels()
    figure.legend(handles=[*lines, mark], loc="outside upper center", ncols=3, frameon=False, fontsize=9)


def _draw_speedups(axes: Axes, cells: list[Mapping[str, Any]]) -> None:
    for name, (color, marker, label) in SPEED_LINES.items():
        points = [(cell["length"], cell["speedups"][name][SDPA]) for cell in cells]
        lengths = [length for length, _ in points]
        median, low, high = ([figures[key] for _, figures in points] for key in ("median", "p10", "p90"))
        style = "--" if name == FLOOR else "-"
        axes.plot(lengths, median, style, color=color, marker=marker, markersize=4, label=label)
        axes.fill_between(lengths, low, high, color=color, alpha=0.15, linewidth=0)
    axes.axhline(1.0, color=SOFTMAX, linewidth=1.2, label="softmax, SDPA")
    axes.set_ylim(bottom=0)
    _length_axis(axes, [cell["length"] for cell in cells])


def _length_axis(axes: Axes, lengths: list[int]) -> None:
    ticks = sorted(set(lengths))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{length:,}" for length in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
