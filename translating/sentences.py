"""A text cut into its sentences, without losing any of the white space between them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import sentencex

# What a model was trained on, as its tokenizer_config.json says in `text_unit`.
SENTENCE, DOCUMENT = "sentence", "document"
# Whose rules are taken where the language is not known: those of most languages that have none of their own.
USUAL_LANGUAGE = "en"
_WHITE_SPACE = re.compile(r"\s")


class Sentences(NamedTuple):
    """A text in parts: `spaces[0] + sentences[0] + spaces[1] + …  + spaces[-1]` is the text.

    sentences: without white space around them. spaces: before, between and after them, so one more.
    """

    sentences: list[str]
    spaces: list[str]


def split_sentences(text: str, language: str | None = None) -> Sentences:
    """The sentences of a text by the rules of `sentencex`; a line break ends one, too.

    What has no letter and no digit, such as a rule of dashes, is no sentence and counts as white space. A full stop
    within a word ends none: www.Example.Com and ASP.NET stay whole.

    Args:
        language: code of ISO 639; None, or one without rules of its own: English ones.
    """
    sentences, spaces = [], [""]
    for line in text.splitlines(keepends=True):
        end = 0
        # sentencex 1.0.32 panics at spaces of several bytes (such as a no-break space) around the point of an initial
        for segment in _whole_words(sentencex.segment(language or USUAL_LANGUAGE, _WHITE_SPACE.sub(" ", line))):
            start, end = end, end + len(segment)
            segment = line[start:end]
            if not any(map(str.isalnum, segment)):
                spaces[-1] += segment
                continue
            sentence = segment.strip()
            before, _, behind = segment.partition(sentence)
            spaces[-1] += before
            sentences.append(sentence)
            spaces.append(behind)
    return Sentences(sentences, spaces)


def _whole_words(segments: Iterable[str]) -> list[str]:
    """The segments, of which one that begins within a word is joined to the one before."""
    joined: list[str] = []
    for segment in segments:
        if joined and joined[-1].endswith(".") and segment[0].isalnum():
            joined[-1] += segment
        else:
            joined.append(segment)
    return joined


def source_language(tokenizer: Any) -> str | None:
    """The language that a tokenizer records for sources, as ours or as Marian's do."""
    settings = tokenizer.init_kwargs
    return settings.get("source_language") or settings.get("source_lang")
