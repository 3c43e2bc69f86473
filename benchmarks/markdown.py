"""Tables of Markdown. `tabulate` pads every cell to the width of its column, which no generated page here could be read
with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean


def table(header: Iterable[str], rows: Iterable[Iterable[object]], *, numbers: bool = False) -> list[str]:
    r"""The lines of a table; a `|` in a cell is written as `\|`. numbers: all columns but the first are aligned to the
    right."""
    header = list(header)
    below = ["---", *["--:" if numbers else "---"] * (len(header) - 1)]
    cells = [header, *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    first, *others = (f"| {' | '.join(line)} |" for line in cells)
    return [first, f"|{'|'.join(below)}|", *others]


def mean_and_each(values: Sequence[float], form: str) -> str:
    """Their mean and, where there are several, each of them in brackets, in a format such as "{:.2f}"."""
    return form.format(fmean(values)) + (f" ({', '.join(map(form.format, values))})" if len(values) > 1 else "")
