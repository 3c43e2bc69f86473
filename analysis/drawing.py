"""What the pictures have in common: colours, axes over layers and positions, heat maps.

ReLU and softmax have one colour each, wherever they are shown, on the page too. They can be told apart with every
common kind of colour blindness (after Okabe and Ito's palette), and nothing else is drawn in them. Of a heat map, three
kinds of cells never look alike: a weight of exactly 0 is white, the smallest weight above it is clearly coloured, and a
key that a query does not see is grey.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from reluformer.analysis.collection import ALL

RELU, SOFTMAX, SPARSEMAX, ENTMAX = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
# Other series: one beside another, and what they are compared with.
PURPLE, OLIVE, TEAL, WINE = "#aa4499", "#808022", "#2a8c82", "#882255"
GREY, BLACK = "#666666", "#222222"
# Cells of a heat map: exactly 0; not seen by the query.
ZERO, HIDDEN = "#ffffff", "#d0d0d0"

_ACTIVATIONS = {
    "relu": RELU,
    "softmax": SOFTMAX,
    "sparsemax": SPARSEMAX,
    "entmax15": ENTMAX,
    "relu2": TEAL,
    "gelu": OLIVE,
    "softplus": ENTMAX,  # in no picture with it
    "relu6": WINE,
    "sigmoid": BLACK,
}
Rows = Sequence[Mapping[str, Any]]
NAMES = {
    "encoder_self": "encoder self-attention",
    "decoder_self": "decoder self-attention",
    "cross": "cross-attention",
    "encoder_ffn": "encoder FFN memory",
    "decoder_ffn": "decoder FFN memory",
    "encoder": "encoder",
    "decoder": "decoder",
}
_TITLE_CHARACTERS = 10  # of an inch, at most, in the size of a title
_DOTS = 150  # an inch: a picture of 8 inches, as wide as a page shows it, has 1,200


def color_of(activation: str) -> str:
    """The colour of an attention's activation, `#rrggbb`; one colour for all that have none of their own."""
    return _ACTIVATIONS.get(activation, PURPLE)


def color_of_model(config: Any) -> str:
    """The colour of a model's attention; a configuration that names no activation is that of a softmax model."""
    return color_of(getattr(config, "attention_activation", "softmax"))


def shade(color: str, amount: float) -> str:
    """`color` mixed with white for an amount from 0 to 1, with black for one from -1 to 0; `#rrggbb`."""
    toward = 255 if amount > 0 else 0
    parts = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + abs(amount) * (toward - part)):02x}" for part in parts)


def new_figure(width: float, height: float) -> Figure:
    """A figure of so many inches, apart from matplotlib's global state."""
    return Figure(figsize=(width, height), layout="constrained")


def module_panels(modules: Sequence[str], lines: int, height: float, **shared: Any) -> tuple[Figure, np.ndarray]:
    """A figure and its axes (lines, modules) over layers. height: of one panel, in inches; shared: as of `subplots`."""
    figure = new_figure(3.2 * len(modules) + 0.8, height * lines + 0.6)
    grid = figure.subplots(lines, len(modules), squeeze=False, **shared)
    for module, axes in zip(modules, grid[0], strict=True):
        axes.set_title(NAMES[module], fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("layer", fontsize=9)
    for axes in grid.flat:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        finish(axes)
    return figure, grid


def modules_of(rows: Rows) -> list[str]:
    """The modules of a table, in its order."""
    return list(dict.fromkeys(row["module"] for row in rows if row["module"] != ALL))


def finish(axes: Axes) -> None:
    """A light grid, no frame, small numbers."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def legend_above(figure: Figure, axes: Axes, title: str | None = None) -> None:
    """A legend above all panels, of the marks of one of them."""
    marks, names = axes.get_legend_handles_labels()
    layout = {"loc": "outside upper center", "ncols": len(names)}
    figure.legend(marks, names, title=title, title_fontsize=9, fontsize=9, frameon=False, **layout)


def save(figure: Figure, path: Path, title: str = "") -> list[Path]:
    """Writes the picture, with its title in as many lines as it needs.

    The file holds neither a date nor a version, so that the same figures give the same bytes.
    """
    if title:
        lines = textwrap.fill(title, int(_TITLE_CHARACTERS * figure.get_figwidth()))
        figure.suptitle(lines, fontsize=11, parse_math=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DOTS, metadata={"Software": None} if path.suffix == ".png" else None)
    return [path]


def draw_bars(rows: Rows, columns: dict[str, tuple[str, str]], label: str, path: Path, title: str) -> list[Path]:
    """Bars over layers, a panel for each module. columns: of the table, with the name and the colour of the series."""
    modules, width = modules_of(rows), 0.8 / len(columns)
    figure, grid = module_panels(modules, 1, 2.8, sharey=True)
    for module, axes in zip(modules, grid[0], strict=True):
        layers = [row for row in rows if row["module"] == module and row["layer"] != ALL]
        for index, (name, (_, color)) in enumerate(columns.items()):
            left = [row["layer"] + (index - (len(columns) - 1) / 2) * width for row in layers]
            axes.bar(left, [row[name] for row in layers], width * 0.95, color=color)
    grid[0, 0].set_ylabel(label, fontsize=9)
    handles = [Patch(color=color, label=series) for series, color in columns.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
    return save(figure, path, title)


def draw_positions(
    rows: Rows, panels: dict[str, dict[str, str]], color: str, where: str, path: Path, title: str
) -> list[Path]:
    """Lines over the groups of positions of a table, whose first row is of all tokens.

    panels: one below the other: the name of the vertical axis, and in it the columns with their labels. where: name of
    the horizontal axis. A column `<name>_error` is drawn as the error bars of `<name>`.
    """
    figure = new_figure(6.4, 4.8)
    names = [row["positions"] for row in rows[1:]]
    for axes, (unit, columns) in zip(figure.subplots(len(panels), 1, sharex=True), panels.items(), strict=True):
        for (column, label), style in zip(columns.items(), ("-", "--"), strict=False):
            errors = [row.get(f"{column}_error") or 0.0 for row in rows[1:]]
            look = {"color": color, "linestyle": style, "marker": "o", "markersize": 4, "capsize": 2}
            axes.errorbar(names, [row[column] for row in rows[1:]], errors, label=label, **look)
        axes.set_ylabel(unit, fontsize=9)
        axes.legend(frameon=False, fontsize=8)
        finish(axes)
    axes.set_xlabel(where, fontsize=9)
    return save(figure, path, title)


# Heat maps

_LINE = "#dddddd"  # between cells: white ones have an edge
_CELL, _LETTER = 0.25, 0.066  # inches of a token's cell, and of a letter of its name


def draw_heat_maps(
    maps: Sequence[Tensor],
    titles: Sequence[str],
    keys: Sequence[str],
    queries: Sequence[str],
    *,
    axis_labels: tuple[str, str],
    color: str,
    hidden: Tensor | None = None,
) -> Figure:
    """A grid of attention maps (queries, keys) with the same axes and one colour bar.

    Args:
        maps: one or more; `titles`: one for each.
        keys, queries: tokens of the horizontal and of the vertical axis; `axis_labels`: what they are.
        color: of the model's attention.
        hidden: boolean (queries, keys), True where the query does not see the key; None: it sees all.
    """
    columns = math.ceil(math.sqrt(len(maps)))
    rows = math.ceil(len(maps) / columns)
    width, height = (_CELL * max(len(tokens), least) for tokens, least in ((keys, 12), (queries, 8)))
    longest = max(map(len, [*keys, *queries])) * _LETTER
    figure = new_figure(columns * width + longest + 1.7, rows * (height + 0.3) + longest + 0.9)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    scale, upright = weight_scale(maps, color), longest > width / len(keys)
    for axes, weights, name in zip(grid.flat, maps, titles, strict=False):
        draw_cells(axes, weights, scale, hidden)
        axes.set_title(name, fontsize=10)
        label_tokens(axes, keys, queries, 8, 90 if upright else 0)
    for axes in grid.flat[len(maps) :]:
        axes.set_visible(False)
    figure.colorbar(scale, ax=grid, label="attention weight, other than 0", shrink=0.8, pad=0.02)
    name_cells(figure, is_hidden=hidden is not None)
    figure.supxlabel(axis_labels[0], fontsize=9)
    figure.supylabel(axis_labels[1], fontsize=9)
    return figure


def weight_scale(maps: Sequence[Tensor], color: str) -> ScalarMappable:
    """The colours of the weights of maps that are to be compared; negative ones, as those of gelu, are shades of
    grey."""
    highest = max(float(each.abs().max()) for each in maps) or 1.0
    ramp = [(0.0, shade(color, 0.72)), (0.5, color), (1.0, shade(color, -0.6))]
    if min(float(each.min()) for each in maps) >= 0:
        return ScalarMappable(Normalize(0.0, highest), LinearSegmentedColormap.from_list("weights", ramp))
    below = [(0.0, shade(GREY, -0.4)), (0.25, GREY), (0.5, shade(GREY, 0.6))]
    both = [*below, *((0.5 + position / 2, shaded) for position, shaded in ramp)]
    return ScalarMappable(Normalize(-highest, highest), LinearSegmentedColormap.from_list("weights", both))


def draw_cells(axes: Axes, weights: Tensor, scale: ScalarMappable, hidden: Tensor | None = None) -> None:
    """Draws weights (queries, keys) in the colours of `scale`, exact zeros white and hidden cells grey."""
    cells = scale.to_rgba(weights.numpy())
    cells[weights.numpy() == 0] = to_rgba(ZERO)
    if hidden is not None:
        cells[hidden.numpy()] = to_rgba(HIDDEN)
    axes.imshow(cells, aspect="auto", interpolation="nearest")


def name_cells(figure: Figure, *, is_hidden: bool) -> None:
    """A legend at the foot of the figure for the cells that the colour bar does not name."""
    marks = [Patch(facecolor=ZERO, edgecolor=GREY, linewidth=0.6, label="exactly 0")]
    if is_hidden:
        marks.append(Patch(facecolor=HIDDEN, label="hidden from the query"))
    figure.legend(handles=marks, loc="outside lower right", ncols=len(marks), frameon=False, fontsize=9)


def label_tokens(axes: Axes, keys: Sequence[str], queries: Sequence[str], font_size: float, rotation: int) -> None:
    """Writes the tokens along both axes, and draws the lines between their cells."""
    axes.set_xticks(range(len(keys)), keys, rotation=rotation, fontsize=font_size, parse_math=False)
    axes.set_yticks(range(len(queries)), queries, fontsize=font_size, parse_math=False)
    axes.tick_params(length=0)
    axes.spines[:].set_color(_LINE)
    axes.set_xticks([position - 0.5 for position in range(1, len(keys))], minor=True)
    axes.set_yticks([position - 0.5 for position in range(1, len(queries))], minor=True)
    axes.grid(which="minor", color=_LINE, linewidth=0.6)
    axes.tick_params(which="minor", length=0)
