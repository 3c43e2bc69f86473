"""Curves: whatever the log holds is drawn, and nothing else."""

from matplotlib.figure import Figure

from reluformer.analysis.curves import PANELS, plot_training_curve

LOG = [
    {"step": 10, "loss": 5.0, "cross_entropy": 4.9, "regularization": 2.0, "learning_rate": 1e-4, "epoch": 0.1},
    {"step": 20, "loss": 4.0, "cross_entropy": 3.9, "regularization": 1.0, "dead_row_fraction": 0.5},
    {"step": 20, "eval_loss": 3.8, "eval_bleu": 12.5},
    {"step": 20, "train_runtime": 1.0},
]


def drawn(log, path, monkeypatch):
    """The axes that were saved, by the label of the y axis."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    assert plot_training_curve(log, path)
    return {axes.get_ylabel(): axes for axes in figures[0].axes}


def test_every_figure_of_the_log_is_drawn_over_updates(tmp_path, monkeypatch):
    lines = {
        unit: {line.get_label(): list(zip(*map(list, line.get_data()), strict=True)) for line in axes.get_lines()}
        for unit, axes in drawn(LOG, tmp_path / "new" / "curve.png", monkeypatch).items()
    }
    assert lines == {
        "nats per target token": {
            "training loss, last 4": [(10, 5.0), (20, 4.0)],
            "training cross-entropy, last 3.9": [(10, 4.9), (20, 3.9)],
            "validation loss, last 3.8": [(20, 3.8)],
        },
        "BLEU": {"validation, last 12.5": [(20, 12.5)]},
        "$L_{reg}$ (Eq. 7)": {"training, last 1": [(10, 2.0), (20, 1.0)]},
        "share of dead rows": {"training, last 0.5": [(20, 0.5)]},
        "learning rate": {"learning rate, last 0.0001": [(10, 1e-4)]},
    }


def test_lines_that_lie_on_each_other_are_told_apart(tmp_path, monkeypatch):
    keys = [key for labels in PANELS.values() for key in labels]
    panels = drawn([{"step": step, **dict.fromkeys(keys, 4.7)} for step in (10, 20)], tmp_path / "a.png", monkeypatch)
    assert panels.keys() == PANELS.keys()
    for axes in panels.values():
        looks = {(line.get_color(), line.get_linestyle()) for line in axes.get_lines()}
        assert len(looks) == len({style for _, style in looks}) == len(axes.get_lines())


def test_a_log_with_nothing_to_draw_has_no_picture(tmp_path):
    for log in ([], [{"step": 1, "train_runtime": 2.0}], [{"loss": 1.0}]):
        assert not plot_training_curve(log, tmp_path / "a.png") and not list(tmp_path.iterdir())
