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


class Panel(NamedTuple):
    """One set of axes over updates. lines: their labels by the key of the log. factor: of the values. is_score: of validation."""

    unit: str
    height: float
    lines: Mapping[str, str]
    factor: float = 1.0
    is_score: bool = False


def _both(key: str) -> dict[str, str]:
    return {key: "training", f"eval_{key}": "validation"}


def _score_panels() -> list[Panel]:
    """A panel for the scores of each kind, which have an axis of their own, scaled to their values."""
    panels = []
    for _, scores in groupby(SCORES_IN_TRAINING, key=lambda score: score.hub_type):
        lines = {f"eval_{each.name}": f"{each.label} ({each.unit})" if each.unit else each.label for each in scores}
        panels.append(Panel(next(iter(lines.values())), 1.6, lines, is_score=True))
    return panels


_LOSSES = {
    "loss": "training loss",
    "cross_entropy": "training cross-entropy",
    "eval_loss": "validation loss",
    "eval_cross_entropy": "validation cross-entropy",
}
PANELS = (
    Panel("nats per target token", 3.0, _LOSSES),
    Panel("perplexity per token", 1.6, {"eval_perplexity": "validation"}),
    *_score_panels(),
    Panel("$L_{reg}$ (Eq. 7)", 1.3, _both("regularization")),
    Panel("dead rows (%)", 1.3, _both("dead_row_fraction"), factor=100.0),
    Panel("learning rate", 1.0, {"learning_rate": "learning rate"}),
)
# Neither of ReLU nor of softmax: what is drawn here may have either.
_TRAINING, _VALIDATION = (BLACK, TEAL), (PURPLE, OLIVE, WINE, TEAL)
# A line that may lie on an earlier one has another style, with hollow markers, so that both are seen.
_STYLES, _MARKERS = ("-", "--", ":", "-."), ("o", "^", "s", "D")


def plot_training_curve(log_history: LogHistory, path: Path) -> bool:
    """Draws whatever of losses, scores, regulariser, dead rows and learning rate the log holds, over updates.

    Args:
        log_history: entries of `TrainerState.log_history`: "step" and any of the keys of `PANELS`.
        path: of the picture; its ending says which format, for example .png.

    Returns:
        Whether there is anything to draw: not in a training of fewer updates than `logging_steps`.
    """
    found = [(panel, lines) for panel in PANELS if (lines := _lines(log_history, panel))]
    if not found:
        return False
    heights = [panel.height for panel, _ in found]
    figure = new_figure(8.5, 0.9 + sum(heights))
    ratios = {"height_ratios": heights}
    grid = figure.subplots(len(found), 1, sharex=True, squeeze=False, gridspec_kw=ratios)[:, 0]
    for axes, (panel, lines) in zip(grid, found, strict=True):
        _draw(axes, panel, lines)
    grid[-1].set_xlabel("updates")
    grid[-1].set_xlim(left=0)
    figure.align_ylabels(grid)
    save(figure, path)
    return True


def _lines(log_history: LogHistory, panel: Panel) -> dict[str, list[tuple[float, float]]]:
    """(update, value) of every entry that has a key of the panel with a number, by key."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for key in panel.lines:
        for entry in log_history:
            if "step" in entry and isinstance(entry.get(key), (int, float)):
                lines.setdefault(key, []).append((entry["step"], entry[key] * panel.factor))
    return lines


def _draw(axes: Axes, panel: Panel, lines: Mapping[str, list[tuple[float, float]]]) -> None:
    colors = {True: iter(_VALIDATION), False: iter(_TRAINING)}
    for (key, points), style, marker in zip(lines.items(), _STYLES, _MARKERS, strict=False):
        is_validation = key.startswith("eval_")
        axes.plot(
            *zip(*points, strict=True),
            # The eye cannot read tenths of a score off an axis.
            label=f"{panel.lines[key]}: {points[-1][1]:.1f}" if panel.is_score else panel.lines[key],
            color=next(colors[is_validation]),
            linestyle=style,
            linewidth=1.6,
            marker=marker if is_validation or len(points) == 1 else None,  # a line through one point cannot be seen
            markersize=4 if style == "-" else 8,
            fillstyle="full" if style == "-" else "none",
        )
    axes.set_ylabel(panel.unit, fontsize=9)
    finish(axes)
    if panel.is_score:
        axes.set_ylim(bottom=max(axes.get_ylim()[0], 0))
    elif panel is not PANELS[0] and min(value for points in lines.values() for _, value in points) >= 0:
        axes.set_ylim(bottom=0)
    if len(lines) > 1 or panel.is_score or panel is PANELS[0]:
        axes.legend(frameon=False, fontsize=8, loc="best")
