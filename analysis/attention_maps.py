"""Attention weights over the tokens of a pair: `plot_attention_map`, and the analysis `attention-maps` (Figure 5)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from reluformer.analysis.collection import CROSS, DECODER_SELF, ENCODER_SELF, attention_weights, decoder_inputs, eager
from reluformer.analysis.drawing import MapStyle, color_of_model, draw_heat_maps
from reluformer.analysis.figure import TEXT, Analysed, Figure, Subject, write_csv, write_result
from reluformer.analysis.texts import make_batch
from reluformer.configuration.errors import UserError
from reluformer.training.data.moses import MosesStep
from reluformer.training.translation import Translator

DEFINITIONS = {
    "sentence": "number of the pair among those that were read, from 1",
    "query": "place of the token that looks, from 1; in the decoder, of the token that is predicted there",
    "key": "place of the token that is looked at, from 1; in decoder_self, of the token that was read there",
    "weight": "as the model computed it; rows of point-wise activations need not sum to 1",
}
NAMES = {
    ENCODER_SELF: "Encoder self-attention",
    DECODER_SELF: "Decoder self-attention",
    CROSS: "Cross-attention",
}


@dataclass(frozen=True)
class PairMaps:
    """The beginning of one pair's maps.

    weights: by module and layer, (heads, queries, keys). tokens: "source", "read" and "predicted" by the decoder.
    lengths: tokens of source and target, of which no more than the maps' are here. color: of the model's attention.
    """

    sentence: int
    weights: dict[str, list[Tensor]]
    tokens: dict[str, list[str]]
    lengths: tuple[int, int]
    color: str

    def axes(self, module: str) -> tuple[list[str], list[str]]:
        """Tokens of the queries and of the keys."""
        queries = self.tokens["source" if module == ENCODER_SELF else "predicted"]
        return queries, self.tokens["read" if module == DECODER_SELF else "source"]

    def hidden(self, module: str) -> Tensor | None:
        """Boolean (queries, keys), True for later tokens, which the decoder does not see; None: every key is seen."""
        if module != DECODER_SELF:
            return None
        return torch.ones(self.weights[module][0].shape[1:], dtype=torch.bool).triu(1)

    def draw(self, module: str, maps: list[Tensor], titles: list[str], title: str, path: Path, style: MapStyle) -> Path:
        """Draws maps (queries, keys) of a module in a grid, under one title."""
        queries, keys = self.axes(module)
        figure = draw_heat_maps(
            maps,
            titles,
            keys,
            queries,
            title=title,
            key_label="tokens read by the decoder" if module == DECODER_SELF else "source tokens",
            query_label="source tokens" if module == ENCODER_SELF else "predicted target tokens",
            hidden=self.hidden(module),
            color=self.color,
            style=style,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
        return path


def pair_maps(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source_ids: list[int],
    labels: list[int],
    *,
    sentence: int = 1,
    most_tokens: int | None = 40,
) -> PairMaps:
    """Computes the attention of a whole pair and keeps that of its first `most_tokens` tokens on either side.

    The model computes in "eager" attention here and is given back as it was.

    Raises:
        UserError: see `attention_weights`.
    """
    batch = make_batch([(source_ids, labels)], model.device)
    with eager(model), torch.inference_mode():
        weights = attention_weights(model, batch)
        read = decoder_inputs(model, batch.labels)[0].tolist()
    cut = slice(most_tokens)
    kept = {
        module: [layer[0, :, cut, cut].float().cpu().clone() for layer in layers] for module, layers in weights.items()
    }
    ids = {"source": source_ids, "read": read, "predicted": labels}
    tokens = {side: tokenizer.convert_ids_to_tokens(list(some[cut])) for side, some in ids.items()}
    return PairMaps(sentence, kept, tokens, (len(source_ids), len(labels)), color_of_model(model.config))


def plot_attention_map(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    path: str | Path,
    target: str | None = None,
    *,
    layer: int = -1,
    each_head: bool = False,
    num_beams: int = 5,
) -> Path:
    """Draws the cross-attention of one decoder layer: the mean over its heads, or every head in a grid.

    A row belongs to the step that predicts its target token. Weights are shown as the model computed them: those of a
    point-wise activation need not sum to one, and an exact zero is white, so that a dead row is blank.

    Args:
        model: a sequence-to-sequence model.
        tokenizer: its tokenizer.
        source: one text.
        path: of the picture; its ending says which format, for example .png.
        target: a translation; default the model's own.
        layer: of the decoder, from 0, or from the last with -1.
        each_head: a grid of the heads instead of their mean.
        num_beams: width of the beam for the model's own translation.

    Returns:
        The path.

    Raises:
        UserError: a text that is too long, or no such layer.
    """
    layers = model.config.decoder_layers
    if not -layers <= layer < layers:
        raise UserError(f"layer: {layer} does not exist; the decoder has {layers} layers, 0 to {layers - 1}")
    source_ids = _ids(model, tokenizer, source, "source")
    own = Translator(model, tokenizer, num_beams=num_beams).target_ids if target is None else None
    labels = own(source) if own else _ids(model, tokenizer, target, "target")
    maps = pair_maps(model, tokenizer, source_ids, labels, most_tokens=None)
    weights, where = maps.weights[CROSS][layer], f"{NAMES[CROSS]}, layer {layer % layers + 1} of {layers}"
    if each_head:
        titles, title = _heads(weights), f"{where}, {len(weights)} heads"
        return maps.draw(CROSS, list(weights), titles, title, Path(path), MapStyle())
    title = f"{where}, mean of {len(weights)} heads"
    return maps.draw(CROSS, [weights.mean(dim=0)], [""], title, Path(path), MapStyle())


def _ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str, side: str) -> list[int]:
    """Token ids of a text, as in training."""
    moses = MosesStep.from_tokenizer(tokenizer)
    if moses is not None:
        text = moses.apply([text], side=side)[0]
    ids = (tokenizer(text) if side == "source" else tokenizer(text_target=text))["input_ids"]
    positions = model.config.max_position_embeddings
    if len(ids) > positions:
        raise UserError(f"{side}: {len(ids)} tokens, the model has {positions} positions; give a shorter text")
    return ids


def plot_pair_maps(maps: PairMaps, folder: Path) -> list[Path]:
    """One picture for each module and layer, a map for each head: `<sentence>.<module>.layer<n>.png`."""
    paths = []
    for module, layers in maps.weights.items():
        for layer, weights in enumerate(layers, start=1):
            title = f"{NAMES[module]}, layer {layer} of {len(layers)}{_cut_note(maps)}"
            columns = math.ceil(math.sqrt(len(weights)))
            style = MapStyle(cell=0.2, least=(1.8, 1.4), font_size=8, columns=columns)
            path = folder / f"{maps.sentence}.{module}.layer{layer}.png"
            paths.append(maps.draw(module, list(weights), _heads(weights), title, path, style))
    return paths


def _heads(weights: Tensor) -> list[str]:
    return [f"head {head}" for head in range(1, len(weights) + 1)]


def _cut_note(maps: PairMaps) -> str:
    shown = (len(maps.tokens["source"]), len(maps.tokens["predicted"]))
    if shown == maps.lengths:
        return ""
    return f"\nfirst {shown[0]} of {maps.lengths[0]} source and {shown[1]} of {maps.lengths[1]} target tokens"


def maps_table(maps: PairMaps) -> Iterator[dict[str, Any]]:
    """The weights behind the pictures, one row for each; later tokens, which the decoder cannot see, are left out."""
    for module, layers in maps.weights.items():
        queries, keys = maps.axes(module)
        for layer, heads in enumerate(layers, start=1):
            for head, query, key in torch.ones_like(heads).nonzero().tolist():
                if module == DECODER_SELF and key > query:
                    continue
                yield {
                    "sentence": maps.sentence,
                    "module": module,
                    "layer": layer,
                    "head": head + 1,
                    "query": query + 1,
                    "query_token": queries[query],
                    "key": key + 1,
                    "key_token": keys[key],
                    "weight": float(heads[head, query, key]),
                }


@dataclass
class AttentionMaps(Figure):
    """A folder of pictures instead of one; the weights stand in the CSV file alone, as there are many."""

    name = "attention-maps"
    needs = TEXT
    definitions = DEFINITIONS
    maps: int = 1
    map_tokens: int = 40

    @property
    def most_pairs(self) -> int:
        return self.maps

    def write(self, subject: Subject, folder: Path, title: str, facts: dict[str, Any]) -> Analysed:
        path, pictures, described, tables = folder / self.name, [], [], []
        for number, row in enumerate(subject.pairs.select(range(min(self.maps, len(subject.pairs)))), start=1):
            ids = (row["input_ids"], row["labels"])
            maps = pair_maps(subject.model, subject.tokenizer, *ids, sentence=number, most_tokens=self.map_tokens)
            paths = plot_pair_maps(maps, path)
            pictures += paths
            tables.append(maps_table(maps))
            lengths = {"source_tokens": maps.lengths[0], "target_tokens": maps.lengths[1]}
            described.append(
                {"sentence": number, **lengths, "tokens": maps.tokens, "pictures": [p.name for p in paths]}
            )
        table = write_csv(path.with_suffix(".csv"), chain.from_iterable(tables))
        facts = {**facts, "map_tokens": self.map_tokens, "maps": described}
        result = write_result(path.with_suffix(".json"), self.name, definitions=DEFINITIONS, table=None, **facts)
        return Analysed([result, table, *pictures], [f"{self.name}: {len(pictures)} pictures in {path}"])
