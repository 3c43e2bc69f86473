"""One text through one model: its translation, the attention maps of the pair, and the figures of every head."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from reluformer.analysis.attention_maps import PairMaps, pair_maps
from reluformer.analysis.collection import ALL, CROSS, attention_rows, pair_batch
from reluformer.analysis.drawing import color_of_model
from reluformer.analysis.entropy import entropy_table
from reluformer.configuration.errors import UserError
from reluformer.modeling_reluformer.fused.activations import ACTIVATIONS
from reluformer.training.translation import Translator

DEFAULT_MAP_TOKENS = 40


@dataclass(frozen=True)
class Place:
    """Which map is shown. module: name of the kind of attention. layer: from 1. head: from 1, or `ALL` for their mean."""

    module: str
    layer: int
    head: int | str = ALL


@dataclass(frozen=True)
class ObservedText:
    """What a model made of a text.

    source_tokens, target_tokens: of the whole pair; `maps` may hold the beginning alone. figures: rows of
    `entropy_table` by module, layer and head, over the whole pair; empty where they are not defined. notes: what
    a reader must know, one sentence each.
    """

    translation: str
    maps: PairMaps
    figures: Mapping[tuple[str, int | str, int | str], Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def layers(self, module: str) -> int:
        return len(self.maps.weights[module])

    def heads(self, module: str) -> int:
        return self.maps.weights[module][0].shape[0]

    def has(self, place: Place) -> bool:
        """Whether the model has such a layer and head."""
        heads = (ALL, *range(1, self.heads(place.module) + 1))
        return 1 <= place.layer <= self.layers(place.module) and place.head in heads

    def weights(self, place: Place) -> Tensor:
        """The map (queries, keys) of a head, or the mean over the heads of its layer."""
        heads = self.maps.weights[place.module][place.layer - 1]
        return heads.mean(dim=0) if place.head == ALL else heads[place.head - 1]


def opening_place(observed: Iterable[ObservedText]) -> Place:
    """The map to begin with: of the heads of cross-attention with the fewest dead rows, the one with the most exact zeros.

    It is taken of the first text that has zeros there; where none has, it is the mean over the heads of the first layer.
    """
    for each in observed:
        rows = [row for (module, _, head), row in each.figures.items() if module == CROSS and head != ALL]
        if any(row["zero_fraction"] for row in rows):
            row = min(rows, key=lambda row: (row["dead_row_fraction"], -row["zero_fraction"]))
            return Place(CROSS, row["layer"], row["head"])
    return Place(CROSS, 1)


class ObservedTranslator:
    """A translator whose attention is looked at.

    Args:
        translator: model, tokenizer and decoding.
        name: what the page calls the model.
        map_tokens: how many tokens of either side the maps hold, from the first.

    Raises:
        UserError: no room for a single token.
    """

    def __init__(self, translator: Translator, name: str, *, map_tokens: int = DEFAULT_MAP_TOKENS) -> None:
        if map_tokens < 1:
            raise UserError(f"--map_tokens: {map_tokens} must be at least 1")
        self.translator = translator
        self.name = name
        self.map_tokens = map_tokens
        # Its attention implementation is switched while weights are taken: one text at a time.
        self._lock = threading.Lock()

    @classmethod
    def from_pretrained(
        cls, path_or_hub_id: str | Path, *, map_tokens: int = DEFAULT_MAP_TOKENS, **options: Any
    ) -> ObservedTranslator:
        """See `Translator.from_pretrained`, whose options these are. The name is the last part of the path or id."""
        translator = Translator.from_pretrained(path_or_hub_id, **options)
        path = Path(path_or_hub_id)
        return cls(translator, path.resolve().name if path.is_dir() else path.name, map_tokens=map_tokens)

    @property
    def attention(self) -> str:
        """The name of the model's attention, as a reader knows it."""
        activation = getattr(self.translator.model.config, "attention_activation", "softmax")
        return f"{ACTIVATIONS[activation].title} attention"

    @property
    def color(self) -> str:
        """The colour of the model's attention, as in every picture."""
        return color_of_model(self.translator.model.config)

    @property
    def description(self) -> str:
        """Scaling, depth, heads and size on one line."""
        model = self.translator.model
        config = model.config
        parts = []
        if getattr(config, "attention_scaling", None) == "variance":
            learned = " (learned from there)" if config.attention_gamma_learnable else ""
            parts.append(f"γ = {config.attention_gamma:g}{learned}")
        elif getattr(config, "attention_scaling", None) == "length":
            parts.append(f"scaled by n^-{config.attention_alpha:g}")
        if hasattr(config, "encoder_layers") and hasattr(config, "decoder_layers"):
            parts.append(f"{config.encoder_layers} + {config.decoder_layers} layers")
            parts.append(f"{config.encoder_attention_heads} heads")
        parts.append(f"{model.num_parameters() / 1e6:.1f} M parameters")
        return " · ".join(parts)

    def __call__(self, text: str) -> ObservedText:
        """Translates a text and takes the attention of the whole pair, teacher-forced with the model's own tokens.

        Raises:
            UserError: an empty text, one with more tokens than the model has positions, a model without maps.
        """
        if not text.strip():
            raise UserError("There is no text yet: type or paste some, then translate.")
        with self._lock:
            source = self._source_ids(text)
            target = self.translator.target_ids(text)
            return self._observe(source, target)

    def _source_ids(self, text: str) -> list[int]:
        translator = self.translator
        if translator.moses is not None:
            (text,) = translator.moses.apply([text], side="source")
        ids = translator.tokenizer(text, verbose=False)["input_ids"]
        most = getattr(translator.model.config, "max_position_embeddings", None)
        if most is not None and len(ids) > most:
            raise UserError(
                f"The text has {len(ids):,} tokens, {self.name} takes {most:,} at most: shorten it, or translate it "
                "sentence by sentence."
            )
        return ids

    def _observe(self, source: list[int], target: list[int]) -> ObservedText:
        translator = self.translator
        model, tokenizer = translator.model, translator.tokenizer
        maps = pair_maps(model, tokenizer, source, target, most_tokens=self.map_tokens)
        notes = []
        if tokenizer.eos_token_id not in target:
            limit = translator.limit(len(source))
            notes.append(f"The translation reached the limit of {limit} tokens and was cut.")
        figures, reason = self._figures(source, target)
        if reason is not None:
            notes.append(reason)
        return ObservedText(self._text(target), maps, figures, tuple(notes))

    def _figures(self, source: list[int], target: list[int]) -> tuple[dict[Any, Any], str | None]:
        """Rows of the table by their place, or none and why: the maps are worth seeing without them."""
        model = self.translator.model
        try:
            table = entropy_table(attention_rows(model, [pair_batch(model, [(source, target)])]))
        except UserError as error:
            return {}, f"No figures beside the map: {str(error).partition(';')[0]}."
        return {(row["module"], row["layer"], row["head"]): row for row in table}, None

    def _text(self, ids: list[int]) -> str:
        texts = self.translator.tokenizer.batch_decode([ids], skip_special_tokens=True)
        return (texts if self.translator.moses is None else self.translator.moses.undo(texts))[0]
