"""The Moses step that some recipes put before their tokenizer, and what undoes it in translations."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from reluformer.configuration.errors import UserError

logger = logging.getLogger(__name__)

# What Moses leaves in a line, and the share of lines from which on a text is taken for tokenised: few plain texts hold entities,
# more of them have a stray space before a full stop.
_TRACES = {
    "entities such as &apos;": (re.compile("&(?:amp|apos|gt|lt|quot|#91|#93|#124);"), 0.01),
    "a space before the full stop": (re.compile(r" \.$"), 0.1),
}


@dataclass(frozen=True)
class MosesStep:
    """Moses tokenisation of a corpus before the tokenizer and its undoing after it, by sacremoses.

    Which side is in which language is recorded in tokenizer_config.json, so whoever loads the tokenizer can tell: text
    must go through `apply` before and through `undo` after it. `encode_pairs` and `train_tokenizer` apply it
    themselves.

    Raises `UserError`: sacremoses is not installed; a language for which it has no rules.
    """

    source_language: str
    target_language: str

    def __post_init__(self) -> None:
        for language in (self.source_language, self.target_language):
            _check_moses_language(language)

    @classmethod
    def from_tokenizer(cls, tokenizer: PreTrainedTokenizerBase) -> MosesStep | None:
        """The step recorded in `tokenizer`, or None if it has none."""
        record = tokenizer.init_kwargs.get("moses")
        return _step(record["source_language"], record["target_language"]) if record else None

    def record(self) -> dict[str, str]:
        """What goes into tokenizer_config.json under "moses"."""
        return {"source_language": self.source_language, "target_language": self.target_language}

    def apply(self, texts: Iterable[str], *, side: str) -> list[str]:
        """Tokens of each text separated by spaces; `side` is "source" or "target"."""
        if side not in self._tokenizers:
            raise UserError(f"side must be 'source' or 'target', not {side!r}")
        tokenizer = self._tokenizers[side]
        return [tokenizer.tokenize(text, escape=False, return_str=True) for text in _moses_progress(texts)]

    def undo(self, texts: Iterable[str]) -> list[str]:
        """Plain text of Moses-tokenised texts in the target language."""
        return [self._detokenizer.detokenize(text.split(), unescape=False) for text in _moses_progress(texts)]

    @cached_property
    def _tokenizers(self) -> dict:
        from sacremoses import MosesTokenizer

        return {"source": MosesTokenizer(self.source_language), "target": MosesTokenizer(self.target_language)}

    @cached_property
    def _detokenizer(self):
        from sacremoses import MosesDetokenizer

        return MosesDetokenizer(self.target_language)


@cache
def _step(source_language: str, target_language: str) -> MosesStep:
    return MosesStep(source_language, target_language)


def detokenize(texts: Iterable[str], language: str) -> list[str]:
    """Plain text of texts that Moses has tokenised, with characters in the place of entities."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(language)
    return [detokenizer.detokenize(text.split()) for text in _moses_progress(texts)]


def warn_of_tokenized_text(lines: Sequence[str]) -> None:
    """Says, once in a process, that what a recipe calls plain text looks as if Moses had tokenised it."""
    for trace, (pattern, share) in _TRACES.items():
        if sum(bool(pattern.search(line)) for line in lines) > share * len(lines):
            _say_tokenized(f"more than {100 * share:g} % of the lines have {trace}")
            return


@cache
def _say_tokenized(found: str) -> None:
    logger.warning(
        f"The text looks tokenised by Moses: {found}. BLEU of it by 13a is not comparable: set data.text to moses, or give "
        "plain text"
    )


def _moses_progress(texts: Iterable[str]) -> Iterable[str]:
    return tqdm(texts, desc="Moses", unit=" lines", delay=2, disable=None, leave=False)


def _check_moses_language(language: str) -> None:
    try:
        from sacremoses.corpus import NonbreakingPrefixes
    except ImportError as error:
        raise UserError("the Moses step needs the package sacremoses: pip install sacremoses") from error
    known = {*NonbreakingPrefixes().available_langs.values()}
    if language not in known:
        raise UserError(f"the Moses step has no rules for language {language!r}; there are: {', '.join(sorted(known))}")
