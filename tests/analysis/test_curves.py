"""Curves: whatever the log holds is drawn, and nothing else."""

import pytest
from matplotlib.figure import Figure

from reluformer.analysis.curves import PANELS, plot_training_curve

LOG = [
    {"step": 10, "loss": 5.0, "cross_entropy": 4.9, "regularization": 2.0, "learning_rate": 1e-4, "epoch": 0.1},
    {"step": 20, "loss": 4.0, "cross_entropy": 3.9, "regularization": 1.0, "dead_row_fraction": 0.5},
    {"step": 20, "eval_loss": 3.8, "eval_bleu": 12.5},
    {"step": 20, "train_runtime": 1.0},
]


def drawn(log, path, monkeypatch):
    """The axes that were saved, by their title."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    assert plot_training_curve(log, path)
    return {axes.get_title(): axes for axes in figures[0].axes if axes.get_visible()}


def lines_of(panels):
    return {
        title: {line.get_label(): list(zip(*map(list, line.get_data()), strict=True)) for line in axes.get_lines()}
        for title, axes in panels.items()
    }


def test_every_figure_of_the_log_is_drawn_over_updates(tmp_path, monkeypatch):
    assert lines_of(drawn(LOG, tmp_path / "new" / "curve.png", monkeypatch)) == {
        "cross-entropy, nats per target token": {"training, last 3.9": [(10, 4.9), (20, 3.9)]},
        "loss, nats per target token": {
            "training, last 4": [(10, 5.0), (20, 4.0)],
            "validation, last 3.8": [(20, 3.8)],
        },
        "scores on the validation set, of 100": {"BLEU, last 12.5": [(20, 12.5)]},
        "regulariser, $L_{reg}$ (Eq. 7)": {"training, last 1": [(10, 2.0), (20, 1.0)]},
        "dead rows, %": {"training, last 50": [(20, 50.0)]},
        "learning rate": {"learning rate, last 0.0001": [(10, 1e-4)]},
    }


def test_nothing_is_drawn_twice(tmp_path, monkeypatch):
    log = [{"step": step, "loss": 5.0, "cross_entropy": 4.9, "eval_bleu": step, "eval_tokenized_lowercase_bleu": step,
            "eval_chrf": 2 * step} for step in (10, 20)]  # fmt: skip
    lines = lines_of(drawn(log, tmp_path / "a.png", monkeypatch))
    assert list(lines) == ["cross-entropy, nats per target token", "scores on the validation set, of 100"]
    assert list(lines.popitem()[1]) == ["BLEU and\nlower-cased BLEU, last 20", "chrF, last 40"]


def test_lines_of_a_panel_are_told_apart(tmp_path, monkeypatch):
    keys = [key for labels in PANELS.values() for key in labels]
    log = [{"step": step, **{key: step + number for number, key in enumerate(keys)}} for step in (10, 20)]
    panels = drawn(log, tmp_path / "a.png", monkeypatch)
    assert [title for title in PANELS if title not in panels] == ["loss, nats per target token"]
    for axes in panels.values():
        looks = {
            (line.get_color(), str(line.get_linestyle()), str(line._unscaled_dash_pattern)) for line in axes.get_lines()
        }
        assert len({color for color, *_ in looks}) == len(looks) == len(axes.get_lines())


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_lowest_panels_of_both_columns_name_the_updates(count, tmp_path, monkeypatch):
    keys = ("eval_perplexity", "eval_bleu", "regularization", "learning_rate")[:count]
    panels = drawn([{"step": 10, **dict.fromkeys(keys, 1.0)}], tmp_path / "a.png", monkeypatch)
    assert [axes.get_xlabel() for axes in panels.values()] == [""] * (count - 2) + ["updates"] * min(count, 2)


@pytest.mark.parametrize(("points", "marker"), [(1, "o"), (12, "o"), (13, "None")])
def test_few_points_have_marks(points, marker, tmp_path, monkeypatch):
    panels = drawn([{"step": step, "loss": 1.0} for step in range(points)], tmp_path / "a.png", monkeypatch)
    assert [line.get_marker() for axes in panels.values() for line in axes.get_lines()] == [marker]


def test_a_log_with_nothing_to_draw_has_no_picture(tmp_path):
    for log in ([], [{"step": 1, "train_runtime": 2.0}], [{"loss": 1.0}]):
        assert not plot_training_curve(log, tmp_path / "a.png") and not list(tmp_path.iterdir())
