"""The figure `ffn-nonzeros`: how many activations of the feed-forward blocks are not zero, and neurons that never or always are.

An activation is what the second projection of a block multiplies: `f(W_1 x)`, or with a gate `f(W_1 x) * W_2 x`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reluformer.analysis.colors import OLIVE, PURPLE, TEAL
from reluformer.analysis.drawing import draw_bars
from reluformer.analysis.figure import TEXT, Figure, Rows, Subject, Taken, Watch
from reluformer.analysis.head_sums import ALL

DEFINITIONS = {
    "tokens": "real tokens, those of padding left out",
    "neurons": "width of the block",
    "nonzero_fraction": "share of the activations that are not exactly zero; of `all` layers, the mean over their activations",
    "dead_fraction": "share of the neurons that are zero for every token of the text",
    "always_on_fraction": "share of the neurons that are zero for none",
    "nan_count": "activations that are NaN; they count as not zero",
}


class FFNNonzeros(Figure):
    """Share of activations that are not zero, by layer."""

    name = "ffn-nonzeros"
    needs = TEXT
    of_decoders = True
    definitions = DEFINITIONS

    def watch(self, model: PreTrainedModel) -> Watch:
        self._nonzeros: dict[tuple[str, int], Tensor] = {}
        self._tokens: dict[tuple[str, int], int] = {}
        self._nans: dict[tuple[str, int], int] = {}
        return Watch(on_scores=self._add)

    def _add(self, stack: str, layer: int, scores: Tensor) -> None:
        """scores: (real tokens, neurons)."""
        place = stack, layer
        self._nonzeros[place] = self._nonzeros.get(place, 0) + (scores != 0).sum(dim=0).cpu()
        self._tokens[place] = self._tokens.get(place, 0) + len(scores)
        self._nans[place] = self._nans.get(place, 0) + int(scores.isnan().sum())

    def take(self, subject: Subject) -> Taken:
        table: Rows = []
        for stack in dict.fromkeys(stack for stack, _ in self._nonzeros):
            places = [place for place in self._nonzeros if place[0] == stack]
            table.append(self._row(stack, ALL, places))
            table += [self._row(stack, layer + 1, [(stack, layer)]) for _, layer in places]
        parts = [
            f"{row['module']} {row['nonzero_fraction']:.1%} not zero, {row['dead_fraction']:.1%} of the neurons dead, "
            f"{row['always_on_fraction']:.1%} always on"
            for row in table
            if row["layer"] == ALL
        ]
        return Taken(table, "; ".join(parts))

    def _row(self, stack: str, layer: int | str, places: list[tuple[str, int]]) -> dict[str, float | int | str]:
        """Over the activations and neurons of these blocks."""
        counts = torch.cat([self._nonzeros[place] for place in places])
        tokens = self._tokens[places[0]]
        return {
            "module": f"{stack}_ffn",
            "layer": layer,
            "tokens": tokens,
            "neurons": len(counts),
            "nonzero_fraction": float(counts.double().mean() / tokens),
            "dead_fraction": float((counts == 0).double().mean()),
            "always_on_fraction": float((counts == tokens).double().mean()),
            "nan_count": sum(self._nans[place] for place in places),
        }

    def draw(self, rows: Rows, path: Path, title: str) -> Path:
        """The three shares as bars over layers."""
        columns = {
            "nonzero_fraction": ("activations that are not zero", TEAL),
            "dead_fraction": ("dead neurons", PURPLE),
            "always_on_fraction": ("neurons that are always on", OLIVE),
        }
        return draw_bars(rows, columns, "share", path, title)


FIGURE = FFNNonzeros
