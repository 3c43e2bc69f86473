"""Heat maps: an exact zero, the smallest weight and a hidden cell look different; small maps fill their picture."""

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

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


def test_nothing_else_has_the_colours_of_relu_and_softmax():
    named = {name: value for name, value in vars(colors).items() if name[0] != "_" and str(value).startswith("#")}
    assert len(named) >= 10 and len(set(named.values())) == len(named)
    assert colors.color_of("relu") == colors.RELU and colors.color_of("softmax") == colors.SOFTMAX
    assert colors.color_of("gelu") not in (colors.RELU, colors.SOFTMAX)
    assert colors.color_of_model(object()) == colors.SOFTMAX
