"""Curves: whatever the log holds is drawn, and nothing else; matplotlib's global state is left alone."""

import pytest
from matplotlib.figure import Figure

from reluformer.analysis.curves import PANELS, plot_training_curve

PNG = b"\x89PNG\r\n\x1a\n"
LOG = [
    {"step": 10, "loss": 5.0, "cross_entropy": 4.9, "regularization": 2.0, "learning_rate": 1e-4, "epoch": 0.1},
    {
        "step": 20,
        "loss": 4.0,
        "cross_entropy": 3.9,
        "regularization": 1.0,
        "learning_rate": 2e-4,
        "dead_row_fraction": 0.5,
    },
    {"step": 20, "eval_loss": 3.8, "eval_bleu": 12.5, "eval_exact_match": 3.0},
    {"step": 20, "train_runtime": 1.0},
]


@pytest.fixture
def drawn(monkeypatch):
    """The figure that was saved, as {label of the y axis: {label of the line: [(x, y), …]}}."""
    axes_of = {}
    save = Figure.savefig

    def recording(self, *args, **kwargs):
        for axes in self.axes:
            axes_of[axes.get_ylabel()] = {
                line.get_label(): list(zip(*map(list, line.get_data()), strict=True)) for line in axes.get_lines()
            }
        return save(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", recording)
    return axes_of


def test_every_figure_of_the_log_is_drawn_over_updates(tmp_path, drawn):
    path = tmp_path / "new" / "curve.png"
    assert plot_training_curve(LOG, path)
    assert path.read_bytes().startswith(PNG)
    assert drawn["nats per target token"] == {
        "training loss": [(10, 5.0), (20, 4.0)],
        "training cross-entropy": [(10, 4.9), (20, 3.9)],
        "validation loss": [(20, 3.8)],
    }
    assert drawn["exact match (%)"] == {"exact match (%): 3.0": [(20, 3.0)]}
    assert drawn["BLEU"] == {"BLEU: 12.5": [(20, 12.5)]}
    assert drawn["$L_{reg}$ (Eq. 7)"] == {"training": [(10, 2.0), (20, 1.0)]}
    assert drawn["dead rows (%)"] == {"training": [(20, 50.0)]}
    assert drawn["learning rate"] == {"learning rate": [(10, 1e-4), (20, 2e-4)]}


def test_a_score_fills_its_axis_and_lines_that_lie_on_each_other_are_told_apart(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    keys = [key for panel in PANELS for key in panel.lines]
    log = [{"step": step, **dict.fromkeys(keys, value)} for step, value in ((10, 4.7), (20, 9.4))]
    plot_training_curve([*log, {"step": 20, "eval_exact_match": 0.0}], tmp_path / "a.png")
    panels = {axes.get_ylabel(): axes for axes in figures[0].axes}
    assert 4 < panels["BLEU"].get_ylim()[0] < 4.7 and 9.4 < panels["BLEU"].get_ylim()[1] < 10
    assert panels["exact match (%)"].get_ylim()[0] == 0  # a score is never below
    for axes in figures[0].axes:
        lines = axes.get_lines()
        assert len({line.get_color() for line in lines}) == len(lines)
        over_each_other = [line for line in lines if (line.get_linestyle(), line.get_fillstyle()) == ("-", "full")]
        assert len(over_each_other) == 1


def test_a_log_with_nothing_to_draw_has_no_picture(tmp_path):
    for log in ([], [{"step": 1, "train_runtime": 2.0}], [{"loss": 1.0}]):
        assert not plot_training_curve(log, tmp_path / "a.png") and not list(tmp_path.iterdir())
