"""What decides a translation: the search, how texts are cut, and the type it is computed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from reluformer.configuration.errors import UserError
from reluformer.translating.fast_translation import COMPUTE
from reluformer.translating.source_encoding import LONG_SOURCES, SPLITS, LongSources, Split

# Limits of the decoding length are stepwise in the source length, and a batch never crosses a step.
LIMIT_STEP = 16
LIMIT_OFFSET = 16
# Options of `GenerationConfig` that would return something else than one translation of a text, or limit it twice.
_NOT_HERE = {"max_length", "num_return_sequences", "return_dict_in_generate", "guidance_scale", "stop_strings"}


@dataclass(frozen=True)
class Options:
    """The options of `Translator`, by the names and with the meanings that they have there.

    positions: how many tokens a side may have; None where the model does not limit it.
    generation: those of `GenerationConfig`.

    Raises:
        UserError: one that is unknown or out of range.
    """

    positions: int | None
    split: Split
    num_beams: int = 5
    length_penalty: float = 1.0
    max_new_tokens: int | None = None
    batch_tokens: int = 4_096
    long_sources: LongSources = "error"
    compute: str = "float32"
    scores: bool = False
    generation: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.generation:
            from transformers import GenerationConfig

            for name in self.generation.keys() - (GenerationConfig().to_dict().keys() - _NOT_HERE):
                raise UserError(
                    f"{name}: not an option of translating; give options of GenerationConfig (max_new_tokens in place "
                    "of max_length) that leave one translation for each text"
                )
        for name in ("num_beams", "batch_tokens", "max_new_tokens"):
            value = getattr(self, name)
            if (name, value) != ("max_new_tokens", None) and not (isinstance(value, int) and value >= 1):
                raise UserError(f"{name}: {value!r} must be a whole number of at least 1")
        if not (isinstance(self.length_penalty, (int, float)) and abs(self.length_penalty) <= 50):
            raise UserError(f"length_penalty: {self.length_penalty!r} must be a number from -50 to 50")
        if self.positions is not None and (self.max_new_tokens or 0) > self.positions:
            raise UserError(
                f"max_new_tokens: {self.max_new_tokens} is more than the {self.positions} positions the model has"
            )
        for name, choices in (("compute", COMPUTE), ("split", SPLITS), ("long_sources", LONG_SOURCES)):
            if getattr(self, name) not in choices:
                raise UserError(f"{name}: {getattr(self, name)!r} is unknown; choose one of {', '.join(choices)}")

    def changed(self, options: Mapping[str, Any]) -> Options:
        """These with others in place of some; what has no name here is one of `GenerationConfig`."""
        own = {each.name for each in fields(self)} - {"positions", "generation"}
        generation = {name: value for name, value in options.items() if name not in own}
        mine = {name: value for name, value in options.items() if name in own}
        return replace(self, **mine, generation={**self.generation, **generation})

    def limit(self, source_tokens: int) -> int:
        """The most target tokens, `</s>` included, for a source of `source_tokens` tokens."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        rounded = -(-source_tokens // LIMIT_STEP) * LIMIT_STEP
        limit = 2 * rounded + LIMIT_OFFSET
        return min(limit, self.positions or limit)

    @property
    def decoding(self) -> dict[str, Any]:
        """Those that decide what is translated, to stand beside scores."""
        default = f"2 * source tokens rounded up to a multiple of {LIMIT_STEP}, + {LIMIT_OFFSET}"
        settings = {
            "num_beams": self.num_beams,
            "length_penalty": self.length_penalty,
            "max_new_tokens": self.max_new_tokens or default,
            "batch_tokens": self.batch_tokens,
            "split": self.split,
            "long_sources": self.long_sources,
            "compute": self.compute,
            **self.generation,
        }
        usual = {"split": "none", "long_sources": "error", "compute": "float32"}
        return {name: value for name, value in settings.items() if usual.get(name) != value}
