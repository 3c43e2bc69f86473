"""What the pictures have in common: colours, axes over layers, heat maps.

ReLU and softmax have one colour each, wherever they are shown, on the page too. They can be told apart with every common kind of
colour blindness (after Okabe and Ito's palette), and nothing else is drawn in them. Of a heat map, three kinds of cells never
look alike: a weight of exactly 0 is white, the smallest weight above it is clearly coloured, and a key that a query does not see
is hatched in grey.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
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
    "identity": GREY,
    "relu6": WINE,
    "sigmoid": BLACK,
}


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
_LEVEL_LABELS = 5  # on so many bars of a panel the figures fit beside each other


def new_figure(width: float, height: float) -> Figure:
    """A figure of so many inches, apart from matplotlib's global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def module_panels(
    modules: Sequence[str], lines: int, width: float, height: float, **shared: Any
) -> tuple[Figure, np.ndarray]:
    """A figure and its axes (lines, modules) over layers. width, height: of one panel, in inches; shared: as of `subplots`."""
    figure = new_figure(width * len(modules) + 0.8, height * lines + 0.6)
    grid = figure.subplots(lines, len(modules), squeeze=False, **shared)
    for module, axes in zip(modules, grid[0], strict=True):
        axes.set_title(NAMES[module], fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("layer", fontsize=9)
    for axes in grid.flat:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure, grid


def modules_of(rows: Rows) -> list[str]:
    """The modules of a table, in its order."""
    return list(dict.fromkeys(row["module"] for row in rows if row["module"] != ALL))


def finish(axes: Axes) -> None:
    """A light grid, no frame."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: Path, title: str = "") -> list[Path]:
    """Writes the picture, with its title in as many lines as it needs."""
    lines = textwrap.fill(title, int(_TITLE_CHARACTERS * figure.get_figwidth()))
    figure.suptitle(lines, fontsize=11, parse_math=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return [path]


def draw_bars(rows: Rows, columns: dict[str, tuple[str, str]], label: str, path: Path, title: str) -> list[Path]:
    """Bars over layers, a panel for each module. columns: of the table, with the name and the colour of the series."""
    modules = modules_of(rows)
    figure, grid = module_panels(modules, 1, 3.4, 2.8, sharey=True)
    for module, axes in zip(modules, grid[0], strict=True):
        _draw_panel(axes, [row for row in rows if row["module"] == module and row["layer"] != ALL], columns)
    grid[0, 0].set_ylabel(label, fontsize=9)
    if len(columns) > 1:
        handles = [Patch(color=color, label=series) for series, color in columns.values()]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
    return save(figure, path, title)


def _draw_panel(axes: Axes, rows: Rows, columns: dict[str, tuple[str, str]]) -> None:
    width = 0.8 / len(columns)
    rotation = 90 if len(rows) * len(columns) > _LEVEL_LABELS else 0
    for place, (name, (_, color)) in enumerate(columns.items()):
        offset = (place - (len(columns) - 1) / 2) * width
        known = [row for row in rows if row[name] is not None]
        layers = [row["layer"] + offset for row in known]
        bars = axes.bar(layers, [row[name] for row in known], width * 0.95, color=color)
        axes.bar_label(bars, fmt="%.2g", fontsize=7, padding=2, rotation=rotation)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.margins(y=0.25 if rotation else 0.12)
    axes.spines[["top", "right"]].set_visible(False)


# Heat maps

_HATCH = "/////"
_LINE = "#dddddd"  # between cells: white ones have an edge
# A letter's width in inches for a font of one point.
_LETTER = 0.0083


def draw_heat_maps(
    maps: Sequence[Tensor],
    titles: Sequence[str],
    keys: Sequence[str],
    queries: Sequence[str],
    *,
    key_label: str,
    query_label: str,
    hidden: Tensor | None = None,
    color: str = RELU,
    cell: float = 0.34,
    font_size: float = 9,
) -> Figure:
    """A square grid of maps (queries, keys) over the same tokens, with one colour scale.

    Args:
        maps: one or more; `titles`: one for each.
        keys, queries: tokens of the horizontal and of the vertical axis; `key_label`, `query_label`: what they are.
        hidden: boolean (queries, keys), True where the query does not see the key; None: it sees all.
        color: of the model's attention.
        cell: inches of a token, more where a map would be too small. font_size: of the tokens, in points.
    """
    columns = math.ceil(math.sqrt(len(maps)))
    rows = math.ceil(len(maps) / columns)
    width, height = max(cell * len(keys), 10 * cell), max(cell * len(queries), 6.5 * cell)
    longest = max(map(len, [*keys, *queries])) * _LETTER * font_size
    figure = new_figure(columns * width + longest + 1.7, rows * (height + 0.3) + longest + 0.9)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    hidden_cells = np.zeros(tuple(maps[0].shape), dtype=bool) if hidden is None else hidden.numpy()
    scale = scale_of(min(float(m.min()) for m in maps), max(float(m.max()) for m in maps), color)
    upright = longest > width / len(keys)
    for axes, weights, name in zip(grid.flat, maps, titles, strict=False):
        image = draw_cells(axes, weights.numpy(), hidden_cells, scale)
        axes.set_title(name, fontsize=10)
        label_tokens(axes, keys, queries, font_size, 90 if upright else 0)
    for axes in grid.flat[len(maps) :]:
        axes.set_visible(False)
    figure.colorbar(image, ax=grid, label="attention weight, other than 0", shrink=0.8, pad=0.02)
    name_cells(figure, is_hidden=bool(hidden_cells.any()))
    for axes in grid[-1]:
        axes.set_xlabel(key_label, fontsize=font_size + 1)
    for axes in grid[:, 0]:
        axes.set_ylabel(query_label, fontsize=font_size + 1)
    return figure


def scale_of(lowest: float, highest: float, color: str) -> dict[str, Any]:
    """The colours of weights from `lowest` to `highest`, as `imshow` takes them; of all maps that are to be compared.

    Exact zeros have a colour of their own, which no other weight has; negative weights, as those of gelu, are grey, or red
    beside grey ones.
    """
    ramp = [shade(color, amount) for amount in np.concatenate([np.linspace(0.72, 0, 80), np.linspace(0, -0.6, 48)])]
    if lowest >= 0:
        return {"cmap": ListedColormap(ramp).with_extremes(bad=ZERO), "vmin": 0.0, "vmax": highest or 1.0}
    other = WINE if color == GREY else GREY
    below = [shade(other, amount) for amount in np.linspace(-0.4, 0.6, 128)]
    largest = max(-lowest, highest)
    return {"cmap": ListedColormap(below + ramp).with_extremes(bad=ZERO), "vmin": -largest, "vmax": largest}


def draw_cells(axes: Axes, weights: np.ndarray, hidden: np.ndarray, scale: dict[str, Any]) -> AxesImage:
    """Draws weights (queries, keys); exact zeros are masked in the image's array, and hidden cells hatched."""
    image = axes.imshow(np.ma.masked_equal(weights, 0.0), aspect="auto", interpolation="nearest", **scale)
    if hidden.any():
        edges = [np.arange(size + 1) - 0.5 for size in reversed(weights.shape)]
        cells = np.ma.masked_where(~hidden, np.zeros_like(weights))
        above_lines = 2.5
        color = ListedColormap([HIDDEN])
        axes.pcolor(*edges, cells, cmap=color, hatch=_HATCH, edgecolor="white", linewidth=0, zorder=above_lines)
    return image


def name_cells(figure: Figure, *, is_hidden: bool) -> None:
    """A legend at the foot of the figure for the cells that the colour bar does not name."""
    marks = [Patch(facecolor=ZERO, edgecolor=GREY, linewidth=0.6, label="exactly 0")]
    hidden = Patch(facecolor=HIDDEN, edgecolor="white", hatch=_HATCH, linewidth=0, label="hidden from the query")
    marks += [hidden] * is_hidden
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
