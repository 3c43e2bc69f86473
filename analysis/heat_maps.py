"""Heat maps of attention weights with tokens on both axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor


@dataclass(frozen=True)
class MapStyle:
    """cell: inches a token has. font_size: of the tokens, in points. columns: most maps side by side."""

    cell: float = 0.34
    font_size: float = 9
    columns: int = 4


def draw_heat_maps(
    maps: Sequence[Tensor],
    titles: Sequence[str],
    keys: Sequence[str],
    queries: Sequence[str],
    *,
    title: str,
    key_label: str,
    query_label: str,
    style: MapStyle | None = None,
) -> Figure:
    """A grid of maps (queries, keys) over the same tokens, with one colour scale; white is 0.

    Args:
        maps: one or more; `titles`: one for each.
        keys, queries: tokens of the horizontal and of the vertical axis.
        title: above the figure. key_label, query_label: what the tokens are.
        style: sizes.
    """
    style = style or MapStyle()
    columns = min(style.columns, len(maps))
    rows = math.ceil(len(maps) / columns)
    longest = max(map(len, [*keys, *queries])) * 0.0083 * style.font_size  # inches of the longest label
    width = columns * style.cell * len(keys) + longest + 1.7
    height = rows * (style.cell * len(queries) + 0.3) + longest + 0.55
    figure = Figure(figsize=(max(width, 5.0), max(height, 3.2)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    scale = _color_scale(maps)
    for axes, weights, name in zip(grid.flat, maps, titles, strict=False):
        image = axes.imshow(weights.numpy(), aspect="equal", interpolation="nearest", **scale)
        axes.set_title(name, fontsize=10)
        _label(axes, keys, queries, style.font_size)
    for axes in grid.flat[len(maps) :]:
        axes.set_visible(False)
    figure.colorbar(image, ax=grid, label="attention weight", shrink=0.8, pad=0.02)
    figure.suptitle(title, fontsize=11)
    if len(maps) == 1:  # beside the tokens, however wide the figure is
        grid[0, 0].set_xlabel(key_label, fontsize=10)
        grid[0, 0].set_ylabel(query_label, fontsize=10)
    else:
        figure.supxlabel(key_label, fontsize=10)
        figure.supylabel(query_label, fontsize=10)
    return figure


def _color_scale(maps: Sequence[Tensor]) -> dict[str, Any]:
    """One scale for all heads, so that they can be compared; white is 0."""
    lowest, highest = min(float(m.min()) for m in maps), max(float(m.max()) for m in maps)
    if lowest >= 0:
        return {"cmap": "Blues", "vmin": 0.0, "vmax": highest}
    largest = max(-lowest, highest)  # activations such as gelu have negative weights
    return {"cmap": "RdBu", "vmin": -largest, "vmax": largest}


def _label(axes: Axes, keys: Sequence[str], queries: Sequence[str], font_size: float) -> None:
    axes.set_xticks(range(len(keys)), keys, rotation=90, fontsize=font_size, parse_math=False)
    axes.set_yticks(range(len(queries)), queries, fontsize=font_size, parse_math=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    # White lines between cells.
    axes.set_xticks([position - 0.5 for position in range(1, len(keys))], minor=True)
    axes.set_yticks([position - 0.5 for position in range(1, len(queries))], minor=True)
    axes.grid(which="minor", color="white", linewidth=0.8)
    axes.tick_params(which="minor", length=0)
