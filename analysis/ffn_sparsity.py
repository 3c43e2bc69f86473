"""The figure `ffn-sparsity`: how many activations of the feed-forward blocks are not zero, and neurons that never or always are.

An activation is what the last projection of a block multiplies: `f(W_1 x)`, or with a gate `f(W_1 x) * W_2 x`. Beside them stand
the weights of attention that are not zero, where it has exact zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reluformer.analysis.collection import ALL, HeadSums
from reluformer.analysis.drawing import OLIVE, PURPLE, TEAL, draw_bars
from reluformer.analysis.feed_forward import feed_forward_blocks
from reluformer.analysis.figure import TEXT, Figure, Rows, Subject, Taken, Watch

DEFINITIONS = {
    "tokens": "real tokens, those of padding left out; of attention, query rows of one head",
    "neurons": "width of the block; of attention, none",
    "nonzero_fraction": "share of the activations that are not exactly zero, of attention the share of the weights of visible "
    "keys; of `all` layers, the mean over their activations or weights",
    "dead_fraction": "share of the neurons that are zero for every token of the text",
    "always_on_fraction": "share of the neurons that are zero for none",
}
Place = tuple[str, int]


class AttentionNonzeros:
    """Weights of visible keys that are not zero, by kind of attention and layer."""

    def __init__(self) -> None:
        self._sums = HeadSums()

    def update(self, module: str, layer: int, weights: Tensor, visible: Tensor) -> None:
        """Adds rows; arguments as of `RowStatistics.update`."""
        seen = visible.unsqueeze(1)
        sums = (torch.ones_like(weights[..., 0]), seen.sum(dim=-1), ((weights != 0) & seen).sum(dim=-1))
        by_head = torch.stack([each.expand(weights.shape[:2]).sum(dim=0) for each in sums], dim=-1)
        self._sums.add(module, layer, by_head)

    def table(self) -> Rows:
        """One row for each kind of attention, and for each of its layers."""
        return [
            _row(module, layer, int(rows) // self._sums.heads(module), float(nonzero / seen))
            for (module, layer, head), (rows, seen, nonzero) in self._sums.groups()
            if head == ALL
        ]


@dataclass
class FFNSparsity(Figure):
    """Share of activations that are not zero, by layer."""

    name = "ffn-sparsity"
    needs = TEXT
    of_decoders = of_images = True
    definitions = DEFINITIONS

    def require(self, model: PreTrainedModel) -> None:
        feed_forward_blocks(model)

    def watch(self, model: PreTrainedModel) -> Watch:
        self._tokens: dict[Place, int] = {}
        self._nonzeros: dict[Place, Tensor] = {}  # of each neuron
        has_zeros = getattr(model.config, "attention_activation", "softmax") != "softmax"
        self._attention = AttentionNonzeros() if has_zeros else None
        return Watch(attention=self._attention, on_scores=self._add)

    def _add(self, stack: str, layer: int, scores: Tensor) -> None:
        """scores: (real tokens, neurons)."""
        place, nonzeros = (stack, layer), (scores != 0).sum(dim=0).cpu()
        self._tokens[place] = self._tokens.get(place, 0) + len(scores)
        self._nonzeros[place] = self._nonzeros.get(place, 0) + nonzeros

    def take(self, subject: Subject) -> Taken:
        table: Rows = []
        for stack in dict.fromkeys(stack for stack, _ in self._nonzeros):
            places = [place for place in self._nonzeros if place[0] == stack]
            table.append(self._of_blocks(stack, ALL, places))
            table += [self._of_blocks(stack, place[1] + 1, [place]) for place in places]
        parts = [
            f"{row['module']} {row['nonzero_fraction']:.1%} not zero, {row['dead_fraction']:.1%} of the neurons dead, "
            f"{row['always_on_fraction']:.1%} always on"
            for row in table
            if row["layer"] == ALL
        ]
        attention = [] if self._attention is None else self._attention.table()
        parts += [
            f"{row['module']} {1 - row['nonzero_fraction']:.1%} zeros" for row in attention if row["layer"] == ALL
        ]
        return Taken(table + attention, "; ".join(parts))

    def _of_blocks(self, stack: str, layer: int | str, places: list[Place]) -> dict[str, Any]:
        """Over the activations and neurons of these blocks."""
        shares = torch.cat([self._nonzeros[place] / self._tokens[place] for place in places])
        widths = [len(self._nonzeros[place]) for place in places]
        activations = sum(self._tokens[place] * width for place, width in zip(places, widths, strict=True))
        nonzero = sum(int(self._nonzeros[place].sum()) for place in places) / activations
        dead, always = (float((shares == bound).double().mean()) for bound in (0, 1))
        return _row(f"{stack}_ffn", layer, self._tokens[places[0]], nonzero, sum(widths), dead, always)

    def draw(self, rows: Rows, path: Path, title: str) -> Path:
        """The three shares as bars over layers."""
        columns = {
            "nonzero_fraction": ("not zero", TEAL),
            "dead_fraction": ("dead neurons", PURPLE),
            "always_on_fraction": ("neurons that are always on", OLIVE),
        }
        return draw_bars(rows, columns, "share", path, title)


def _row(
    module: str,
    layer: int | str,
    tokens: int,
    nonzero: float,
    neurons: int | None = None,
    dead: float | None = None,
    always_on: float | None = None,
) -> dict[str, Any]:
    values = (tokens, neurons, nonzero, dead, always_on)
    return {"module": module, "layer": layer, **dict(zip(DEFINITIONS, values, strict=True))}
