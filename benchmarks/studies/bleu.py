"""What each translation adds to BLEU, so that a result file can be compared with another one, and holds no text of the corpus.

Per sentence: the matching n-grams of order 1 to 4, the translation's length and the reference's, in tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU

from reluformer.configuration.scores import SCORES
from reluformer.training.scoring.evaluation import read_translations

ORDERS = 4
# The scores that the statistics can stand for, as named in an evaluation.
METRICS = {
    score.name: score.options
    for score in SCORES.values()
    if score.metric == "BLEU" and not score.moses and not score.of_documents
}


def bleu_statistics(translations: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """BLEU of a file of translations, and what each of them adds to it.

    The metric is the recipe's headline where that is one of `METRICS`, else `bleu`, or `tokenized_lowercase_bleu` where the
    headline leaves case aside.

    Args:
        translations: as `write_translations` wrote them.
        recipe: of the run.

    Returns:
        `metric`, `signature`, `score`, `references` (a digest of them, in order), `sentences`: for each, six numbers.
    """
    rows = read_translations(translations)
    name = (recipe.get("evaluation") or {}).get("headline", "bleu")
    if name not in METRICS:
        name = "bleu" if SCORES[name].cased else "tokenized_lowercase_bleu"
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


def bleu_rows(statistics: Mapping[str, Any]) -> np.ndarray:
    """(sentences, 10): correct n-grams of each order, all n-grams of each order, the two lengths."""
    numbers = np.array([[int(number) for number in row.split(",")] for row in statistics["sentences"].split()])
    correct, lengths = numbers[:, :ORDERS], numbers[:, ORDERS:]
    total = np.maximum(lengths[:, :1] - np.arange(ORDERS), 0)
    return np.concatenate([correct, total, lengths], axis=1)


def bleu_of(sums: np.ndarray) -> float:
    """BLEU of the sum of some of the rows."""
    values = [int(value) for value in sums]
    correct, total, (translation, reference) = values[:ORDERS], values[ORDERS : 2 * ORDERS], values[2 * ORDERS :]
    return BLEU.compute_bleu(correct, total, translation, reference, smooth_method="exp").score
