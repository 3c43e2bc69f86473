"""What the pictures of `reluformer analyze` have in common: names of modules, axes over layers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from reluformer.analysis.colors import GREY
from reluformer.analysis.head_sums import ALL

Rows = Sequence[Mapping[str, Any]]

TITLE_CHARACTERS = 10  # of an inch, at most, in the size of a title
LEVEL_LABELS = 5  # on so many bars of a panel the figures fit beside each other

NAMES = {
    "encoder_self": "encoder self-attention",
    "decoder_self": "decoder self-attention",
    "cross": "cross-attention",
    "encoder_ffn": "encoder FFN memory",
    "decoder_ffn": "decoder FFN memory",
    "encoder": "encoder",
    "decoder": "decoder",
}


def draw_bars(rows: Rows, columns: dict[str, tuple[str, str]], label: str, path: Path, title: str) -> Path:
    """Bars over layers, a panel for each module. columns: of the table, with the name and the colour of the series."""
    modules = modules_of(rows)
    figure = new_figure(3.4 * len(modules) + 0.5, 3.2)
    grid = figure.subplots(1, len(modules), squeeze=False, sharey=True)
    for module, axes in zip(modules, grid[0], strict=True):
        chosen = [row for row in rows if row["module"] == module and row["layer"] != ALL]
        # a module that has not all of the columns gets bars for those it has
        shown = {name: column for name, column in columns.items() if any(row[name] is not None for row in chosen)}
        width = 0.8 / max(len(shown), 1)
        rotation = 90 if len(chosen) * len(shown) > LEVEL_LABELS else 0
        for place, (name, (_, color)) in enumerate(shown.items()):
            known = [row for row in chosen if row[name] is not None]
            offset = (place - (len(shown) - 1) / 2) * width
            bars = axes.bar(
                [row["layer"] + offset for row in known],
                [row[name] for row in known],
                width * 0.95,
                color=color,
            )
            axes.bar_label(bars, fmt="%.2g", fontsize=7, padding=2, rotation=rotation)
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.margins(y=0.25 if rotation else 0.12)
        axes.set_title(NAMES[module], fontsize=10)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].set_ylabel(label, fontsize=9)
    if len(columns) > 1:
        handles = [Patch(color=color, label=series) for series, color in columns.values()]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
    label_layers(grid[0])
    return save(figure, path, title)


def modules_of(rows: Rows) -> list[str]:
    """The modules of a table, in its order."""
    return list(dict.fromkeys(row["module"] for row in rows if row["module"] != ALL))


def new_figure(width: float, height: float) -> Figure:
    """A figure of so many inches, apart from matplotlib's global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def finish(axes: Axes) -> None:
    """A light grid, no frame."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def label_layers(line: Sequence[Axes]) -> None:
    """Whole numbers of layers below each panel."""
    for axes in line:
        axes.set_xlabel("layer", fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def save(figure: Figure, path: Path, title: str) -> Path:
    """Writes the picture with its title, in as many lines as it needs."""
    lines = textwrap.fill(title, int(TITLE_CHARACTERS * figure.get_figwidth()))
    figure.suptitle(lines, fontsize=11, parse_math=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
