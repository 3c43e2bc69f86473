"""The analysis `ffn-sparsity`: activations of feed-forward blocks that are not zero, and neurons that never or always are.

An activation is what the last projection of a block multiplies: `f(W_1 x)`, or with a gate `f(W_1 x) * W_2 x`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reluformer.analysis.collection import ALL, BlockRows, block_rows
from reluformer.analysis.drawing import OLIVE, PURPLE, TEAL, draw_bars
from reluformer.analysis.inputs import Subject
from reluformer.analysis.results import Measured, Rows

DEFINITIONS = {
    "tokens": "real tokens, those of padding left out",
    "neurons": "width of the block; of `all` layers, the sum of their widths",
    "nonzero_fraction": "share of the activations that are not exactly zero; of `all` layers, over all their activations",
    "dead_fraction": "share of the neurons that are zero for every token of the text",
    "always_on_fraction": "share of the neurons that are zero for none",
}
Place = tuple[str, int]
_COLUMNS = {
    "nonzero_fraction": ("not zero", TEAL),
    "dead_fraction": ("dead neurons", PURPLE),
    "always_on_fraction": ("neurons that are always on", OLIVE),
}


def ffn_sparsity(subject: Subject) -> Measured:
    """Share of activations that are not zero, by layer."""
    table = sparsity_table(block_rows(subject.model, subject.batches()))
    parts = [
        f"{row['module']} {row['nonzero_fraction']:.1%} not zero, {row['dead_fraction']:.1%} of the neurons dead, "
        f"{row['always_on_fraction']:.1%} always on"
        for row in table
        if row["layer"] == ALL
    ]
    return Measured(table, "; ".join(parts), partial(draw_bars, table, _COLUMNS, "share"), DEFINITIONS)


def sparsity_table(rows: Iterable[BlockRows]) -> Rows:
    """One row for each stack and for each of its blocks; columns as in `DEFINITIONS`."""
    tokens: dict[Place, int] = {}
    nonzeros: dict[Place, Tensor] = {}  # of each neuron
    for block, activations, _, _ in rows:
        place = (block.stack, block.layer)
        tokens[place] = tokens.get(place, 0) + len(activations)
        nonzeros[place] = nonzeros.get(place, 0) + (activations != 0).sum(dim=0).cpu()

    def row(stack: str, layer: int | str, places: list[Place]) -> dict[str, Any]:
        shares = torch.cat([nonzeros[place] / tokens[place] for place in places])
        activations = sum(tokens[place] * len(nonzeros[place]) for place in places)
        dead, always = (float((shares == bound).double().mean()) for bound in (0, 1))
        nonzero = sum(int(nonzeros[place].sum()) for place in places) / activations
        values = (tokens[places[0]], len(shares), nonzero, dead, always)
        return {"module": f"{stack}_ffn", "layer": layer, **dict(zip(DEFINITIONS, values, strict=True))}

    table: Rows = []
    for stack in dict.fromkeys(stack for stack, _ in tokens):
        places = [place for place in tokens if place[0] == stack]
        table += [row(stack, ALL, places), *(row(stack, place[1] + 1, [place]) for place in places)]
    return table
