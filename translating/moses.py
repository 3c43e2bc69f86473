"""The Moses step that some recipes put before their tokenizer, what undoes it, and how tokenised text is known."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from tqdm.auto import tqdm

from reluformer.configuration.errors import UserError

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase


_ENTITY = re.compile("&(?:apos|quot|amp|lt|gt|#91|#93|#124);")
_LOOKED_AT = 20_000  # lines
# Other marks have a space before them in plain French, too.
_MARK, _MARK_ALONE = re.compile(r"[.,](?!\S)"), re.compile(r"(?<!\S)[.,](?!\S)")


@dataclass(frozen=True)
class MosesTraces:
    """The traces that Moses leaves in texts: lines with a full stop or comma at the end of a word, those of them in
    which it stands alone, and lines with entities such as `&apos;`."""

    lines: int
    marked: int
    alone: int
    entities: int

    @classmethod
    def of(cls, texts: Iterable[str]) -> MosesTraces:
        texts = list(texts)

        def lines_with(pattern: re.Pattern[str]) -> int:
            return sum(pattern.search(text) is not None for text in texts)

        return cls(len(texts), lines_with(_MARK), lines_with(_MARK_ALONE), lines_with(_ENTITY))

    @classmethod
    def of_corpus(cls, pairs: datasets.Dataset, side: Literal["source", "target"]) -> MosesTraces:
        """Those of at most `_LOOKED_AT` lines of one side, from all over the corpus."""
        return cls.of(pairs.select(range(0, len(pairs), 1 + len(pairs) // _LOOKED_AT))[side])

    @property
    def are_tokenized(self) -> bool:
        return self.alone > self.marked / 2

    def __str__(self) -> str:
        spaces = f"a full stop or comma stands alone in {self.alone:,} of {self.marked:,} lines that have one"
        return spaces + (f", {self.entities:,} lines hold an entity such as &apos;" if self.entities else "")


@dataclass(frozen=True)
class MosesStep:
    """Moses tokenisation of text before the tokenizer and its undoing after it, by sacremoses; recorded in
    tokenizer_config.json.

    Raises `UserError`: sacremoses is not installed; a language for which it has no rules.
    """

    source_language: str
    target_language: str

    def __post_init__(self) -> None:
        _tokenizer(self.source_language)
        _tokenizer(self.target_language)

    @classmethod
    def from_tokenizer(cls, tokenizer: PreTrainedTokenizerBase) -> MosesStep | None:
        """The step recorded in `tokenizer`, or None if it has none; a `UserError` where the record is damaged."""
        record = tokenizer.init_kwargs.get("moses")
        try:
            return cls(**record) if record else None
        except TypeError as error:
            expected = "expected source_language and target_language"
            raise UserError(
                f"tokenizer_config.json: moses: {record!r} is no record of a Moses step; {expected}"
            ) from error

    def apply(self, texts: Iterable[str], *, side: Literal["source", "target"]) -> list[str]:
        """Tokens of each text separated by spaces."""
        tokenizer = _tokenizer(self.source_language if side == "source" else self.target_language)
        bar = tqdm(texts, desc="Moses", unit=" lines", delay=2, disable=None, leave=False)
        return [tokenizer.tokenize(text, escape=False, return_str=True) for text in bar]

    def undo(self, texts: Iterable[str]) -> list[str]:
        """Plain text of Moses-tokenised texts in the target language."""
        return detokenize(texts, self.target_language, unescape=False)


def detokenize(texts: Iterable[str], language: str, *, unescape: bool = True) -> list[str]:
    """Plain text of texts that Moses has tokenised, with characters in the place of entities if `unescape`."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(language)
    return [detokenizer.detokenize(text.split(), unescape=unescape) for text in texts]


@cache
def _tokenizer(language: str) -> Any:
    try:
        from sacremoses import MosesTokenizer
        from sacremoses.corpus import NonbreakingPrefixes
    except ImportError as error:
        raise UserError("the Moses step needs the package sacremoses: pip install sacremoses") from error
    known = {*NonbreakingPrefixes().available_langs.values()}
    if language not in known:
        raise UserError(f"the Moses step has no rules for language {language!r}; there are: {', '.join(sorted(known))}")
    return MosesTokenizer(language)
