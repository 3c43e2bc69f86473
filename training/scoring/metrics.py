"""Computing the scores of `reluformer.configuration.scores`. Each value stands beside the signature of how it was
computed."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal

import sacrebleu.metrics

from reluformer.configuration.errors import UserError
from reluformer.configuration.scores import SCORES, TOLD_SCORES, Score
from reluformer.translating.moses import MosesStep, detokenize

logger = logging.getLogger(__name__)

# So many texts that end in " ." look tokenised, by the rule of sacreBLEU.
_TOKENIZED_ENDS = 100


def score_translations(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    language: str | None = None,
    text: Literal["plain", "moses"] = "plain",
) -> dict[str, Any]:
    """Corpus scores of translations, of sentences or packed documents, against one reference each.

    Args:
        language: ISO 639-1 code of the target language. Given, the Moses-tokenised figure of plain text is added; where
            `sacremoses` is not installed or has no rules for the language, a warning says what is missing.
        text: "moses" where Moses has tokenised both sides, which needs `language`: `tokenized_bleu` is taken of them as
            they stand, all other scores of the detokenised text, whose entities are characters again.

    Returns:
        The scores of `SCORES` that `text` has and that are not of documents, from 0 to 100, each of sacreBLEU's with
        its `…_signature`; `exact_match`, the percentage of hypotheses that are equal to their reference but for space
        around them; and `sentences`, their number.

    Raises:
        UserError: no sentences, different numbers of them, or tokenised text without a language.
    """
    return {**_scores(hypotheses, references, language, text), "sentences": len(references)}


def score_documents(
    hypotheses: Sequence[str],
    documents: Sequence[str],
    references: Mapping[str, str],
    *,
    language: str | None = None,
    text: Literal["plain", "moses"] = "plain",
) -> dict[str, Any]:
    """Corpus scores over whole original documents, the same segments whatever the length they were packed to.

    A document of which nothing was packed counts as not translated.

    Args:
        hypotheses: translation of each packed document, in order.
        documents: name of the original document of each.
        references: the whole reference of each original document, by name.
        language, text: see `score_translations`.

    Returns:
        The scores of documents with their `…_signature`, and `documents` (their number).
    """
    parts: dict[str, list[str]] = {name: [] for name in references}
    for hypothesis, name in zip(hypotheses, documents, strict=True):
        parts[name].append(hypothesis)
    whole = [" ".join(texts) for texts in parts.values()]
    scores = _scores(whole, list(references.values()), language, text, of_documents=True)
    return {**scores, "documents": len(references)}


def describe_scores(scores: Mapping[str, Any]) -> str:
    """The scores in one line for a person, figures that are not there left out."""
    parts = [f"{scores['sentences']:,} {'packed documents' if 'documents' in scores else 'sentences'}"]
    for score in TOLD_SCORES:
        if score.name in scores:
            of = f" over {scores['documents']:,} whole documents" if score.of_documents else ""
            parts.append(f"{score.label}{of} {score.value(scores)}")
    return " · ".join(parts)


def _scores(
    hypotheses: Sequence[str], references: Sequence[str], language: str | None, text: str, *, of_documents: bool = False
) -> dict[str, Any]:
    if len(hypotheses) != len(references) or not len(references):
        raise UserError(
            f"{len(hypotheses)} hypotheses and {len(references)} references: give one of each, and at least one"
        )
    original = plain = [list(hypotheses), list(references)]
    detokenized = ""
    if text == "moses":
        if language is None:
            raise UserError("language: missing; the detokeniser of Moses needs it, such as 'en'")
        plain = [detokenize(texts, language) for texts in original]
        detokenized = f"|detokenized:moses:{language}|sacremoses:{version('sacremoses')}"
    elif sum(text.endswith(" .") for text in hypotheses) >= _TOKENIZED_ENDS:
        _warn_of_tokenized_text()
    scores: dict[str, Any] = {}
    for score in SCORES.values():
        if score.of_documents != of_documents or score.text not in (None, text):
            continue
        if score.moses:
            scores |= {} if language is None else _moses_score(score, *original, language)
        elif score.text == "moses":
            scores |= _score(score, *original)
        else:
            scores |= _score(score, *plain, detokenized)
    return scores


@functools.cache
def _warn_of_tokenized_text() -> None:
    """Once, not at each evaluation of a training."""
    logger.warning(
        "%d or more translations end in a full stop after a space, as Moses leaves it. If the corpus is tokenised, "
        "set data.text to moses: scores of tokenised text as if it were plain cannot be compared with others.",
        _TOKENIZED_ENDS,
    )


def _score(score: Score, hypotheses: list[str], references: list[str], detokenized: str = "") -> dict[str, Any]:
    if score.metric is None:
        equal = sum(h.strip() == r.strip() for h, r in zip(hypotheses, references, strict=True))
        return {score.name: 100.0 * equal / len(references)}
    metric = getattr(sacrebleu.metrics, score.metric)(**score.options)
    value = metric.corpus_score(hypotheses, [references]).score
    return {score.name: value, f"{score.name}_signature": f"{metric.get_signature()}{detokenized}"}


def _moses_score(score: Score, hypotheses: list[str], references: list[str], language: str) -> dict[str, Any]:
    try:
        moses = MosesStep(source_language=language, target_language=language)
    except UserError as error:  # sacremoses is optional, and has rules for few languages
        logger.warning("%s is left out: %s", score.name, error)
        return {}
    sides = (moses.apply([text.lower() for text in texts], side="target") for texts in (hypotheses, references))
    scores = _score(score, *sides)
    scores[f"{score.name}_signature"] += f"|lowercased|moses:{language}|sacremoses:{version('sacremoses')}"
    return scores
