"""The course of a training as a picture: losses, scores, regulariser and learning rate over updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from reluformer.analysis.drawing import BLACK, OLIVE, PURPLE, TEAL, WINE, finish, new_figure, save
from reluformer.configuration.scores import SCORES_IN_TRAINING

LogHistory = Sequence[Mapping[str, Any]]
Lines = dict[str, list[tuple[float, float]]]  # (update, value), by key of the log

# Label of each key of the log, by the name of the panel's axis. A score has a panel of its own, scaled to its values.
_LOSSES, _TRAINING, _VALIDATION = "nats per target token", "training", "validation"
_SCORES = {
    f"{score.label} ({score.unit})" if score.unit else score.label: {f"eval_{score.name}": _VALIDATION}
    for score in SCORES_IN_TRAINING
}
PANELS: dict[str, dict[str, str]] = {
    _LOSSES: {
        "loss": "training loss",
        "cross_entropy": "training cross-entropy",
        "eval_loss": "validation loss",
        "eval_cross_entropy": "validation cross-entropy",
    },
    "perplexity per token": {"eval_perplexity": _VALIDATION},
    **_SCORES,
    "$L_{reg}$ (Eq. 7)": {"regularization": _TRAINING, "eval_regularization": _VALIDATION},
    "share of dead rows": {"dead_row_fraction": _TRAINING, "eval_dead_row_fraction": _VALIDATION},
    "learning rate": {"learning_rate": "learning rate"},
}
# Neither of ReLU nor of softmax: what is drawn here may have either. Lines that lie on each other differ in style too.
_LOOKS = ((BLACK, "-"), (TEAL, "--"), (PURPLE, "-."), (OLIVE, ":"), (WINE, "-"))


def plot_training_curve(log_history: LogHistory, path: Path) -> bool:
    """Draws whatever of losses, scores, regulariser, dead rows and learning rate the log holds, over updates.

    Args:
        log_history: entries of `TrainerState.log_history`: "step" and any of the keys of `PANELS`.
        path: of the picture; its ending says which format, for example .png.

    Returns:
        Whether there is anything to draw: not in a training of fewer updates than `logging_steps`.
    """
    found = {unit: lines for unit, labels in PANELS.items() if (lines := _lines(log_history, labels))}
    if not found:
        return False
    heights = [3.0 if unit == _LOSSES else 1.5 for unit in found]
    figure = new_figure(8.5, 0.9 + sum(heights))
    grid = figure.subplots(len(found), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (unit, lines) in zip(grid, found.items(), strict=True):
        _draw(axes, unit, lines)
    grid[-1].set(xlabel="updates", xlim=(0, None))
    figure.align_ylabels(grid)
    save(figure, path)
    return True


def _lines(log_history: LogHistory, labels: Mapping[str, str]) -> Lines:
    """The points of every key that has a number somewhere in the log."""
    lines: Lines = {}
    for key in labels:
        for entry in log_history:
            if "step" in entry and isinstance(entry.get(key), (int, float)):
                lines.setdefault(key, []).append((entry["step"], entry[key]))
    return lines


def _draw(axes: Axes, unit: str, lines: Lines) -> None:
    for (key, points), (color, style) in zip(lines.items(), _LOOKS, strict=False):
        # The eye cannot read tenths of a score off an axis. A line through one point cannot be seen.
        label = f"{PANELS[unit][key]}, last {points[-1][1]:.4g}"
        marker = "o" if key.startswith("eval_") or len(points) == 1 else None
        axes.plot(*zip(*points, strict=True), label=label, color=color, linestyle=style, marker=marker, markersize=4)
    axes.set_ylabel(unit, fontsize=9)
    finish(axes)
    axes.legend(frameon=False, fontsize=8)
