"""The course of a training as a picture: losses, scores, regulariser and learning rate over updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reluformer.analysis.drawing import BLACK, OLIVE, PURPLE, TEAL, WINE
from reluformer.configuration.errors import UserError
from reluformer.configuration.scores import SCORES_IN_TRAINING, Score

LogHistory = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Line:
    """One line of a panel: where its values are and how it is drawn.

    A line that may lie on an earlier one is dashed, in another colour and with hollow markers, so that both are seen.
    """

    key: str
    label: str
    color: str
    style: str = "-"
    marker: str | None = None
    factor: float = 1.0


@dataclass(frozen=True)
class Panel:
    """One set of axes over updates; left out if the log has none of its lines."""

    unit: str
    height: float
    lines: tuple[Line, ...]
    is_score: bool = False


# Neither of ReLU nor of softmax: what is drawn here may have either.
_TRAINING, _VALIDATION = BLACK, PURPLE
_SCORE_LOOKS = ((WINE, "-", "o"), (TEAL, "--", "^"), (OLIVE, ":", "s"), (PURPLE, "-.", "D"))


def _score_panel(scores: Iterable[Score]) -> Panel:
    """Of the scores of one kind; each kind has an axis of its own, scaled to its values."""
    labels = {score.name: f"{score.label} ({score.unit})" if score.unit else score.label for score in scores}
    lines = (
        Line(f"eval_{name}", label, color, style, marker)
        for (name, label), (color, style, marker) in zip(labels.items(), _SCORE_LOOKS, strict=False)
    )
    return Panel(next(iter(labels.values())), 1.6, tuple(lines), is_score=True)


PANELS = (
    Panel(
        "nats per target token",
        3.0,
        (
            Line("loss", "training loss", _TRAINING),
            Line("cross_entropy", "training cross-entropy", TEAL, style="--"),
            Line("eval_loss", "validation loss", _VALIDATION, marker="o"),
            Line("eval_cross_entropy", "validation cross-entropy", OLIVE, style="--", marker="s"),
        ),
    ),
    Panel("perplexity per token", 1.6, (Line("eval_perplexity", "validation", _VALIDATION, marker="o"),)),
    *(_score_panel(scores) for _, scores in groupby(SCORES_IN_TRAINING, key=lambda score: score.hub_type)),
    Panel(
        "$L_{reg}$ (Eq. 7)",
        1.3,
        (
            Line("regularization", "training", _TRAINING),
            Line("eval_regularization", "validation", _VALIDATION, style="--", marker="o"),
        ),
    ),
    Panel(
        "dead rows (%)",
        1.3,
        (
            Line("dead_row_fraction", "training", _TRAINING, factor=100.0),
            Line("eval_dead_row_fraction", "validation", _VALIDATION, style="--", marker="o", factor=100.0),
        ),
    ),
    Panel("learning rate", 1.0, (Line("learning_rate", "learning rate", _TRAINING),)),
)


def plot_training_curve(
    log_history: LogHistory, path: str | Path, evaluations: LogHistory | None = None, *, title: str | None = None
) -> Path:
    """Draws whatever of losses, scores, regulariser, dead rows and learning rate the log holds, over updates.

    Args:
        log_history: entries of `TrainerState.log_history`: "step" and any of the keys of `PANELS`.
        path: of the picture; its ending says which format, for example .png.
        evaluations: more entries with a "step" for figures measured outside the Trainer; their scores may be called
            `bleu` or `eval_bleu` alike. They are drawn as stars, apart from the lines.
        title: above the picture.

    Returns:
        The path.

    Raises:
        UserError: nothing that could be drawn.
    """
    after = [_with_prefix(entry) for entry in evaluations or ()]
    panels = _panels([*log_history, *after])
    if not panels:
        known = ", ".join(line.key for panel in PANELS for line in panel.lines)
        raise UserError(
            f"the log holds nothing to draw in {len(log_history)} entries; expected step with one of {known}"
        )
    figure = Figure(figsize=(8.5, 0.9 + sum(panel.height for panel in panels)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(
        len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": [panel.height for panel in panels]}
    )
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        _draw(axes, panel, log_history, after)
    grid[-1, 0].set_xlabel("updates")
    grid[-1, 0].set_xlim(left=0)
    figure.align_ylabels(grid[:, 0])
    if title:
        figure.suptitle(title, fontsize=12)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def holds_a_curve(log_history: LogHistory) -> bool:
    """Whether there is anything that [`plot_training_curve`] draws: not in a training of fewer updates than `logging_steps`."""
    return bool(_panels(log_history))


def _panels(entries: LogHistory) -> list[Panel]:
    return [panel for panel in PANELS if any(_points(entries, line) for line in panel.lines)]


def _draw(axes: Axes, panel: Panel, log_history: LogHistory, after: LogHistory) -> None:
    drawn = []
    for line in panel.lines:
        points, stars = _points(log_history, line), _points(after, line)
        if points:
            axes.plot(
                *zip(*points, strict=True),
                label=_with_last(line.label, points, panel),
                color=line.color,
                linestyle=line.style,
                linewidth=1.6,
                # A line through a single point cannot be seen.
                marker=line.marker or ("o" if len(points) == 1 else None),
                markersize=4 if line.style == "-" else 8,
                fillstyle="full" if line.style == "-" else "none",
            )
        if stars:
            label = _with_last(f"{line.label}, after training", stars, panel)
            axes.plot(*zip(*stars, strict=True), "*", label=label, color=line.color, markersize=12, clip_on=False)
        drawn += [line] * bool(points or stars)
    axes.set_ylabel(panel.unit, fontsize=9)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.is_score:
        axes.set_ylim(bottom=max(axes.get_ylim()[0], 0))
    elif panel is not PANELS[0] and min(y for line in drawn for _, y in _points([*log_history, *after], line)) >= 0:
        axes.set_ylim(bottom=0)
    if len(axes.get_lines()) > 1 or panel.is_score or panel is PANELS[0]:
        axes.legend(frameon=False, fontsize=8, loc="best")


def _with_last(label: str, points: list[tuple[float, float]], panel: Panel) -> str:
    """The label of a score tells its last value: the eye cannot read tenths off an axis."""
    return f"{label}: {points[-1][1]:.1f}" if panel.is_score else label


def _points(entries: Iterable[Mapping[str, Any]], line: Line) -> list[tuple[float, float]]:
    """(update, value) of every entry that has the line's key with a number."""
    return [
        (entry["step"], entry[line.key] * line.factor)
        for entry in entries
        if "step" in entry and isinstance(entry.get(line.key), (int, float))
    ]


def _with_prefix(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Scores under the names they have in the Trainer's log."""
    return {key if key == "step" or key.startswith("eval_") else f"eval_{key}": value for key, value in entry.items()}
