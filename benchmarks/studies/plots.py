"""Pictures of studies: a figure of many rows over what they differ in, or tables of single rows."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from benchmarks.studies.outcomes import Outcome, select, value
from benchmarks.studies.parser import row_of_line
from benchmarks.studies.study import Plot, Study
from reluformer.analysis.drawing import GREY, OLIVE, PURPLE, TEAL, WINE, color_of, finish, new_figure, save, shade

_OTHERS = (TEAL, WINE, OLIVE, PURPLE)
_MARKERS = ("o", "s", "^", "D", "v")
# Several lines of one activation are shades of its colour.
_SHADES = (0.0, 0.5, -0.5, 0.7)

Points = list[tuple[float, float]]
Seeds = dict[float, list[float]]


def draw_plot(plot: Plot, study: Study, outcomes: Mapping[str, Outcome], folder: Path) -> Path | None:
    """Draws a plot of a study; None if no row has a figure for it.

    Lines are means over the seeds; where there are several, a band reaches from the lowest to the highest.
    """
    lines = {label: _points(plot, name, study, outcomes) for label, name in plot.lines.items()}
    if not any(lines.values()):
        return None
    levels = {label: _level(plot, name, study, outcomes) for label, name in plot.levels.items()}
    colors = _colors(plot)
    canvas = new_figure(8, 4)
    axes = canvas.subplots()
    for (label, seeds), marker in zip(lines.items(), cycle(_MARKERS), strict=False):
        if seeds:
            _draw_line(axes, label, seeds, colors[label], marker)
    for label, seeds in levels.items():
        if seeds:  # it has run
            axes.axhline(fmean(seeds), label=label, color=colors[label], linestyle="--", linewidth=1.2)
            axes.axhspan(min(seeds), max(seeds), color=colors[label], alpha=0.15, linewidth=0)
    _finish(axes, plot, study, sorted({x for seeds in lines.values() for x in seeds}))
    several = [ys for seeds in lines.values() for ys in seeds.values()] + list(levels.values())
    _name_marks(axes, has_band=any(len(ys) > 1 for ys in several))
    (path,) = save(canvas, folder / plot.file, plot.title)
    return path


def _colors(plot: Plot) -> dict[str, str]:
    """The colour of every line and level, by its label."""
    others, colors = cycle(_OTHERS), {}
    shades = {activation: cycle(_SHADES) for activation in plot.activations.values()}
    for label in (*plot.lines, *plot.levels):
        activation = plot.activations.get(label)
        colors[label] = shade(color_of(activation), next(shades[activation])) if activation else next(others)
    return colors


def _draw_line(axes: Axes, label: str, seeds: Seeds, color: str, marker: str) -> None:
    means = [fmean(ys) for ys in seeds.values()]
    axes.plot(list(seeds), means, label=label, color=color, marker=marker, markersize=5, clip_on=False)
    if any(len(ys) > 1 for ys in seeds.values()):
        low, high = ([of(ys) for ys in seeds.values()] for of in (min, max))
        axes.fill_between(list(seeds), low, high, color=color, alpha=0.2, linewidth=0)


def _finish(axes: Axes, plot: Plot, study: Study, places: list[float]) -> None:
    if plot.log_x:
        is_measured = plot.x in study.figures  # then it has a place of its own for every row
        axes.set_xscale("log", base=10 if is_measured else 2)
        if is_measured:
            axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            axes.xaxis.set_minor_formatter("{x:,g}")
        else:
            axes.xaxis.set_major_locator(FixedLocator(places))
            axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,g}")
    if plot.x_max is not None:
        axes.set_xlim(0, plot.x_max)
    axes.set_xlabel(plot.x_label, fontsize=9)
    label = plot.y_label or (plot.y.replace("_", " ") if plot.table else study.figures[plot.y].label)
    axes.set_ylabel(label, fontsize=9)
    finish(axes)


def _name_marks(axes: Axes, *, has_band: bool) -> None:
    marks, _ = axes.get_legend_handles_labels()
    if has_band:
        marks.append(Patch(color=GREY, alpha=0.25, linewidth=0, label="from the lowest seed to the highest"))
    # beside the picture: the best place inside would be that with the fewest points, which a line may cross
    axes.legend(handles=marks, frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _points(plot: Plot, name: str, study: Study, outcomes: Mapping[str, Outcome]) -> Seeds:
    """The figures of all seeds by their position on the axis, in its order."""
    by_x: Seeds = {}
    for own_name, outcome in outcomes.items():
        row = outcome.entry.row
        if row is None or own_name != row_of_line(name, row.values):
            continue
        points = [point for seed in outcome.results for point in _of_seed(plot, study, outcome, seed)]
        if plot.table is None and points:  # of all seeds, a figure on the axis is the mean
            points = [(fmean([x for x, _ in points]), y) for _, y in points]
        for x, y in points:
            by_x.setdefault(x, []).append(y)
    return dict(sorted(by_x.items()))


def _level(plot: Plot, name: str, study: Study, outcomes: Mapping[str, Outcome]) -> list[float]:
    """The figures of a row's seeds."""
    figures = [value(study.figures[plot.y], outcomes[name], seed) for seed in outcomes[name].results]
    return [figure for figure in figures if figure is not None]


def _of_seed(plot: Plot, study: Study, outcome: Outcome, seed: int) -> Points:
    if plot.table is not None:
        rows = select(outcome.results[seed], plot.table) or []
        complete = [row for row in rows if isinstance(row.get(plot.x), (int, float)) and row.get(plot.y) is not None]
        points = [(float(row[plot.x]), float(row[plot.y])) for row in complete]
        return [point for point in points if plot.x_max is None or point[0] <= plot.x_max]
    y = value(study.figures[plot.y], outcome, seed)
    is_measured = plot.x in study.figures
    x = value(study.figures[plot.x], outcome, seed) if is_measured else outcome.entry.row.values.get(plot.x)
    return [] if y is None or x is None else [(float(x), y)]
