"""The plots of a study."""

import pytest
from matplotlib.figure import Figure

from benchmarks.studies import plots as study_plots
from benchmarks.studies.parser import load_study, study_names
from reluformer.analysis.drawing import RELU, SOFTMAX, color_of


@pytest.fixture
def canvases(monkeypatch):
    """What is drawn while the fixture lives."""
    drawn = []

    def canvas(width, height):
        drawn.append(Figure(figsize=(width, height), layout="constrained"))
        return drawn[-1]

    monkeypatch.setattr(study_plots, "new_figure", canvas)
    return drawn


def test_a_claim_about_a_family_is_made_of_each_of_its_rows_and_drawn(study):
    study.claims({"row": "width_{n}", "above": 10.0})
    study.give("width_8", 1, 0.9)
    study.give("width_16", 1, 0.8)
    assert [(verdict.text, verdict.verdict) for verdict in study.verdicts()] == [
        ("a claim (n = 8)", "agrees"),
        ("a claim (n = 16)", "agrees"),
    ]
    report = study.report()
    assert "![widths](reproduction/cpu/p.png)" in report
    assert (study.folder.parent / "docs/reproduction/cpu/p.png").stat().st_size > 1000


def test_a_row_without_a_place_on_the_axis_is_a_dashed_line_across(study, canvases):
    (plot,) = study.content["plots"]
    study.claims(plots=[{**plot, "levels": {"without attention": "softmax", "not run": "relu"}}])
    study.give("width_8", 1, 0.9)
    scores = [study.give("softmax", seed, quality)["bleu"]["score"] for seed, quality in ((1, 0.5), (2, 0.7))]
    study.report()
    axes = canvases[0].axes[0]
    names = ["width", "without attention", "from the lowest seed to the highest"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == names
    (level,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert level.get_ydata() == pytest.approx([sum(scores) / 2] * 2)


def test_seeds_are_a_band_around_their_mean(study, canvases):
    study.claims()
    scores = [study.give("width_8", seed, quality)["bleu"]["score"] for seed, quality in ((1, 0.9), (2, 0.7))]
    study.give("width_16", 1, 0.8)
    study.report()
    axes = canvases[0].axes[0]
    (line,), (band,) = axes.lines, axes.collections
    assert line.get_ydata()[0] == pytest.approx(sum(scores) / 2)
    heights = [y for x, y in band.get_paths()[0].vertices if x == 8]
    assert (min(heights), max(heights)) == pytest.approx((min(scores), max(scores)))


def test_a_picture_has_a_measured_figure_on_its_axis(study, canvases):
    (plot,) = study.content["plots"]
    study.claims(plots=[{**plot, "x": "entropy"}])
    for seed, entropy in ((1, 2.0), (2, 3.0)):
        study.give("width_8", seed, 0.9, entropy=entropy)
    study.give("width_16", 1, 0.8, entropy=1.5)
    study.report()
    axes = canvases[0].axes[0]
    assert list(axes.lines[0].get_xdata()) == [1.5, 2.5], "in the order of the axis, and of two seeds the mean"


def test_a_table_of_a_row_is_drawn_without_the_mean_of_all_layers(study, canvases):
    plot = {"title": "p", "x_label": "x", "log_x": False, "lines": {"ReLU": "relu"}}
    over_updates = {**plot, "file": "a.png", "x": "step", "y": "eval_dead_row_fraction", "table": "log_history"}
    table = "analyses.entropy.table[module=cross]"
    by_layer = {**plot, "file": "b.png", "x": "layer", "y": "entropy", "table": table, "y_label": "H"}
    study.claims(plots=[over_updates, by_layer])
    study.give("relu", 1, 0.9)
    study.report()
    (first,), (second,) = (canvas.axes for canvas in canvases)
    assert (list(first.lines[0].get_xdata()), list(first.lines[0].get_ydata())) == ([5], [0.25])
    assert (list(second.lines[0].get_xdata()), list(second.lines[0].get_ydata())) == ([1], [9.9])
    assert (first.get_ylabel(), second.get_ylabel()) == ("eval dead row fraction", "H")


def test_no_two_activations_of_a_picture_have_one_colour():
    for name in (name for name in study_names() if name.startswith("vit_")):
        for plot in load_study(name).plots:
            colors = study_plots._colors(plot)
            assert len(set(colors.values())) == len(colors) == len(plot.lines) + len(plot.levels), plot.file
            assert (colors.get("ReLU", RELU), colors.get("softmax", SOFTMAX)) == (RELU, SOFTMAX)
    assert color_of("tanh") == color_of("none of these")
