"""The course of a training as a picture: losses, scores, regulariser and learning rate over updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from reluformer.analysis.drawing import BLACK, OLIVE, PURPLE, TEAL, WINE, finish, new_figure, save
from reluformer.configuration.scores import SCORES_IN_TRAINING

LogHistory = Sequence[Mapping[str, Any]]


class Line(NamedTuple):
    """One line of a panel. key: of the log.

    A line that may lie on an earlier one is dashed, in another colour and with hollow markers, so that both are seen.
    """

    key: str
    label: str
    color: str
    style: str = "-"
    marker: str | None = None


class Panel(NamedTuple):
    """One set of axes over updates. factor: of the values. is_score: the legend tells the last value."""

    unit: str
    height: float
    lines: tuple[Line, ...]
    factor: float = 1.0
    is_score: bool = False


# Neither of ReLU nor of softmax: what is drawn here may have either.
_TRAINING, _VALIDATION = BLACK, PURPLE
_SCORE_LOOKS = ((WINE, "-", "o"), (TEAL, "--", "^"), (OLIVE, ":", "s"), (PURPLE, "-.", "D"))


def _both(key: str) -> tuple[Line, Line]:
    return Line(key, "training", _TRAINING), Line(f"eval_{key}", "validation", _VALIDATION, "--", "o")


def _score_panels() -> list[Panel]:
    """A panel for the scores of each kind, which have an axis of their own, scaled to their values."""
    panels = []
    for _, scores in groupby(SCORES_IN_TRAINING, key=lambda score: score.hub_type):
        labels = {score.name: f"{score.label} ({score.unit})" if score.unit else score.label for score in scores}
        looks = zip(labels.items(), _SCORE_LOOKS, strict=False)
        lines = tuple(Line(f"eval_{name}", label, *look) for (name, label), look in looks)
        panels.append(Panel(lines[0].label, 1.6, lines, is_score=True))
    return panels


PANELS = (
    Panel(
        "nats per target token",
        3.0,
        (
            Line("loss", "training loss", _TRAINING),
            Line("cross_entropy", "training cross-entropy", TEAL, "--"),
            Line("eval_loss", "validation loss", _VALIDATION, marker="o"),
            Line("eval_cross_entropy", "validation cross-entropy", OLIVE, "--", "s"),
        ),
    ),
    Panel("perplexity per token", 1.6, (Line("eval_perplexity", "validation", _VALIDATION, marker="o"),)),
    *_score_panels(),
    Panel("$L_{reg}$ (Eq. 7)", 1.3, _both("regularization")),
    Panel("dead rows (%)", 1.3, _both("dead_row_fraction"), factor=100.0),
    Panel("learning rate", 1.0, (Line("learning_rate", "learning rate", _TRAINING),)),
)


def plot_training_curve(log_history: LogHistory, path: Path) -> bool:
    """Draws whatever of losses, scores, regulariser, dead rows and learning rate the log holds, over updates.

    Args:
        log_history: entries of `TrainerState.log_history`: "step" and any of the keys of `PANELS`.
        path: of the picture; its ending says which format, for example .png.

    Returns:
        Whether there is anything to draw: not in a training of fewer updates than `logging_steps`.
    """
    found = {
        panel: {line: points for line in panel.lines if (points := _points(log_history, line.key, panel.factor))}
        for panel in PANELS
    }
    panels = [panel for panel in PANELS if found[panel]]
    if not panels:
        return False
    heights = [panel.height for panel in panels]
    figure = new_figure(8.5, 0.9 + sum(heights))
    ratios = {"height_ratios": heights}
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw=ratios)[:, 0]
    for axes, panel in zip(grid, panels, strict=True):
        _draw(axes, panel, found[panel])
    grid[-1].set_xlabel("updates")
    grid[-1].set_xlim(left=0)
    figure.align_ylabels(grid)
    save(figure, path)
    return True


def _points(log_history: LogHistory, key: str, factor: float) -> list[tuple[float, float]]:
    """(update, value) of every entry that has the key with a number."""
    return [
        (entry["step"], entry[key] * factor)
        for entry in log_history
        if "step" in entry and isinstance(entry.get(key), (int, float))
    ]


def _draw(axes: Axes, panel: Panel, lines: Mapping[Line, list[tuple[float, float]]]) -> None:
    for line, points in lines.items():
        solid = line.style == "-"
        axes.plot(
            *zip(*points, strict=True),
            # The eye cannot read tenths of a score off an axis.
            label=f"{line.label}: {points[-1][1]:.1f}" if panel.is_score else line.label,
            color=line.color,
            linestyle=line.style,
            linewidth=1.6,
            marker=line.marker or ("o" if len(points) == 1 else None),  # a line through a single point cannot be seen
            markersize=4 if solid else 8,
            fillstyle="full" if solid else "none",
        )
    axes.set_ylabel(panel.unit, fontsize=9)
    finish(axes)
    if panel.is_score:
        axes.set_ylim(bottom=max(axes.get_ylim()[0], 0))
    elif panel is not PANELS[0] and min(value for points in lines.values() for _, value in points) >= 0:
        axes.set_ylim(bottom=0)
    if len(lines) > 1 or panel.is_score or panel is PANELS[0]:
        axes.legend(frameon=False, fontsize=8, loc="best")
