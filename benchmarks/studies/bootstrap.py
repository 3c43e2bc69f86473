"""Paired bootstrap of BLEU (Koehn 2004) as in sacreBLEU, from what each translation adds to BLEU instead of from the texts.

A result file can then be compared with one of another machine, and holds no text of the corpus. Per sentence: the matching
n-grams of order 1 to 4, the translation's length and the reference's, in tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU

from reluformer.configuration.scores import SCORES
from reluformer.training.scoring.evaluation import read_translations

SAMPLES = 1000
SEED = 12345  # sacreBLEU's
ORDERS = 4
# The scores that the statistics can stand for, as named in an evaluation.
METRICS = {
    score.name: score.options
    for score in SCORES.values()
    if score.metric == "BLEU" and not score.moses and not score.of_documents
}


@dataclass(frozen=True)
class Comparison:
    """`difference` is the first BLEU minus the second; `p_value` that of no difference, by `samples` bootstrap samples."""

    difference: float
    p_value: float
    samples: int


def bleu_statistics(translations: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """BLEU of a file of translations, and what each of them adds to it.

    The metric is the recipe's headline where that is one of `METRICS`, else `bleu`.

    Args:
        translations: as `write_translations` wrote them.
        recipe: of the run.

    Returns:
        `metric`, `signature`, `score`, `references` (a digest of them, in order), `sentences`: for each, six numbers.
    """
    rows = read_translations(translations)
    headline = (recipe.get("evaluation") or {}).get("headline")
    name = headline if headline in METRICS else "bleu"
    corpus, sentence = BLEU(**METRICS[name]), BLEU(**METRICS[name], effective_order=True)
    scores = [sentence.sentence_score(hypothesis, [reference]) for _, hypothesis, reference in rows]
    hypotheses, references = [row[1] for row in rows], [row[2] for row in rows]
    score = corpus.corpus_score(hypotheses, [references]).score
    numbers = [(*score.counts, score.sys_len, score.ref_len) for score in scores]
    return {
        "metric": name,
        "signature": str(corpus.get_signature()),
        "score": score,
        "references": hashlib.sha256("\n".join(references).encode()).hexdigest()[:16],
        "sentences": " ".join(",".join(map(str, row)) for row in numbers),
    }


def comparable(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> bool:
    """Whether two statistics are of the same metric on the same references."""
    if not first or not second:
        return False
    return all(first[name] == second[name] for name in ("metric", "signature", "references"))


def paired_bootstrap(first: Mapping[str, Any], second: Mapping[str, Any], samples: int = SAMPLES) -> Comparison:
    """sacreBLEU's paired bootstrap test of two [`bleu_statistics`], with the same samples and the same p-value.

    Raises:
        ValueError: statistics that are not [`comparable`].
    """
    if not comparable(first, second):
        raise ValueError("the two were not scored by the same metric on the same references")
    statistics = [_unpacked(part["sentences"]) for part in (first, second)]
    count = len(statistics[0])
    drawn = np.random.default_rng(SEED).choice(count, size=(samples, count), replace=True)
    scores = [np.array([_bleu(part[indices].sum(0)) for indices in drawn]) for part in statistics]
    difference = _bleu(statistics[0].sum(0)) - _bleu(statistics[1].sum(0))
    differences = np.abs(scores[0] - scores[1])
    beyond = int(np.sum(differences - differences.mean() > abs(difference)))
    return Comparison(difference, (beyond + 1) / (samples + 1), samples)


def _unpacked(sentences: str) -> np.ndarray:
    """(sentences, 10): correct n-grams of each order, all n-grams of each order, the two lengths."""
    numbers = np.array([[int(number) for number in row.split(",")] for row in sentences.split()])
    correct, lengths = numbers[:, :ORDERS], numbers[:, ORDERS:]
    total = np.maximum(lengths[:, :1] - np.arange(ORDERS), 0)
    return np.concatenate([correct, total, lengths], axis=1)


def _bleu(sums: Sequence[int]) -> float:
    values = [int(value) for value in sums]
    correct, total, (translation, reference) = values[:ORDERS], values[ORDERS : 2 * ORDERS], values[2 * ORDERS :]
    return BLEU.compute_bleu(correct, total, translation, reference, smooth_method="exp").score
