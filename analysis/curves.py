"""The course of a training as a picture: losses, scores, regulariser and learning rate over updates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from reluformer.analysis.drawing import BLACK, OLIVE, PURPLE, TEAL, WINE, finish, new_figure, save
from reluformer.configuration.scores import SCORES_IN_TRAINING

LogHistory = Sequence[Mapping[str, Any]]
Points = list[tuple[float, float]]  # (update, value)

_TRAINING, _VALIDATION = "training", "validation"
# Label of each key of the log, by the title of the panel. All scores are of 100, and share one.
PANELS: dict[str, dict[str, str]] = {
    "cross-entropy, nats per target token": {"cross_entropy": _TRAINING, "eval_cross_entropy": _VALIDATION},
    "loss, nats per target token": {"loss": _TRAINING, "eval_loss": _VALIDATION},
    "perplexity per token": {"eval_perplexity": _VALIDATION},
    "scores on the validation set, of 100": {f"eval_{score.name}": score.label for score in SCORES_IN_TRAINING},
    "regulariser, $L_{reg}$ (Eq. 7)": {"regularization": _TRAINING, "eval_regularization": _VALIDATION},
    "dead rows, %": {"dead_row_fraction": _TRAINING, "eval_dead_row_fraction": _VALIDATION},
    "learning rate": {"learning_rate": "learning rate"},
}
_CROSS_ENTROPY, _LOSS, _, _, _, _DEAD_ROWS, _ = PANELS
# Neither of ReLU nor of softmax: what is drawn here may have either. Lines that lie close to each other differ in style
# too.
_LOOKS = ((BLACK, "-"), (TEAL, "--"), (PURPLE, "-."), (OLIVE, ":"), (WINE, (0, (5, 1, 1, 1, 1, 1))))
_COLUMNS, _HEIGHT = 2, 2.3  # panels in a row; inches of each


def plot_training_curve(log_history: LogHistory, path: Path) -> bool:
    """Draws whatever of losses, scores, regulariser, dead rows and learning rate the log holds, over updates.

    The loss has no panel where the log has the cross-entropy: it is the sum of that and the regulariser, which has its
    own.

    Args:
        log_history: entries of `TrainerState.log_history`: "step" and any of the keys of `PANELS`.
        path: of the picture; its ending says which format, for example .png.

    Returns:
        Whether there is anything to draw: not in a training of fewer updates than `logging_steps`.
    """
    panels = {title: lines for title, labels in PANELS.items() if (lines := _lines(log_history, title, labels))}
    if not panels:
        return False
    if panels.get(_CROSS_ENTROPY, {}).keys() >= panels.get(_LOSS, {}).keys():
        panels.pop(_LOSS, None)
    rows = math.ceil(len(panels) / _COLUMNS)
    figure = new_figure(8, 0.3 + _HEIGHT * rows)
    grid = list(figure.subplots(rows, min(len(panels), _COLUMNS), sharex=True, squeeze=False).flat)
    for axes, (title, lines) in zip(grid, panels.items(), strict=False):
        _draw(axes, title, lines)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[: len(panels)][-_COLUMNS:]:
        axes.set_xlabel("updates", fontsize=9)
        axes.tick_params(labelbottom=True)
    grid[0].set_xlim(0, None)
    save(figure, path)
    return True


def _lines(log_history: LogHistory, title: str, labels: Mapping[str, str]) -> dict[str, Points]:
    """The points of every key that has a number somewhere in the log, by its label; equal ones are one line with both
    labels."""
    factor = 100 if title == _DEAD_ROWS else 1
    lines: dict[str, Points] = {}
    for key, label in labels.items():
        values = [
            (entry["step"], entry[key]) for entry in log_history if "step" in entry and _is_number(entry.get(key))
        ]
        points = [(step, factor * value) for step, value in values]
        same = next((other for other, of_other in lines.items() if of_other == points), None)
        if same is not None:
            lines[f"{same} and\n{label}"] = lines.pop(same)  # two lines leave more of the panel free
        elif points:
            lines[label] = points
    return lines


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _draw(axes: Axes, title: str, lines: Mapping[str, Points]) -> None:
    for (name, points), (color, style) in zip(lines.items(), _LOOKS, strict=False):
        # The eye cannot read tenths of a score off an axis. A line through few points needs marks to be seen.
        label = f"{name}, last {points[-1][1]:.4g}"
        marker = "o" if len(points) <= 12 else None
        axes.plot(*zip(*points, strict=True), label=label, color=color, linestyle=style, marker=marker, markersize=3)
    axes.set_title(title, fontsize=10)
    finish(axes)
    axes.legend(frameon=False, fontsize=8, borderpad=0.2, handlelength=1.6)
