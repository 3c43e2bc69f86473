"""Pictures of the result files that pages show, in the style of `reluformer.analysis.drawing`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from benchmarks import words
from benchmarks.attention import DTYPES, HEAD_DIM, LENGTHS, PASSES, PLAIN, SDPA, WITH_STATISTICS
from benchmarks.columns import Result, groups
from benchmarks.sections import better_thread_ratios
from reluformer.analysis.drawing import GREY, RELU, SOFTMAX, TEAL, finish, legend_above, new_figure, save, shade

# Colour, marker, label; lines of ReLU are shades of its colour.
SPEED_LINES = {
    PLAIN: (RELU, "o", "ReLU"),
    WITH_STATISTICS: (shade(RELU, 0.5), "^", "ReLU with S and T"),
}


def attention_by_length(result: Result, path: Path) -> Path:
    """Speed over SDPA softmax (line: median of the rounds, band: P10–P90) against length, not causal, batch 1."""
    figure = new_figure(8, 5.6)
    panels = itertools.product(DTYPES, PASSES)
    for axes, (dtype, which) in zip(figure.subplots(2, 2, sharex=True).flat, panels, strict=True):
        wanted = {"dtype": dtype, "pass": which, "causal": False, "batch": 1, "head_dim": HEAD_DIM}
        cells = [cell for cell in result["cells"] if wanted.items() <= cell.items() and cell["length"] >= LENGTHS[0]]
        lengths = [cell["length"] for cell in cells]
        for name, (color, marker, label) in SPEED_LINES.items():
            ratios = [cell["speedups"][name][SDPA] for cell in cells]
            middle, low, high = ([ratio[key] for ratio in ratios] for key in ("median", "p10", "p90"))
            axes.plot(lengths, middle, color=color, marker=marker, markersize=4, label=label)
            axes.fill_between(lengths, low, high, color=color, alpha=0.15, linewidth=0)
        axes.axhline(1.0, color=SOFTMAX, linewidth=1.2, label="softmax (SDPA)")
        axes.set_title(f"{dtype}, {words.value(which)}", fontsize=10)
        axes.set_ylim(0, None)
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.xaxis.set_minor_locator(NullLocator())
        finish(axes)
    for axes in figure.axes[2:]:
        axes.set_xlabel("tokens", fontsize=9)
    for axes in figure.axes[::2]:
        axes.set_ylabel("times as fast as softmax", fontsize=9)
    legend_above(figure, figure.axes[0], "line: median; band: 10th to 90th percentile of the rounds")
    return save(figure, path)[0]


def translating_beside_rival(result: Result, path: Path) -> Path:
    """ReLUFormer over CTranslate2 by model, each at its better number of threads: a dot for each search, batch and
    text."""
    ratios = better_thread_ratios(result)
    shapes = list(dict.fromkeys(names[0] for names in ratios))
    batches = list(dict.fromkeys(names[1:] for names in ratios))
    figure = new_figure(8, 4.2)
    panels = figure.subplots(1, len(shapes), sharex=True, sharey=True)
    for axes, shape in zip(panels, shapes, strict=True):
        for compute, color, marker in (("float32", RELU, "o"), ("int8", TEAL, "s")):
            points = [
                (ratios[shape, *batch][compute], at) for at, batch in enumerate(batches) if (shape, *batch) in ratios
            ]
            axes.plot(*zip(*points, strict=True), marker, color=color, markersize=6, label=f"{compute} on both sides")
        axes.axvline(1.0, color=GREY, linewidth=1.2, label="as fast as CTranslate2")
        axes.set_title(f"{words.value(shape)} model", fontsize=10)
        axes.margins(x=0.08)
        axes.set_xlim(0, None)
        axes.set_xlabel("times as fast as CTranslate2", fontsize=9)
        finish(axes)
    panels[0].set_yticks(range(len(batches)), [_batch(*batch) for batch in batches])
    panels[0].invert_yaxis()
    legend_above(figure, panels[0])
    return save(figure, path)[0]


def _batch(inputs: str, beams: int, sentences: int) -> str:
    text = words.value(inputs) if sentences > 1 else words.value(inputs).removesuffix("s")
    return f"{sentences} {text}, {beams} beam{'s' * (beams > 1)}"


def skipping_zeros(result: Result, path: Path) -> Path:
    """Skipping zeros over PyTorch by model, zeros and beams, with one thread."""
    ways = (
        ("float32 zeros", "float32 torch", RELU, "o", "float32"),
        ("int8 zeros", "int8 torch", TEAL, "s", "int8"),
        ("int8 both", "int8 torch", shade(TEAL, 0.5), "^", "int8, PyTorch's int8 elsewhere"),
    )
    cells = groups([cell for cell in result["cells"] if cell["threads"] == 1], "shape")
    figure = new_figure(8, 3.2)
    panels = figure.subplots(1, len(cells), sharex=True, sharey=True)
    for axes, ((shape,), of_shape) in zip(panels, cells.items(), strict=True):
        for ours, rival, color, marker, label in ways:
            ratios = [cell["speedups"][ours][rival]["median"] for cell in of_shape]
            axes.plot(ratios, range(len(ratios)), marker, color=color, markersize=6, label=label)
        _finish_zeros(axes, shape)
    names = [f"{cell['zeros']} % zeros, {cell['beams']} beam{'s' * (cell['beams'] > 1)}" for cell in of_shape]
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    legend_above(figure, panels[0])
    return save(figure, path)[0]


def _finish_zeros(axes: Axes, shape: str) -> None:
    axes.axvline(1.0, color=GREY, linewidth=1.2, label="PyTorch in the same type")
    axes.set_title(shape, fontsize=10)
    axes.margins(x=0.08)
    axes.set_xlim(0, None)
    axes.set_xlabel("times as fast as PyTorch", fontsize=9)
    finish(axes)


PICTURES: Mapping[str, Callable[[Result, Path], Path]] = {
    "attention": attention_by_length,
    "translating": translating_beside_rival,
    "sparse-models": skipping_zeros,
}
