"""What the page says about an observed text, as HTML: figures of one head, its map, and all heads at a glance.

The rest of the page is made of Gradio's elements. A table whose cells are shaded buttons, with names that a screen reader reads,
and that keeps the focus when it is drawn anew is none of them: a `gr.Dataframe` holds no buttons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from reluformer.analysis.attention_maps import NAMES
from reluformer.analysis.collection import ALL
from reluformer.hub_cards.space.observation import ObservedText, ObservedTranslator, Place
from reluformer.hub_cards.space.pictures import draw_map, place_name

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Tile:
    """One figure of the chosen head. mean: the same over all heads of the layer."""

    name: str
    value: str
    mean: str
    meaning: str


@dataclass(frozen=True)
class Cell:
    """One head at a glance. shade: from 0 to 1."""

    place: Place
    name: str
    text: str
    shade: float
    chosen: bool


@dataclass(frozen=True)
class Table:
    """One figure of every head. heads: their numbers. layers: for each module's name, the cells of each layer, the mean
    over its heads last.
    """

    key: str
    caption: str
    heads: list[int]
    layers: dict[str, list[list[Cell]]]


def result_html(model: ObservedTranslator, observed: ObservedText, place: Place) -> str:
    """Translation, figures and map of the place, and every head at a glance."""
    there = observed.has(place)
    return _render(
        "result",
        observed=observed,
        shown=(len(observed.maps.tokens["source"]), len(observed.maps.tokens["predicted"])),
        missing=None if there else f"{model.name} has {_sizes(observed, place.module)}; choose one of those.",
        tiles=_tiles(observed, place) if there and observed.figures else [],
        picture=draw_map(observed, place) if there else None,
        tables=_tables(observed, place) if observed.figures else [],
    )


def heading_html(model: ObservedTranslator) -> str:
    """Name, attention and size of a model."""
    return _render("heading", model=model)


def message_html(text: str) -> str:
    """A sentence that asks for something else."""
    return _render("message", text=text)


def _sizes(observed: ObservedText, module: str) -> str:
    layers, heads = observed.layers(module), observed.heads(module)
    return f"{layers} layer{'s' * (layers > 1)} of {heads} head{'s' * (heads > 1)} in {NAMES[module].lower()}"


def _tiles(observed: ObservedText, place: Place) -> list[Tile]:
    row = observed.figures[place.module, place.layer, place.head]
    mean = observed.figures[place.module, place.layer, ALL]
    uniform = f"{row['uniform_entropy']:.2f} with equal weights"
    return [
        Tile(
            "Exact zeros",
            f"{row['zero_fraction']:.1%}",
            f"{mean['zero_fraction']:.1%}",
            "share of the weights of visible keys that are exactly 0",
        ),
        Tile("Row entropy", f"{row['entropy']:.2f} nats", f"{mean['entropy']:.2f}", f"mean over rows; {uniform}"),
        Tile(
            "Dead rows",
            f"{row['dead_row_fraction']:.1%}",
            f"{mean['dead_row_fraction']:.1%}",
            "rows whose weights are all 0; their entropy counts as 0",
        ),
        Tile("Row sum", f"{row['row_sum']:.2f}", f"{mean['row_sum']:.2f}", "mean sum of the weights of a row"),
    ]


def _tables(observed: ObservedText, chosen: Place) -> list[Table]:
    return [
        _table(observed, chosen, "zeros", "Exact zeros, %", lambda row: (100 * row["zero_fraction"], 100.0), "{:.1f}"),
        _table(
            observed,
            chosen,
            "entropy",
            "Row entropy, nats",
            lambda row: (row["entropy"], row["uniform_entropy"]),
            "{:.2f}",
        ),
    ]


def _table(
    observed: ObservedText,
    chosen: Place,
    key: str,
    caption: str,
    figure: Callable[[Row], tuple[float, float]],
    number: str,
) -> Table:
    """figure: of a row, its value and the value that is shaded fully. number: how the value is written."""

    def cell(place: Place) -> Cell:
        value, most = figure(observed.figures[place.module, place.layer, place.head])
        text = number.format(value)
        name = f"{place_name(observed, place)}: {caption} {text}"
        return Cell(place, name, text, min(1.0, value / most) if most else 0.0, place == chosen)

    layers = {
        NAMES[module]: [
            [cell(Place(module, layer, head)) for head in (*range(1, observed.heads(module) + 1), ALL)]
            for layer in range(1, observed.layers(module) + 1)
        ]
        for module in observed.maps.weights
    }
    most_heads = max(observed.heads(module) for module in observed.maps.weights)
    return Table(key, caption, [*range(1, most_heads + 1)], layers)


@cache
def _templates() -> jinja2.Environment:
    folder = Path(__file__).parent / "templates"
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _render(template: str, **values: Any) -> str:
    return _templates().get_template(f"{template}.html").render(values)
