"""Attention weights over the tokens of a pair: `plot_attention_map`, and the analysis `attention-maps` (Figure 5)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from reluformer.analysis.analyze import AnalysisResult, Rows
from reluformer.analysis.collection import CROSS, DECODER_SELF, ENCODER_SELF, attention_rows, pair_batch
from reluformer.analysis.drawing import NAMES, color_of_model, draw_heat_maps, save
from reluformer.analysis.inputs import Subject
from reluformer.training.data.encoding import token_ids

MOST_TOKENS = 40  # of each side on a map: more cannot be read


@dataclass(frozen=True)
class PairMaps:
    """The maps of one pair. weights: by module and layer, (heads, queries, keys). color: of the model's attention.

    tokens: of the "source", those "read" and those "predicted" by the decoder.
    """

    weights: dict[str, list[Tensor]]
    tokens: dict[str, list[str]]
    color: str

    def axes(self, module: str) -> tuple[list[str], list[str]]:
        """Tokens of the queries and of the keys."""
        queries = self.tokens["source" if module == ENCODER_SELF else "predicted"]
        return queries, self.tokens["read" if module == DECODER_SELF else "source"]

    def draw(self, module: str, maps: list[Tensor], titles: list[str]) -> Figure:
        """A grid of maps (queries, keys) of a module."""
        queries, keys = self.axes(module)
        labels = (
            "tokens read by the decoder" if module == DECODER_SELF else "source tokens",
            "source tokens" if module == ENCODER_SELF else "predicted target tokens",
        )
        later = torch.ones_like(maps[0], dtype=torch.bool).triu(1) if module == DECODER_SELF else None
        return draw_heat_maps(maps, titles, keys, queries, axis_labels=labels, color=self.color, hidden=later)


def pair_maps(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source_ids: list[int], labels: list[int]
) -> PairMaps:
    """Computes the attention of a whole pair and keeps that of its first `MOST_TOKENS` tokens on either side.

    Raises:
        UserError: see `attention_rows`.
    """
    batch, cut = pair_batch(model, [(source_ids, labels)]), slice(MOST_TOKENS)
    kept: dict[str, list[Tensor]] = {}
    for module, _, weights, _ in attention_rows(model, [batch]):
        kept.setdefault(module, []).append(weights.transpose(0, 1)[:, cut, cut].float().cpu().clone())
    read = batch.inputs["decoder_input_ids"][0].tolist()
    ids = {"source": source_ids, "read": read, "predicted": labels}
    tokens = {side: tokenizer.convert_ids_to_tokens(list(some[cut])) for side, some in ids.items()}
    return PairMaps(kept, tokens, color_of_model(model.config))


def plot_attention_map(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, target: str, path: Path
) -> None:
    """Draws the cross-attention of the last decoder layer, the mean over its heads.

    A row belongs to the step that predicts its target token. Weights are shown as the model computed them: those of a
    point-wise activation need not sum to one, and an exact zero is white, so that a dead row is blank.
    """
    ((source_ids,), (labels,)) = token_ids(tokenizer, {"source": [source], "target": [target]})
    maps = pair_maps(model, tokenizer, source_ids, labels)
    layers = maps.weights[CROSS]
    cut = f", first {MOST_TOKENS} tokens a side" if max(len(source_ids), len(labels)) > MOST_TOKENS else ""
    title = f"{NAMES[CROSS]}, layer {len(layers)} of {len(layers)}, mean of {len(layers[-1])} heads{cut}"
    save(maps.draw(CROSS, [layers[-1].mean(dim=0)], [""]), path, title)


def attention_maps(subject: Subject) -> AnalysisResult:
    """Every head of every layer on the first pair: a folder of pictures."""
    maps = pair_maps(subject.model, subject.tokenizer, *subject.pairs[0])
    table = [
        {"module": module, "layer": layer, "picture": f"1.{module}.layer{layer}.png"}
        for module, layers in maps.weights.items()
        for layer in range(1, len(layers) + 1)
    ]
    return AnalysisResult(table, f"{len(table)} pictures", partial(_draw_layers, maps, table))


def _draw_layers(maps: PairMaps, table: Rows, path: Path, _: str) -> list[Path]:
    """One picture for each module and layer, a map for each head, in the folder of the name."""
    paths = []
    for row in table:
        layers = maps.weights[row["module"]]
        weights = layers[row["layer"] - 1]
        heads = [f"head {head}" for head in range(1, len(weights) + 1)]
        figure = maps.draw(row["module"], list(weights), heads)
        title = f"{NAMES[row['module']]}, layer {row['layer']} of {len(layers)}, up to {MOST_TOKENS} tokens a side"
        paths += save(figure, path.with_suffix("") / row["picture"], title)
    return paths
