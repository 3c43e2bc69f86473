"""Sources with more tokens than the model has positions: all of them are named, then refused or split."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from reluformer.configuration.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from reluformer.training.data.moses import MosesStep

logger = logging.getLogger(__name__)

LongSources = Literal["error", "split"]
LONG_SOURCES: tuple[str, ...] = get_args(LongSources)
_NAMED = 5
_SENTENCE_END = re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？][”’」』）]*\s*")

# The token ids of a text: one list, several where it was split, none for a text of white space.
Pieces = list[list[int]]


@dataclass(frozen=True)
class SourceEncoder:
    """Texts to the token ids that a model is given.

    Args:
        tokenizer: of the model; its source ids end in `</s>`.
        positions: how many tokens a source may have; None where the model does not limit it.
        long_sources: what becomes of a longer one: "error" refuses all texts, "split" cuts it at the ends of sentences, and
            between tokens where a sentence alone is too long.
        moses: the step of the tokenizer.
    """

    tokenizer: PreTrainedTokenizerBase
    positions: int | None
    long_sources: LongSources = "error"
    moses: MosesStep | None = None

    def encode(self, texts: Sequence[str], name: str = "the text") -> tuple[list[Pieces], list[int]]:
        """The pieces of each text, and the numbers (from 1) of the texts that were split, with a warning.

        Raises:
            UserError: texts that are too long, with "error"; `name` says there what they are.
        """
        whole = zip(texts, self._ids(texts), strict=True)
        sources: list[Pieces] = [[ids] if text.strip() else [] for text, ids in whole]
        most = self.positions or float("inf")
        too_long = [index for index, pieces in enumerate(sources) if pieces and len(pieces[0]) > most]
        if not too_long:
            return sources, []
        named = ", ".join(f"{index + 1:,} ({len(sources[index][0]):,} tokens)" for index in too_long[:_NAMED])
        more = f" and {len(too_long) - _NAMED:,} more" if len(too_long) > _NAMED else ""
        found = (
            f"{name}: {len(too_long):,} of {len(texts):,} sources have more tokens than the {self.positions:,} positions of the "
            f"model: number {named}{more}, counted from 1"
        )
        if self.long_sources == "error":
            raise UserError(f"{found}; shorten them, or choose long_sources: split")
        logger.warning("%s; they are split", found)
        for index in too_long:
            sources[index] = self._split(texts[index])
        return sources, [index + 1 for index in too_long]

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        if self.moses is not None:
            texts = self.moses.apply(texts, side="source")
        return self.tokenizer(texts, verbose=False)["input_ids"]

    def _split(self, text: str) -> Pieces:
        """As many sentences as fit in each piece; a sentence that alone is too long is cut between tokens."""
        groups: Pieces = [[]]  # without `</s>`
        sentences = self._ids(list(_sentences(text)))
        for ids in sentences:
            if len(groups[-1]) + len(ids) > self.positions:
                groups.append([])
            groups[-1] += ids[:-1]
        room, end = self.positions - 1, sentences[0][-1:]
        return [ids[start : start + room] + end for ids in groups for start in range(0, len(ids), room)]


def _sentences(text: str) -> Iterator[str]:
    """The parts of a text, each up to and with the space after its end; together they are the text."""
    start = 0
    for end in _SENTENCE_END.finditer(text):
        yield text[start : end.end()]
        start = end.end()
    if text[start:].strip():
        yield text[start:]
