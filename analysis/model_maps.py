"""The figure `attention-maps`, of a whole model on one sentence pair: every head of every layer (Figure 5)."""

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
from reluformer.analysis.colors import color_of_model
from reluformer.analysis.figure import TEXT, Analysed, Figure, Subject
from reluformer.analysis.heat_maps import MapStyle, draw_heat_maps
from reluformer.analysis.result_files import write_csv, write_result
from reluformer.analysis.texts import make_batch

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
        queries, keys = self.weights[module][0].shape[1:]
        return torch.ones(queries, keys, dtype=torch.bool).triu(1)


def pair_maps(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source_ids: list[int],
    labels: list[int],
    *,
    sentence: int = 1,
    most_tokens: int = 40,
) -> PairMaps:
    """Computes the attention of a whole pair and keeps that of its first `most_tokens` tokens on either side.

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


def plot_pair_maps(maps: PairMaps, folder: str | Path) -> list[Path]:
    """One picture for each module and layer, a map for each head: `<sentence>.<module>.layer<n>.png`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for module, layers in maps.weights.items():
        queries, keys = maps.axes(module)
        for layer, weights in enumerate(layers, start=1):
            heads = weights.shape[0]
            figure = draw_heat_maps(
                list(weights),
                [f"head {head}" for head in range(1, heads + 1)],
                keys,
                queries,
                title=f"{NAMES[module]}, layer {layer} of {len(layers)}{_cut_note(maps)}",
                key_label="tokens read by the decoder" if module == DECODER_SELF else "source tokens",
                query_label="source tokens" if module == ENCODER_SELF else "predicted target tokens",
                hidden=maps.hidden(module),
                color=maps.color,
                style=MapStyle(cell=0.2, least=(1.8, 1.4), font_size=8, columns=math.ceil(math.sqrt(heads))),
            )
            paths.append(folder / f"{maps.sentence}.{module}.layer{layer}.png")
            figure.savefig(paths[-1], dpi=150)
    return paths


def maps_table(maps: PairMaps) -> Iterator[dict[str, Any]]:
    """The weights behind the pictures, one row for each; later tokens, which the decoder cannot see, are left out."""
    for module, layers in maps.weights.items():
        queries, keys = maps.axes(module)
        for layer, weights in enumerate(layers, start=1):
            for head, rows in enumerate(weights.tolist(), start=1):
                for query, row in enumerate(rows, start=1):
                    seen = row[:query] if module == DECODER_SELF else row
                    for key, weight in enumerate(seen, start=1):
                        yield {
                            "sentence": maps.sentence,
                            "module": module,
                            "layer": layer,
                            "head": head,
                            "query": query,
                            "query_token": queries[query - 1],
                            "key": key,
                            "key_token": keys[key - 1],
                            "weight": weight,
                        }


def _cut_note(maps: PairMaps) -> str:
    shown = (len(maps.tokens["source"]), len(maps.tokens["predicted"]))
    if shown == maps.lengths:
        return ""
    return f"\nfirst {shown[0]} of {maps.lengths[0]} source and {shown[1]} of {maps.lengths[1]} target tokens"


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
            maps = pair_maps(
                subject.model,
                subject.tokenizer,
                row["input_ids"],
                row["labels"],
                sentence=number,
                most_tokens=self.map_tokens,
            )
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


FIGURE = AttentionMaps
