"""Two pictures from the result files: speedup over softmax against length, and extra peak memory against length."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.attention import HEAD_DIM, LENGTHS, PLAIN, SDPA, WITH_STATISTICS
from reluformer.analysis.drawing import RELU, SOFTMAX, shade

# Colour, marker, label; lines of ReLU are shades of its colour.
SPEED_LINES = {
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
    figure = Figure(figsize=(9, 6), layout="constrained")
    panels = itertools.product(("float32", "bfloat16"), ("forward", "forward+backward"))
    for axes, (dtype, which) in zip(figure.subplots(2, 2, sharex=True).flat, panels, strict=True):
        wanted = {"dtype": dtype, "pass": which, "causal": False, "batch": 1, "head_dim": HEAD_DIM}
        cells = [cell for cell in result["cells"] if wanted.items() <= cell.items() and cell["length"] >= LENGTHS[0]]
        lengths = [cell["length"] for cell in cells]
        for name, (color, marker, label) in SPEED_LINES.items():
            found = [cell["speedups"][name][SDPA] for cell in cells]
            median, low, high = ([ratio[key] for ratio in found] for key in ("median", "p10", "p90"))
            axes.plot(lengths, median, color=color, marker=marker, markersize=4, label=label)
            axes.fill_between(lengths, low, high, color=color, alpha=0.15, linewidth=0)
        axes.axhline(1.0, color=SOFTMAX, linewidth=1.2, label="softmax, SDPA")
        axes.set(ylim=(0, None), title=f"{dtype}, {which}", xlabel="length n", ylabel="speedup over SDPA softmax")
        _length_axis(axes, lengths)
    return _save(figure, path, "line: median, band: P10 to P90 of the rounds")


def plot_memory(result: Mapping[str, Any], path: Path) -> Path:
    """Extra peak of a training step against length, both logarithmic."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for axes, (what, title) in zip(figure.subplots(1, 2, sharey=True), MEMORY_PANELS.items(), strict=True):
        cells = [cell for cell in result["cells"] if cell["what"] == what]
        for contender, (color, marker, label) in MEMORY_LINES.items():
            own = [cell for cell in cells if cell["contender"] == contender and "extra_bytes" in cell]
            lengths, sizes = [cell["length"] for cell in own], [cell["extra_bytes"] / 1e9 for cell in own]
            axes.plot(lengths, sizes, color=color, marker=marker, label=label)
        axes.set(yscale="log", title=title, xlabel="length n", ylabel="extra peak memory, GB")
        _length_axis(axes, sorted({cell["length"] for cell in cells}))
    return _save(figure, path)


def _length_axis(axes: Axes, lengths: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path, note: str = "") -> Path:
    lines, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines, names, title=note, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    return path
