"""Columns of the tables that pages show of result files, and the sentence above each table: machine, comparison,
direction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import words
from benchmarks.markdown import table

Cell = Mapping[str, Any]
Result = Mapping[str, Any]
NOTHING = "–"  # in a cell that was not measured
FASTER = "Above 1, the first is faster"


@dataclass(frozen=True)
class Column:
    """heading: of the column. text: what it shows of a cell of a result."""

    heading: str
    text: Callable[[Cell], str]


def fact(name: str, heading: str | None = None) -> Column:
    """A setting of a cell."""
    return Column(heading or name.replace("_", " "), lambda cell: words.value(cell[name]))


def time(name: str, *, each: str | None = None, heading: str | None = None) -> Column:
    """Median milliseconds of a contender. each: of one of so many things, by the name of their number in the cell."""

    def text(cell: Cell) -> str:
        if name not in cell["times"]:
            return NOTHING
        return number(cell["times"][name]["median_ms"] / (cell[each] if each else 1))

    return Column(heading or f"{words.contender(name)}, ms", text)


def speed(name: str, heading: str | None = None) -> Column:
    """What a contender does in a second, of the unit of its cell."""
    return Column(
        heading or words.contender(name),
        lambda cell: number(cell["speeds"][name]) if name in cell["speeds"] else NOTHING,
    )


def ratio(ours: str, rival: str, heading: str | None = None) -> Column:
    """How many times as fast as a rival: the median over rounds, with the 10th and the 90th percentile."""
    return Column(
        heading or f"{words.contender(ours)} over {words.contender(rival)}",
        lambda cell: spread(cell["speedups"].get(ours, {}).get(rival)),
    )


def median_ratio(ours: str, rival: str, heading: str | None = None) -> Column:
    """As `ratio`, the median alone."""

    def text(cell: Cell) -> str:
        ratio = cell["speedups"].get(ours, {}).get(rival)
        return NOTHING if ratio is None else f"{ratio['median']:.2f}"

    return Column(heading or words.contender(rival), text)


def shown(cells: Iterable[Cell], columns: Sequence[Column]) -> list[str]:
    """A table with a row for each cell; a column that no cell has a value for is left out."""
    rows = [[column.text(cell) for column in columns] for cell in cells]
    kept = [at for at in range(len(columns)) if any(row[at] != NOTHING for row in rows)]
    heading = [columns[at].heading for at in kept]
    return table(heading, [[row[at] for at in kept] for row in rows], numbers=True)


def number(value: float) -> str:
    """Four digits, or thousands with a comma."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def spread(values: Mapping[str, float] | None) -> str:
    """Median (P10–P90)."""
    return NOTHING if values is None else f"{values['median']:.2f} ({values['p10']:.2f}–{values['p90']:.2f})"


def said(result: Result, what: str) -> list[str]:
    """The lines above a table. what: what is compared, and which direction is better."""
    return ["", f"*{result['machine']['cpu']}, {result['settings']['threads']} threads. {what}.*", ""]


def groups(cells: Iterable[Cell], *names: str) -> dict[tuple[Any, ...], list[Cell]]:
    """Cells by the values of some of their settings, in the order in which these come."""
    cells_by_values: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        cells_by_values.setdefault(tuple(cell[name] for name in names), []).append(cell)
    return cells_by_values
