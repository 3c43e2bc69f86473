"""The figure `ffn-sparsity`: how many activations of the feed-forward blocks are not zero, and neurons that never or always are.

An activation is what the last projection of a block multiplies: `f(W_1 x)`, or with a gate `f(W_1 x) * W_2 x`. Beside them stand
the weights of attention that are not zero, where it has exact zeros.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from reluformer.analysis.causal_maps import shown_token
from reluformer.analysis.collection import AnyBatch
from reluformer.analysis.colors import OLIVE, PURPLE, TEAL
from reluformer.analysis.drawing import NAMES, draw_bars, modules_of, new_figure, save
from reluformer.analysis.feed_forward import feed_forward_blocks
from reluformer.analysis.figure import TEXT, Analysed, Figure, Rows, Subject, Taken, Watch
from reluformer.analysis.head_sums import ALL, HeadSums
from reluformer.analysis.result_files import write_csv

DEFINITIONS = {
    "tokens": "real tokens, those of padding left out; of attention, query rows of one head",
    "neurons": "width of the block; of attention, none",
    "nonzero_fraction": "share of the activations that are not exactly zero, of attention the share of the weights of visible "
    "keys; of `all` layers, the mean over their activations or weights",
    "least_of_a_token": "the share of the token that has the fewest activations that are not zero; of `all` layers, in one layer",
    "median_of_a_token": "the same of the median token, which half of the tokens (and layers) do not exceed",
    "most_of_a_token": "the same of the token that has the most",
    "dead_fraction": "share of the neurons that are zero for every token of the text",
    "always_on_fraction": "share of the neurons that are zero for none",
    "nan_count": "activations that are NaN; they count as not zero",
}


Place = tuple[str, int]


@dataclass
class _Block:
    """What was seen of one block. nonzeros: of each neuron, (neurons,). shares: of each token."""

    nonzeros: Tensor | int = 0
    nans: int = 0
    shares: list[Tensor] = field(default_factory=list)

    def add(self, scores: Tensor) -> None:
        """scores: (real tokens, neurons)."""
        nonzero = scores != 0
        self.nonzeros = self.nonzeros + nonzero.sum(dim=0).cpu()
        self.nans += int(scores.isnan().sum())
        self.shares.append(nonzero.float().mean(dim=-1).cpu())

    @property
    def tokens(self) -> int:
        return sum(map(len, self.shares))


class AttentionNonzeros:
    """Weights of visible keys that are not zero, by kind of attention and layer."""

    def __init__(self) -> None:
        self._sums = HeadSums()

    def update(self, module: str, layer: int, weights: Tensor, visible: Tensor) -> None:
        """Adds rows; arguments as of `RowStatistics.update`."""
        seen = visible.unsqueeze(1)
        figures = (torch.ones_like(weights[..., 0]), seen.sum(dim=-1), ((weights != 0) & seen).sum(dim=-1),
                   (weights.isnan() & seen).sum(dim=-1))  # fmt: skip
        self._sums.add(
            module, layer, torch.stack([each.expand(weights.shape[:2]).sum(dim=0) for each in figures], dim=-1)
        )

    def table(self) -> Rows:
        """One row for each kind of attention, and for each of its layers."""
        rows = []
        for (module, layer, head), sums in self._sums.groups():
            if head == ALL:
                heads = self._sums.heads(module)
                shares = {"nonzero_fraction": float(sums[2] / sums[1]), "nan_count": int(sums[3])}
                rows.append({**_EMPTY, "module": module, "layer": layer, "tokens": int(sums[0]) // heads, **shares})
        return rows


@dataclass
class FFNSparsity(Figure):
    """Share of activations that are not zero, by layer and by token."""

    name = "ffn-sparsity"
    needs = TEXT
    of_decoders = of_images = True
    definitions = DEFINITIONS
    map_tokens: int = 40

    def require(self, model: PreTrainedModel) -> None:
        feed_forward_blocks(model)

    def watch(self, model: PreTrainedModel) -> Watch:
        self._blocks: dict[Place, _Block] = {}
        self._first: AnyBatch | None = None
        has_zeros = getattr(model.config, "attention_activation", "softmax") != "softmax"
        self._attention = AttentionNonzeros() if has_zeros else None
        return Watch(attention=self._attention, on_scores=self._add, on_batch=self._remember)

    def _remember(self, batch: AnyBatch) -> None:
        self._first = batch if self._first is None else self._first

    def _add(self, stack: str, layer: int, scores: Tensor) -> None:
        self._blocks.setdefault((stack, layer), _Block()).add(scores)

    def take(self, subject: Subject) -> Taken:
        table: Rows = []
        for stack, places in self._stacks().items():
            table.append(_row(stack, ALL, [self._blocks[place] for place in places]))
            table += [_row(stack, place[1] + 1, [self._blocks[place]]) for place in places]
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

    def write(self, subject: Subject, folder: Path, title: str, facts: dict[str, Any]) -> Analysed:
        """As of every figure, and the first `map_tokens` tokens one by one: `ffn-sparsity-tokens.csv` and a picture."""
        written, path = super().write(subject, folder, title, facts), folder / f"{self.name}-tokens"
        rows = self._token_rows(subject)
        files = [write_csv(path.with_suffix(".csv"), rows), _draw_tokens(rows, path.with_suffix(".png"), title)]
        return dataclasses.replace(written, files=written.files + files)

    def _stacks(self) -> dict[str, list[Place]]:
        names = dict.fromkeys(stack for stack, _ in self._blocks)
        return {name: [place for place in self._blocks if place[0] == name] for name in names}

    def _token_rows(self, subject: Subject) -> Rows:
        """module, layer, place from 1, token, nonzero_fraction of the first tokens that were read."""
        rows: Rows = []
        for (stack, layer), block in self._blocks.items():
            shares = block.shares[0][: self.map_tokens].tolist()
            tokens = [str(place) for place in range(1, len(shares) + 1)]
            if (ids := self._first.token_ids.get(stack)) is not None:
                real = ids[self._first.rows[stack]][: self.map_tokens]
                tokens = [shown_token(subject.tokenizer.decode([each])) for each in real.tolist()]
            for place, (token, share) in enumerate(zip(tokens, shares, strict=True), start=1):
                place_of = {"module": f"{stack}_ffn", "layer": layer + 1, "place": place}
                rows.append({**place_of, "token": token, "nonzero_fraction": share})
        return rows

    def draw(self, rows: Rows, path: Path, title: str) -> Path:
        """The three shares as bars over layers."""
        columns = {
            "nonzero_fraction": ("not zero", TEAL),
            "dead_fraction": ("dead neurons", PURPLE),
            "always_on_fraction": ("neurons that are always on", OLIVE),
        }
        return draw_bars(rows, columns, "share", path, title)


_EMPTY = dict.fromkeys(
    ("module", "layer", "tokens", "neurons", "nonzero_fraction", "least_of_a_token", "median_of_a_token", "most_of_a_token",
     "dead_fraction", "always_on_fraction", "nan_count")
)  # fmt: skip


def _row(stack: str, layer: int | str, blocks: list[_Block]) -> dict[str, Any]:
    """Over the activations and neurons of these blocks."""
    shares = torch.cat([share for block in blocks for share in block.shares])
    counts = torch.cat([block.nonzeros for block in blocks])
    always = sum(int((block.nonzeros == block.tokens).sum()) for block in blocks)
    return {
        **_EMPTY,
        "module": f"{stack}_ffn",
        "layer": layer,
        "tokens": blocks[0].tokens,
        "neurons": len(counts),
        "nonzero_fraction": int(counts.sum()) / sum(block.tokens * len(block.nonzeros) for block in blocks),
        "least_of_a_token": float(shares.min()),
        "median_of_a_token": float(shares.median()),
        "most_of_a_token": float(shares.max()),
        "dead_fraction": float((counts == 0).double().mean()),
        "always_on_fraction": always / len(counts),
        "nan_count": sum(block.nans for block in blocks),
    }


def _draw_tokens(rows: Rows, path: Path, title: str) -> Path:
    """Tokens from left to right, layers from top to bottom; the darker, the more activations are not zero."""
    modules = modules_of(rows)
    most = max(row["place"] for row in rows)
    layers = max(row["layer"] for row in rows)
    figure = new_figure(0.22 * most + 2.0, len(modules) * (0.22 * layers + 1.5) + 0.4)
    grid = figure.subplots(len(modules), 1, squeeze=False)[:, 0]
    for module, axes in zip(modules, grid, strict=True):
        chosen = [row for row in rows if row["module"] == module]
        shares = np.full((max(row["layer"] for row in chosen), max(row["place"] for row in chosen)), np.nan)
        for row in chosen:
            shares[row["layer"] - 1, row["place"] - 1] = row["nonzero_fraction"]
        image = axes.imshow(shares, vmin=0, vmax=1, cmap="Greens", aspect="auto")
        tokens = [row["token"] for row in chosen if row["layer"] == 1]
        axes.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=7, parse_math=False)
        axes.set_yticks(range(len(shares)), range(1, len(shares) + 1), fontsize=7)
        axes.set_ylabel("layer", fontsize=9)
        axes.set_title(NAMES[module], fontsize=10)
    figure.colorbar(image, ax=grid.tolist(), label="share not zero", pad=0.02)
    return save(figure, path, title)


FIGURE = FFNSparsity
