"""Contenders of which each is compared with some of the others: their figures, and the table of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchmarks.markdown import table
from benchmarks.speed.goals import spread
from benchmarks.speed.timing import Step, time_contenders


def time_rivals(
    steps: Mapping[str, Step], compared: Mapping[str, Iterable[str]], *, budget: float, quick: bool = False
) -> dict[str, Any]:
    """Times all steps in alternating rounds.

    Args:
        steps: what to call, by the name of the contender.
        compared: name of a contender → names of those that it is compared with; who is not in `steps` is not compared.
        budget: seconds, as `time_contenders` has it.
        quick: three short rounds instead.

    Returns:
        `times`, of a call by contender, and `speedups`, how often the first is done in the time of a call of the second.
    """
    effort = {"rounds": 3, "round_seconds": 1e-3} if quick else {"budget": budget}
    timing = time_contenders(steps, **effort)
    return {
        "times": {name: timing.summary(name) for name in steps},
        "speedups": {
            name: {rival: timing.speedup(name, rival) for rival in rivals if rival in steps}
            for name, rivals in compared.items()
            if name in steps
        },
    }


def a_second(amount: float, figures: Mapping[str, Any]) -> dict[str, float]:
    """By contender: what of an `amount` that a call does is done in a second, by the median time.

    Args:
        amount: of a call, in any unit.
        figures: what `time_rivals` returns.
    """
    return {name: 1e3 * amount / times["median_ms"] for name, times in figures["times"].items()}


def rival_table(
    header: Iterable[str], columns: Iterable[Iterable[str]], cells: list[Mapping[str, Any]], speeds: str
) -> list[str]:
    """The lines of a table: a cell a row, with the speed of each contender and the speedups that were taken.

    Args:
        header: of the columns that say which cell it is,
        columns: and what they say, cell by cell.
        cells: with `speedups`, and with the same contenders in each.
        speeds: the key of the speeds by contender, as `a_second` returns them.
    """
    names = list(cells[0][speeds])
    pairs = [(name, rival) for name, rivals in cells[0]["speedups"].items() for rival in rivals]
    header = (*header, *names, *(f"{name} over {rival}" for name, rival in pairs))
    rows = ((*first, *_figures(cell, speeds, pairs)) for first, cell in zip(columns, cells, strict=True))
    return table(header, rows, numbers=True)


def _figures(cell: Mapping[str, Any], speeds: str, pairs: list[tuple[str, str]]) -> Iterator[str]:
    yield from (f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" for value in cell[speeds].values())
    yield from (spread(cell["speedups"][name][rival]) for name, rival in pairs)
