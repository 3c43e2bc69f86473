"""Texts to the token ids that a model is given: whole or sentence by sentence; sources that are too long are named,
then refused or split."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from reluformer.configuration.errors import UserError
from reluformer.translating.sentences import Sentences, split_sentences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from reluformer.translating.moses import MosesStep

logger = logging.getLogger(__name__)

LongSources = Literal["error", "split"]
LONG_SOURCES: tuple[str, ...] = get_args(LongSources)
Split = Literal["sentences", "none"]
SPLITS: tuple[str, ...] = get_args(Split)
_NAMED = 5

# The token ids of a sentence, or of a text that is translated whole: one list, several where it is too long and was
# split.
Pieces = list[list[int]]


@dataclass
class Source:
    """A text as the model is given it.

    Args:
        units: pieces of each sentence, or of the whole text; none for a text of white space.
        spaces: what stands before, between and after the units, so one more.
    """

    units: list[Pieces] = field(default_factory=list)
    spaces: list[str] = field(default_factory=lambda: [""])

    def joined(self, translations: Sequence[str]) -> str:
        """The translation of the text, from those of its units; a space stands between two that nothing divided."""
        first, *behind = self.spaces
        behind = [*(space or " " for space in behind[:-1]), *behind[-1:]]
        return first + "".join(each + space for each, space in zip(translations, behind, strict=True))


@dataclass(frozen=True)
class SourceEncoder:
    """Texts to the token ids that a model is given.

    Args:
        tokenizer: of the model; its source ids end in `</s>`.
        positions: how many tokens a source may have; None where the model does not limit it.
        long_sources: what becomes of a longer one: "error" refuses all texts, "split" cuts it at the ends of sentences,
            and between tokens where a sentence alone is too long.
        moses: the step of the tokenizer.
        split: whether each sentence is a source, or the whole text.
        language: of the texts; see `split_sentences`.
    """

    tokenizer: PreTrainedTokenizerBase
    positions: int | None
    long_sources: LongSources = "error"
    moses: MosesStep | None = None
    split: Split = "none"
    language: str | None = None

    def encode(self, texts: Sequence[str], name: str = "the text") -> tuple[list[Source], list[int]]:
        """The source of each text, and the numbers (from 1) of the texts that were too long and split, with a warning.

        Raises:
            UserError: texts that are too long, with "error"; `name` says there what they are.
        """
        parts = [self._parts(text) for text in texts]
        ids = iter(self._ids([unit for part in parts for unit in part.sentences]))
        sources = [Source([[next(ids)] for _ in part.sentences], part.spaces) for part in parts]
        lengths = [max((len(unit[0]) for unit in source.units), default=0) for source in sources]
        too_long = [index for index, length in enumerate(lengths) if length > (self.positions or float("inf"))]
        if not too_long:
            return sources, []
        named = ", ".join(f"{index + 1:,} ({lengths[index]:,} tokens)" for index in too_long[:_NAMED])
        more = f" and {len(too_long) - _NAMED:,} more" if len(too_long) > _NAMED else ""
        have = "have more tokens than" if self.split == "none" else "hold a sentence with more tokens than"
        message = (
            f"{name}: {len(too_long):,} of {len(texts):,} sources {have} the {self.positions:,} positions of the "
            f"model: number {named}{more}, counted from 1"
        )
        if self.long_sources == "error":
            raise UserError(f"{message}; shorten them, or choose long_sources: split")
        logger.warning("%s; they are split", message)
        for index in too_long:
            for number, unit in enumerate(parts[index].sentences):
                if len(sources[index].units[number][0]) > self.positions:
                    sources[index].units[number] = self._split(unit)
        return sources, [index + 1 for index in too_long]

    def _parts(self, text: str) -> Sentences:
        if self.split == "sentences":
            return split_sentences(text, self.language)
        return Sentences([text], ["", ""]) if text.strip() else Sentences([], [""])

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        if self.moses is not None:
            texts = self.moses.apply(texts, side="source")
        return self.tokenizer(texts, verbose=False)["input_ids"]

    def _split(self, text: str) -> Pieces:
        """As many sentences as fit in each piece; a sentence that alone is too long is cut between tokens."""
        groups: Pieces = [[]]  # without `</s>`
        sentences, (first, *behind) = split_sentences(text, self.language)
        whole = [sentence + space for sentence, space in zip(sentences, behind, strict=True)]
        # a text without a letter or digit has no sentence
        sentences = self._ids([first + whole[0], *whole[1:]] if whole else [text])
        for ids in sentences:
            if len(groups[-1]) + len(ids) > self.positions:
                groups.append([])
            groups[-1] += ids[:-1]
        room, end = self.positions - 1, sentences[0][-1:]
        return [ids[start : start + room] + end for ids in groups for start in range(0, len(ids), room)]
