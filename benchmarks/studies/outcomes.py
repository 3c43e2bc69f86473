"""What the rows of a study gave: the figures of each seed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.studies.parser import Catalogue, TableRow, table_of
from benchmarks.studies.study import Figure, Study
from benchmarks.studies.tasks import Places, Task, read_json, read_result
from reluformer.configuration.errors import UserError

RUN, PENDING, NOT_HERE = "run", "pending", "not trained"
_LOGGED = re.compile(r"log(\d*)\.(.+)")
_STEP = re.compile(r"([\w-]+)(?:\[([^\]]*)\])?(?:\.|$)")


@dataclass
class Outcome:
    """A row of a study's table with its results.

    status: `RUN`, `PENDING` or `NOT_HERE`. why: in words, where it is not `RUN`, or where a seed is missing. results:
        by seed.
    beside: all rows of the table, by name.
    """

    entry: TableRow
    status: str
    why: str
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    tasks: dict[int, Task] = field(default_factory=dict)
    beside: Mapping[str, Outcome] = field(default_factory=dict, repr=False, compare=False)


def at_size(study: Study, size: str) -> Study:
    """The study without the figures that this size does not show, and without the claims that are made of them; of the
    size smoke, which shows that everything runs and nothing else, without any claim."""
    figures = {name: figure for name, figure in study.figures.items() if size in figure.sizes}
    gone = study.figures.keys() - figures.keys()
    return dataclasses.replace(
        study, figures=figures, claims=[claim for claim in study.claims if claim.figure not in gone and size != "smoke"]
    )


def outcomes_of(study: Study, catalogue: Catalogue, places: Places) -> dict[str, Outcome]:
    """Every row of the study's table, by the name the study uses."""
    outcomes = {entry.name: _outcome(entry, places) for entry in table_of(study, catalogue)}
    for outcome in outcomes.values():
        outcome.beside = outcomes
    return outcomes


def _outcome(entry: TableRow, places: Places) -> Outcome:
    if entry.row is None:
        return Outcome(entry, NOT_HERE, entry.not_here or "no row at this size")
    tasks = {seed: Task(entry.row, seed, places) for seed in entry.seeds}
    results = {seed: result for seed, task in tasks.items() if (result := read_result(task)) is not None}
    why = "; ".join(f"seed {seed}: not run" for seed in tasks if seed not in results)
    return Outcome(entry, RUN if results else PENDING, why, results, tasks)


def value(figure: Figure, outcome: Outcome, seed: int | None = None) -> float | None:
    """A figure of a row's result of a seed, or of the file that holds it for all seeds; None where there is none.

    Raises:
        UserError: a path that is none.
    """
    if figure.relative_to:
        itself, rows = dataclasses.replace(figure, relative_to={}), (outcome, compared_with(figure, outcome))
        own, other = (row and value(itself, row, seed) for row in rows)
        return None if own is None or not other else 100 * (own / other - 1)
    content: Any = outcome.results.get(seed)
    if figure.file is not None:
        file = Path(figure.file)
        content = read_json(file) if file.is_file() else {}
    name = outcome.entry.name
    number = select(content or {}, figure.path.replace("{row}", figure.names.get(name, name)))
    return number * figure.factor if isinstance(number, (int, float)) else None


def compared_with(figure: Figure, outcome: Outcome) -> Outcome | None:
    """The row that a relative figure of another one is compared with; None where there is none."""
    return outcome.beside.get(figure.relative_to.get(outcome.entry.name, ""))


def select(content: Any, path: str) -> Any:
    """What a path leads to: `a.b[layer=all,p=0.2].c`; None where it ends early, the list of rows where it ends with
    one. `log.name` and `log10.name` are of what was logged, see `study.Figure`.

    Raises:
        UserError: text that is no path.
    """
    if (logged := _LOGGED.fullmatch(path)) is not None:
        count, entries = int(logged[1] or 1), content.get("log_history", [])
        values = [entry[logged[2]] for entry in entries if entry.get(logged[2]) is not None]
        return fmean(values[-count:]) if len(values) >= count else None
    position = 0
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            raise UserError(
                f"{path!r} is no path: expected names joined by points, with [column=value,…] after a table"
            )
        position = step.end()
        content = content.get(step[1]) if isinstance(content, Mapping) else None
        if step[2] is not None:
            rows = [row for row in content or [] if _fits(row, step[2])]
            content = rows if position >= len(path) else (rows[0] if rows else None)
    return content


def _fits(row: Mapping[str, Any], conditions: str) -> bool:
    """Whether a row of a table has all the values, `layer=all,p_percent=0.2`; numbers are compared as numbers."""
    for condition in conditions.split(","):
        name, _, text = condition.partition("=")
        cell = row.get(name)
        if cell is None or (str(cell) != text and cell != _number(text)):
            return False
    return True


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[\d.]+", text) else None
