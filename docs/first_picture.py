"""The picture of docs/formula.md: one head of two models on one sentence, with softmax and with ReLU.

    reluformer train --config demo
    reluformer train --config demo --name demo_softmax --model.preset vanilla --model.regularization_weight 0
    python -m docs.first_picture --relu runs/demo --softmax runs/demo_softmax --layer 2 --head 3 \
        --text "siebenhundertachtunddreißig euro und zweiundvierzig cent" --output docs/images/attention.png

Layer and head are of cross-attention, from 1, and the same in both models; both read the same source, and the
translation of the first. Heads at the same place in two models have learned different things: look at the others too
(`reluformer space`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reluformer.analysis.attention_maps import PairMaps, pair_maps
from reluformer.analysis.collection import CROSS
from reluformer.analysis.drawing import draw_cells, label_tokens, name_cells, shade, weight_scale
from reluformer.configuration.errors import UserError
from reluformer.translating.translation import Translator


def draw_pair(maps: dict[str, PairMaps], layer: int, head: int, path: Path) -> Path:
    """Draws the map of one place for every model, side by side.

    Args:
        maps: by the name of the attention; of the same tokens.
        layer, head: of cross-attention, from 1.
        path: PNG file.
    """
    queries, keys = next(iter(maps.values())).axes(CROSS)
    figure = Figure(figsize=(9.6, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(1, len(maps), sharey=True)
    for axes, (name, each) in zip(grid, maps.items(), strict=True):
        weights = each.weights[CROSS][layer - 1][head - 1]
        scale = weight_scale([weights], each.color)
        draw_cells(axes, weights, scale)
        figure.colorbar(scale, ax=axes, shrink=0.8, pad=0.02)
        label_tokens(axes, keys, queries, 10, 90)
        title = f"{name}: {float((weights == 0).float().mean()):.0%} of the weights are exactly 0"
        axes.set_title(title, fontsize=12, color=shade(each.color, -0.2), fontweight="bold")
    name_cells(figure, is_hidden=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--relu", required=True, help="folder of a model with ReLU attention")
    parser.add_argument("--softmax", required=True, help="folder of one that was trained alike, with softmax attention")
    parser.add_argument("--text", required=True)
    parser.add_argument("--layer", type=int, required=True)
    parser.add_argument("--head", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True, help="PNG file")
    options = parser.parse_args(arguments)
    relu, softmax = (Translator.from_pretrained(folder) for folder in (options.relu, options.softmax))
    source = relu.tokenizer(options.text)["input_ids"]
    if softmax.tokenizer(options.text)["input_ids"] != source:
        raise UserError(
            "--softmax: its tokenizer cuts the text into other tokens than that of --relu; train both alike"
        )
    target = relu.model.generate(torch.tensor([source]), num_beams=relu.num_beams)[0, 1:].tolist()
    maps = {
        name: pair_maps(each.model, each.tokenizer, source, target)
        for name, each in (("softmax", softmax), ("ReLU", relu))
    }
    print(draw_pair(maps, options.layer, options.head, options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
