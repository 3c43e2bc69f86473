"""Sources with more tokens than the model has positions: all of them are named, then refused, truncated or split."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from reluformer.configuration.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from reluformer.training.data.moses import MosesStep

logger = logging.getLogger(__name__)

LongSources = Literal["error", "truncate", "split"]
LONG_SOURCES: tuple[str, ...] = get_args(LongSources)
# Of the sources that are refused; those that are truncated or split are all named.
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
        long_sources: what becomes of a longer one: "error" refuses all texts, "truncate" leaves out its end, "split" cuts
            it at the ends of sentences, and between tokens where a sentence alone is too long.
        moses: the step of the tokenizer.
    """

    tokenizer: PreTrainedTokenizerBase
    positions: int | None
    long_sources: LongSources = "error"
    moses: MosesStep | None = None

    def encode(self, texts: Sequence[str], name: str = "") -> tuple[list[Pieces], list[int]]:
        """The pieces of each text, and the numbers (from 1) of the texts that were truncated or split, with a warning.

        Args:
            texts: plain text.
            name: what the texts are, to begin the message with.

        Raises:
            UserError: texts that are too long, with "error".
        """
        given = [index for index, text in enumerate(texts) if text.strip()]
        sources: list[Pieces] = [[] for _ in texts]
        for index, ids in zip(given, self._ids([texts[index] for index in given]), strict=True):
            sources[index] = [ids]
        tokens = {index + 1: len(sources[index][0]) for index in given if not self._fits(sources[index][0])}
        if not tokens:
            return sources, []
        where = f"{name}: " if name else ""
        found = (
            f"{where}{len(tokens):,} of {len(texts):,} sources have more tokens than the {self.positions:,} positions"
        )
        if self.long_sources == "error":
            raise UserError(
                f"{found} of the model: {_named(tokens, _NAMED)}; shorten them, or choose long_sources: truncate or split"
            )
        change = self._truncated if self.long_sources == "truncate" else self._split
        for number in tokens:
            sources[number - 1] = change(texts[number - 1])
        done = "truncated" if self.long_sources == "truncate" else "split"
        logger.warning("%s of the model and are %s: %s", found, done, _named(tokens, len(tokens)))
        return sources, list(tokens)

    def _fits(self, ids: list[int]) -> bool:
        return self.positions is None or len(ids) <= self.positions

    def _ids(self, texts: list[str], **options: object) -> list[list[int]]:
        if not texts:
            return []
        if self.moses is not None:
            texts = self.moses.apply(texts, side="source")
        return self.tokenizer(texts, verbose=False, **options)["input_ids"]

    def _truncated(self, text: str) -> Pieces:
        return self._ids([text], truncation=True, max_length=self.positions)

    def _split(self, text: str) -> Pieces:
        """As many sentences as fit in each piece."""
        pieces: Pieces = []
        held, held_ids = "", []
        for sentence in _sentences(text):
            (joined_ids,) = self._ids([held + sentence])
            if self._fits(joined_ids):
                held, held_ids = held + sentence, joined_ids
                continue
            if held:
                pieces.append(held_ids)
            held, held_ids = sentence, self._ids([sentence])[0]
            if not self._fits(held_ids):
                pieces += self._windows(held_ids)
                held = ""
        return [*pieces, held_ids] if held else pieces

    def _windows(self, ids: list[int]) -> Pieces:
        """Ids that end in `</s>`, cut between tokens."""
        *content, end = ids
        room = self.positions - 1
        return [[*content[start : start + room], end] for start in range(0, len(content), room)]


def _sentences(text: str) -> Iterator[str]:
    """The parts of a text, each up to and with the space after its end; together they are the text."""
    start = 0
    for end in _SENTENCE_END.finditer(text):
        yield text[start : end.end()]
        start = end.end()
    if text[start:].strip():
        yield text[start:]


def _named(tokens: Mapping[int, int], at_most: int) -> str:
    """`number 2 (70 tokens), 9 (81 tokens) and 3 more, counted from 1`."""
    named = [f"{number:,} ({count:,} tokens)" for number, count in list(tokens.items())[:at_most]]
    rest = f" and {len(tokens) - at_most:,} more" if len(tokens) > at_most else ""
    return f"number {', '.join(named)}{rest}, counted from 1"
