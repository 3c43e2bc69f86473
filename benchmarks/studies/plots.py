"""Pictures of studies: a figure of many rows over what they differ in, or tables of single rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import ScalarFormatter

from benchmarks.studies.outcomes import Outcome, select, value
from benchmarks.studies.study import Plot, Study

_COLORS = ("#b2182b", "#1f5fa8", "#2a8c4a", "#7b3294", "#e08214")
_MARKERS = ("o", "s", "^", "D", "v")

Points = list[tuple[float, float]]


def draw_plot(plot: Plot, study: Study, outcomes: Mapping[str, Outcome], folder: Path) -> Path | None:
    """Draws a plot of a study; None if no row has a figure for it.

    Means over the seeds; single seeds as small points. Rows below their budget are not drawn.
    """
    lines = {label: _points(plot, name, study, outcomes) for label, name in plot.lines.items()}
    if not any(means for means, _ in lines.values()):
        return None
    canvas = Canvas(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    for (label, (means, single)), color, marker in zip(lines.items(), _COLORS, _MARKERS, strict=False):
        if means:
            axes.plot(*zip(*means, strict=True), label=label, color=color, marker=marker, markersize=5)
            axes.plot(*zip(*single, strict=True), ".", color=color, alpha=0.5, markersize=4)
    for (label, name), color in zip(plot.levels.items(), reversed(_COLORS), strict=False):
        if (level := _level(plot, name, study, outcomes)) is not None:
            axes.axhline(level, label=label, color=color, linestyle="--", linewidth=1)
    if plot.log_x:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(ScalarFormatter())
    if plot.x_max is not None:
        axes.set_xlim(0, plot.x_max)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y.replace("_", " ") if plot.table else study.figures[plot.y].label)
    axes.set_title(plot.title, fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / plot.file
    # no date or version in the file: the same figures give the same bytes
    canvas.savefig(path, dpi=130, metadata={"Software": None})
    return path


def _points(plot: Plot, name: str, study: Study, outcomes: Mapping[str, Outcome]) -> tuple[Points, Points]:
    """Means over seeds, and the points of single seeds, both sorted by x."""
    by_x: dict[float, list[float]] = {}
    for own_name, outcome in outcomes.items():
        row = outcome.entry.row
        if row is None or own_name != row_of_line(name, row.values):
            continue
        for result in outcome.results.values():
            for x, y in _of_result(plot, study, outcome, result):
                by_x.setdefault(x, []).append(y)
    means = [(x, sum(ys) / len(ys)) for x, ys in sorted(by_x.items())]
    return means, [(x, y) for x, ys in sorted(by_x.items()) for y in ys]


def _level(plot: Plot, name: str, study: Study, outcomes: Mapping[str, Outcome]) -> float | None:
    """Mean over the seeds of a row; None if it has not run."""
    if name not in outcomes:
        return None
    outcome = outcomes[name]
    figures = [value(study.figures[plot.y], outcome.entry, result) for result in outcome.results.values()]
    found = [figure for figure in figures if figure is not None]
    return sum(found) / len(found) if found else None


def _of_result(plot: Plot, study: Study, outcome: Outcome, result: Mapping) -> Points:
    if plot.table is not None:
        rows = select(result, plot.table) or []
        points = [(float(row[plot.x]), float(row[plot.y])) for row in rows if row.get(plot.y) is not None]
        return [point for point in points if plot.x_max is None or point[0] <= plot.x_max]
    y = value(study.figures[plot.y], outcome.entry, result)
    x = outcome.entry.row.values.get(plot.x)
    return [] if y is None or x is None else [(float(x), y)]


def row_of_line(name: str, values: Mapping) -> str | None:
    """The row's name that a line stands for, given a row's values; None where they do not fill it."""
    try:
        return name.format(**values)
    except KeyError:
        return None
