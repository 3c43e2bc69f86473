"""What the rows of a study gave: the figures of each seed, and whether they count as evidence."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.studies.parser import Catalogue, TableRow, table_of
from benchmarks.studies.study import Budget, Figure, Study
from benchmarks.studies.tasks import Places, Task, has_diverged, is_stale, read_json, read_result, spent
from reluformer.configuration.errors import UserError

RUN, PENDING, NOT_HERE = "run", "pending", "not trained"
_LOGGED = re.compile(r"log(\d*)\.(.+)")
_STEP = re.compile(r"([\w-]+)(?:\[([^\]]*)\])?(?:\.|$)")


@dataclass
class Outcome:
    """A row of a study's table with its results.

    status: `RUN`, `PENDING` or `NOT_HERE`. why: in words, where it is not `RUN`, or where a seed is missing. results, below: by
    seed, those that count as evidence, and those below the budget. beside: all rows of the table, by name.
    """

    entry: TableRow
    status: str
    why: str
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    below: dict[int, dict[str, Any]] = field(default_factory=dict)
    tasks: dict[int, Task] = field(default_factory=dict)
    beside: Mapping[str, Outcome] = field(default_factory=dict, repr=False, compare=False)

    @property
    def shown(self) -> dict[int, dict[str, Any]]:
        """Results by seed: those that are evidence, or else those below the budget."""
        return self.results or self.below


def at_size(study: Study, size: str) -> Study:
    """The study without the figures that this size does not show, and without the claims that are made of them."""
    figures = {name: figure for name, figure in study.figures.items() if size in figure.sizes}
    gone = study.figures.keys() - figures.keys()
    return dataclasses.replace(
        study, figures=figures, claims=[claim for claim in study.claims if claim.figure not in gone]
    )


def outcomes_of(study: Study, catalogue: Catalogue, places: Places) -> dict[str, Outcome]:
    """Every row of the study's table, by the name the study uses."""
    budget = study.budget.get(catalogue.size)
    outcomes = {entry.name: _outcome(entry, budget, places) for entry in table_of(study, catalogue)}
    for outcome in outcomes.values():
        outcome.beside = outcomes
    return outcomes


def _outcome(entry: TableRow, budget: Budget | None, places: Places) -> Outcome:
    if entry.row is None:
        return Outcome(entry, NOT_HERE, entry.not_here or "no row at this size")
    outcome = Outcome(entry, PENDING, "")
    missing = []
    for seed in entry.seeds:
        task = outcome.tasks[seed] = Task(entry.row, seed, places)
        result = read_result(task)
        if result is None:
            missing.append(f"seed {seed}: {'its result is of an earlier recipe' if is_stale(task) else 'not run'}")
        elif reason := _below(result, budget):
            outcome.below[seed] = result
            missing.append(f"seed {seed}: {reason}")
        else:
            outcome.results[seed] = result
    outcome.status = RUN if outcome.results else PENDING
    outcome.why = "; ".join(missing)
    return outcome


def _below(result: Mapping[str, Any], budget: Budget | None) -> str | None:
    """Why a result is no evidence yet; None if it is. A run that diverged has shown what it would show."""
    if budget is None:
        return "this size is no evidence"
    if has_diverged(result):
        return None
    updates, seconds = spent(result)
    if updates < budget.updates:
        return f"{updates:,} of {budget.updates:,} updates"
    if seconds < budget.seconds:
        return f"{seconds / 60:.0f} of {budget.seconds / 60:.0f} min of training and validation"
    return None


def value(figure: Figure, outcome: Outcome, seed: int | None = None) -> float | None:
    """A figure of a row's result of a seed, or of the file that holds it for all seeds; None where there is none.

    Raises:
        UserError: a path that is none.
    """
    if figure.relative_to:
        return _relative(figure, outcome, seed)
    content: Any = outcome.shown.get(seed)
    if figure.file is not None:
        file = Path(figure.file)
        content = read_json(file) if file.is_file() else {}
    name = outcome.entry.name
    found = select(content or {}, figure.path.replace("{row}", figure.names.get(name, name)))
    return found * figure.factor if isinstance(found, (int, float)) else None


def compared_with(figure: Figure, outcome: Outcome) -> Outcome | None:
    """The row that a relative figure of another one is compared with; None where there is none."""
    return outcome.beside.get(figure.relative_to.get(outcome.entry.name, ""))


def _relative(figure: Figure, outcome: Outcome, seed: int | None) -> float | None:
    other, itself = compared_with(figure, outcome), dataclasses.replace(figure, relative_to={})
    # What is evidence is compared with evidence alone.
    if other is None or (seed in outcome.results and seed not in other.results):
        return None
    values = [value(itself, each, seed) for each in (outcome, other)]
    return None if None in values or not values[1] else 100 * (values[0] / values[1] - 1)


def select(content: Any, path: str) -> Any:
    """What a path leads to: `a.b[layer=all,p=0.2].c`; None where it ends early, the list of rows where it ends with one.
    `log.name` and `log10.name` are of what was logged, see `study.Figure`.

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
        found = row.get(name)
        if found is None or (str(found) != text and found != _number(text)):
            return False
    return True


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[\d.]+", text) else None
