"""Scores of translations: sacreBLEU, chrF, tokenised lower-cased BLEU, exact match. Every score names its recipe.

`score_translations` takes what was translated, sentences or packed documents, as the segments of the corpus;
`score_documents` takes whole original documents, and is the one to compare packed documents of different lengths by.

Which BLEU is which, from the strictest comparison to the oldest:

- `bleu`: sacreBLEU's default, case-sensitive, sacreBLEU's own 13a tokenisation of plain text. Figures of different
  papers may be compared when their signatures agree.
- `tokenized_lowercase_bleu`: the same with both sides lower-cased.
- `moses_lowercase_bleu`: both sides lower-cased, tokenised by Moses (`sacremoses`), then split at spaces. This is what
  older papers call "tokenised BLEU"; the published figures on lower-cased, Moses-tokenised Multi30k are of this kind.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from reluformer.configuration.errors import UserError

logger = logging.getLogger(__name__)


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenized_lowercase_language: str | None = None
) -> dict[str, Any]:
    """Corpus scores of plain (detokenised) translations against one reference each.

    Args:
        hypotheses: translations.
        references: as many references, in the same order.
        tokenized_lowercase_language: ISO 639-1 code of the target language. Given, the Moses-tokenised figure is
            added; where `sacremoses` is not installed or has no rules for the language, a warning says what is missing.

    Returns:
        `bleu`, `chrf`, `tokenized_lowercase_bleu` and, where asked for, `moses_lowercase_bleu`, all from 0 to 100, each
        with its `…_signature`; `exact_match`, percent of hypotheses equal to their reference but for space around them,
        case-sensitive; `sentences`, their number.

    Raises:
        UserError: no sentences, different numbers of them, or something that is no text.
    """
    _check(hypotheses, references)
    hypotheses, references = list(hypotheses), list(references)
    scores = {
        **_score("bleu", BLEU(), hypotheses, references),
        **_score("chrf", CHRF(), hypotheses, references),
        **_score("tokenized_lowercase_bleu", BLEU(tokenize="13a", lowercase=True), hypotheses, references),
    }
    if tokenized_lowercase_language is not None:
        scores |= _moses_scores(hypotheses, references, tokenized_lowercase_language)
    equal = sum(h.strip() == r.strip() for h, r in zip(hypotheses, references, strict=True))
    return {**scores, "exact_match": 100.0 * equal / len(references), "sentences": len(references)}


SCORING_UNIT = (
    "one original document: the translations of its packed documents joined by a space, against all its reference "
    "sentences joined by a space, those too that were left out of packing"
)


def score_documents(
    hypotheses: Sequence[str], documents: Sequence[str], references: Mapping[str, str]
) -> dict[str, Any]:
    """Corpus scores over whole original documents, the same segments whatever the length they were packed to.

    Matches of n-grams count anywhere in a document, so figures lie a few points above those over sentences.

    Args:
        hypotheses: translation of each packed document, in order.
        documents: name of the original document of each.
        references: the whole reference of each original document, by name; one of which nothing was packed counts as
            not translated.

    Returns:
        `document_bleu` and `document_chrf` with their `…_signature`, `documents` (their number) and `scoring_unit`
        (`SCORING_UNIT`).

    Raises:
        UserError: different numbers of hypotheses and documents, or a document without a reference.
    """
    if len(hypotheses) != len(documents):
        raise UserError(f"{len(hypotheses)} hypotheses but {len(documents)} names of documents: give one for each")
    parts: dict[str, list[str]] = {name: [] for name in references}
    for hypothesis, name in zip(hypotheses, documents, strict=True):
        if name not in parts:
            raise UserError(f"document {name!r} has no reference; there are: {', '.join(references)}")
        parts[name].append(hypothesis)
    whole, wanted = [" ".join(texts) for texts in parts.values()], list(references.values())
    _check(whole, wanted)
    scores = {**_score("document_bleu", BLEU(), whole, wanted), **_score("document_chrf", CHRF(), whole, wanted)}
    return {**scores, "documents": len(wanted), "scoring_unit": SCORING_UNIT}


def describe_scores(scores: Mapping[str, Any]) -> str:
    """The scores in one line for a person, figures that are not there left out."""
    names = {
        "bleu": "BLEU {:.2f}",
        "tokenized_lowercase_bleu": "lower-cased BLEU {:.2f}",
        "moses_lowercase_bleu": "Moses-tokenised lower-cased BLEU {:.2f}",
        "chrf": "chrF {:.2f}",
        "exact_match": "exact match {:.2f} %",
    }
    parts = [text.format(scores[name]) for name, text in names.items() if name in scores]
    if "document_bleu" not in scores:
        return " · ".join([*parts, f"{scores['sentences']:,} sentences"])
    whole = f"BLEU over {scores['documents']:,} whole documents {scores['document_bleu']:.2f}"
    return " · ".join([*parts, f"{scores['sentences']:,} packed documents", whole])


def load_metric() -> Any:
    """The same scores as a module of the `evaluate` library, read from this package: no network.

    Example:

    ```python
    >>> from reluformer.training.scoring.metrics import load_metric

    >>> load_metric().compute(predictions=["twelve"], references=["twelve"])["exact_match"]
    100.0
    ```
    """
    import evaluate  # slow to import, and only this function needs it

    return evaluate.load(str(Path(__file__).with_name("translation_metric.py")))


def _score(name: str, metric: BLEU | CHRF, hypotheses: list[str], references: list[str]) -> dict[str, Any]:
    value = metric.corpus_score(hypotheses, [references]).score
    return {name: value, f"{name}_signature": str(metric.get_signature())}


def _moses_scores(hypotheses: list[str], references: list[str], language: str) -> dict[str, Any]:
    from reluformer.training.tokenization import MosesStep

    try:
        moses = MosesStep(source_language=language, target_language=language)
    except UserError as error:  # sacremoses is optional, and has rules for few languages
        logger.warning("moses_lowercase_bleu is left out: %s", error)
        return {}

    def tokenized(texts: list[str]) -> list[str]:
        return moses.apply([text.lower() for text in texts], side="target")

    # force: sacreBLEU would warn that the text looks tokenised, which here it is on purpose.
    metric = BLEU(tokenize="none", force=True)
    scores = _score("moses_lowercase_bleu", metric, tokenized(hypotheses), tokenized(references))
    scores["moses_lowercase_bleu_signature"] += f"|lowercased|moses:{language}|sacremoses:{version('sacremoses')}"
    return scores


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    for name, texts in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(texts, str):
            raise UserError(f"{name}: one string was given, expected a list of strings")
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise UserError(f"{name}[{index}]: expected text, got {type(text).__name__}")
    if len(hypotheses) != len(references):
        raise UserError(
            f"{len(hypotheses)} hypotheses but {len(references)} references: give one reference for each hypothesis"
        )
    if not len(references):
        raise UserError("no translations to score: hypotheses and references are empty")
