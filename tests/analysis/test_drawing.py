"""Heat maps: an exact zero, the smallest weight and a hidden cell look different; small maps fill their picture."""

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reluformer.analysis import drawing as colors
from reluformer.analysis.drawing import draw_heat_maps

WEIGHTS = torch.tensor([[0.0, 1e-6, 0.0], [0.01, 1.0, 0.0], [0.5, 0.0, 0.2]])


def draw(weights=WEIGHTS, **options):
    """The figure and a function from (query, key) to the colours of its cell, away from the edge."""
    keys, queries = [f"k{i}" for i in range(weights.shape[1])], [f"q{i}" for i in range(weights.shape[0])]
    style = {"axis_labels": ("keys", "queries"), "color": colors.RELU}
    figure = draw_heat_maps([weights], ["head"], keys, queries, **style, **options)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3].astype(int)

    def cell(query, key):
        x, y = figure.axes[0].transData.transform((key, query))
        row, column = pixels.shape[0] - round(y), round(x)
        return np.unique(pixels[row - 4 : row + 5, column - 4 : column + 5].reshape(-1, 3), axis=0)

    return figure, cell


def test_zero_small_and_hidden_cells_look_different():
    hidden = torch.ones(3, 3, dtype=torch.bool).triu(1)
    _, cell = draw(hidden=hidden)
    assert len(cell(2, 1)) == 1 and (cell(2, 1) == 255).all(), "an exact zero is white"
    (small,) = cell(1, 0)
    assert 255 - small.min() > 40, "a weight of 0.01 is clearly not white"
    (unseen,) = cell(0, 1)
    assert unseen.max() - unseen.min() < 3 and unseen.max() < 230, "a hidden cell is grey, whatever weight stands there"
    _, cell = draw()
    assert 255 - cell(0, 1).min() > 40
    (largest,) = cell(1, 1)
    assert largest.sum() < cell(2, 2).sum() < cell(1, 0).sum(), "a larger weight is darker"


def test_negative_weights_have_another_colour_than_zero_and_positive_ones():
    _, cell = draw(WEIGHTS - torch.tensor([0.0, 0.0, 0.01]))
    (negative,), (positive,) = cell(0, 2), cell(1, 0)
    assert (cell(2, 1) == 255).all() and negative.min() < 230
    assert negative.max() - negative.min() < 5 < positive.max() - positive.min()


def test_the_scale_of_weights_reaches_as_far_below_zero_as_above():
    scale = colors.weight_scale([torch.tensor([[-3.0, 1.0]]), torch.tensor([[0.5, -0.1]])], colors.RELU)
    assert (scale.norm.vmin, scale.norm.vmax) == (-3.0, 3.0)
    scale = colors.weight_scale([torch.zeros(2, 2)], colors.RELU)
    assert (scale.norm.vmin, scale.norm.vmax) == (0.0, 1.0), "a map of zeros has a scale, too"


def test_bars_stand_side_by_side_around_their_layer(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    rows = [{"module": "encoder_ffn", "layer": layer, "one": 0.1, "two": 0.2} for layer in ("all", 1, 2)]
    columns = {"one": ("a", colors.GREY), "two": ("b", colors.TEAL)}
    colors.draw_bars(rows, columns, "share", tmp_path / "a.png", "title")
    bars = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in figures[0].axes[0].patches]
    middles = [(round(left + width / 2, 6), height) for left, width, height in bars]
    assert middles == [(0.8, 0.1), (1.8, 0.1), (1.2, 0.2), (2.2, 0.2)]
    assert all(0.3 < width < 0.4 for _, width, _ in bars)


def test_positions_have_the_errors_of_their_columns(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    errors = [0.25, None, 0.5]
    rows = [{"positions": f"{error}", "gain": 1.0, "nll": 2.0, "gain_error": error} for error in errors]
    panels = {"nats": {"nll": "alone"}, "gain": {"gain": "more"}}
    colors.draw_positions([rows[0], *rows], panels, colors.RELU, "position", tmp_path / "a.png", "title")
    spans = []
    for axes in figures[0].axes:
        (bars,) = axes.containers[0].lines[2]
        spans.append([float(high - low) / 2 for (_, low), (_, high) in bars.get_segments()])
    assert spans == [[0.0, 0.0, 0.0], [0.25, 0.0, 0.5]]


def test_nothing_else_has_the_colours_of_relu_and_softmax():
    named = {name: value for name, value in vars(colors).items() if name[0] != "_" and str(value).startswith("#")}
    assert len(named) >= 10 and len(set(named.values())) == len(named)
    assert colors.color_of("relu") == colors.RELU and colors.color_of("softmax") == colors.SOFTMAX
    assert colors.color_of("gelu") not in (colors.RELU, colors.SOFTMAX)
    assert colors.color_of_model(object()) == colors.SOFTMAX
