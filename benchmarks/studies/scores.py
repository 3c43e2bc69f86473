"""What each item of a test set adds to a score, and from it the paired bootstrap of two rows (Koehn 2004), with sacreBLEU's
samples.

A result keeps these statistics and no text, so that it can be compared with another one.
"""

from __future__ import annotations

import csv
import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU

from benchmarks.markdown import mean_and_each
from reluformer.configuration.scores import SCORES
from reluformer.training.scoring.evaluation import read_translations

ORDERS = 4  # of n-grams
# The scores that BLEU's statistics can stand for, as named in an evaluation.
METRICS = {
    score.name: score.options
    for score in SCORES.values()
    if score.metric == "BLEU" and not score.moses and not score.of_documents
}
SAMPLES = 10_000
SEED = 12345  # sacreBLEU's
SIGNIFICANT = 0.05
SEVERAL_SEEDS = 3  # from so many on, their scatter is measured and not only looked at
FEWEST_ITEMS = 10  # of two documents, all samples together have three different scores

Statistics = Mapping[str, Any]


def bleu_statistics(translations: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """BLEU of a file of translations: the recipe's headline where that is one of `METRICS`, else one that minds case alike.

    `sentences` holds six numbers for each: matching n-grams of order 1 to 4, and the lengths of translation and reference.
    """
    rows = read_translations(translations)
    name = (recipe.get("evaluation") or {}).get("headline", "bleu")
    if name not in METRICS:
        name = "bleu" if SCORES[name].cased else "tokenized_lowercase_bleu"
    corpus, sentence = BLEU(**METRICS[name]), BLEU(**METRICS[name], effective_order=True)
    scores = [sentence.sentence_score(hypothesis, [reference]) for _, hypothesis, reference in rows]
    hypotheses, references = [row[1] for row in rows], [row[2] for row in rows]
    score = corpus.corpus_score(hypotheses, [references]).score
    numbers = [(*each.counts, each.sys_len, each.ref_len) for each in scores]
    return {
        **_head(name, str(corpus.get_signature()), score, references),
        "sentences": " ".join(",".join(map(str, row)) for row in numbers),
    }


def bleu_rows(statistics: Statistics) -> np.ndarray:
    """(sentences, 10): correct n-grams of each order, all n-grams of each order, the two lengths."""
    numbers = np.array([[int(number) for number in row.split(",")] for row in statistics["sentences"].split()])
    correct, lengths = numbers[:, :ORDERS], numbers[:, ORDERS:]
    total = np.maximum(lengths[:, :1] - np.arange(ORDERS), 0)
    return np.concatenate([correct, total, lengths], axis=1)


def _bleu_of(sums: np.ndarray) -> np.ndarray:
    """sacreBLEU's, with its smoothing: the first order without a match counts a half, the next one a quarter, …"""
    correct, total, lengths = np.split(sums, [ORDERS, 2 * ORDERS], axis=-1)
    missing = correct == 0
    with np.errstate(divide="ignore"):
        precisions = np.where(missing, 0.5 ** missing.cumsum(-1), correct) / np.maximum(total, 1)
        brevity = np.exp(np.minimum(0, 1 - lengths[..., 1] / lengths[..., 0]))
    scores = 100 * brevity * np.exp(np.log(precisions).mean(-1))
    return np.where(missing.all(-1) | (total == 0).any(-1), 0, scores)


def accuracy_statistics(predictions: Path, split: str) -> dict[str, Any]:
    """Accuracy of a file of predictions, in percent; `right` holds a bit for each picture, in hexadecimal digits."""
    rows = [line.split("\t") for line in predictions.read_text(encoding="utf-8").splitlines()[1:]]
    right = np.array([label == found for label, found in rows])
    head = _head("accuracy", split, 100 * float(right.mean()), (label for label, _ in rows))
    return {**head, "pictures": len(rows), "right": np.packbits(right).tobytes().hex()}


def _accuracy_rows(statistics: Statistics) -> np.ndarray:
    """(pictures, 2): whether it is right, and 1."""
    packed = np.frombuffer(bytes.fromhex(statistics["right"]), dtype=np.uint8)
    right = np.unpackbits(packed, count=statistics["pictures"]).astype(np.int64)
    return np.stack([right, np.ones_like(right)], axis=1)


def perplexity_statistics(documents: Path, split: str, context: int) -> dict[str, Any]:
    """Perplexity of a split, per token (`score`) and per byte; `documents` holds the tokens and the nats of each.

    documents: a heading, then name, bytes, tokens and nats of each. context: tokens of a context, on which the loss depends.
    """
    with documents.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream, delimiter="\t"))[1:]
    tokens, nats = sum(int(row[2]) for row in rows), sum(float(row[3]) for row in rows)
    references = ("\t".join(row[:3]) for row in rows)
    return {
        **_head("perplexity", f"{split}, contexts of {context:,} tokens", float(np.exp(nats / tokens)), references),
        "per_byte": float(np.exp(nats / sum(int(row[1]) for row in rows))),
        "tokens": tokens,
        "documents": " ".join(f"{row[2]},{row[3]}" for row in rows),
    }


def _perplexity_rows(statistics: Statistics) -> np.ndarray:
    """(documents, 2): nats and tokens."""
    rows = [row.split(",") for row in statistics["documents"].split()]
    return np.array([[float(nats), float(tokens)] for tokens, nats in rows])


def _head(metric: str, signature: str, score: float, references: Iterable[str]) -> dict[str, Any]:
    """What all statistics begin with; all but the score must be the same where two are compared."""
    digest = hashlib.sha256("\n".join(references).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return {"metric": metric, "signature": signature, "score": score, "references": digest}


@dataclass(frozen=True)
class Statistic:
    """A score that is compared by a paired bootstrap; a result holds its statistics under the score's name.

    label: in words. unit: of a difference. items: of a test set, in words. rows: statistics → what each of them adds,
    (items, columns). score: sums of some of the rows, (samples, columns) → scores. lower_is_better: as of a loss.
    """

    label: str
    unit: str
    items: str
    rows: Callable[[Statistics], np.ndarray]
    score: Callable[[np.ndarray], np.ndarray]
    lower_is_better: bool = False


STATISTICS = {
    "bleu": Statistic("BLEU", "BLEU", "texts", bleu_rows, _bleu_of),
    "accuracy": Statistic(
        "accuracy", "points", "pictures", _accuracy_rows, lambda sums: 100 * sums[..., 0] / sums[..., 1]
    ),
    "perplexity": Statistic(
        *("perplexity", "perplexity", "documents", _perplexity_rows),
        lambda sums: np.exp(sums[..., 0] / sums[..., 1]),
        True,
    ),
}


@dataclass(frozen=True)
class Comparison:
    """The first scores minus the second: `difference` of the means over the seeds, `each` by seed, and of the bootstrap's
    `samples`, (samples,). items: of the test set."""

    difference: float
    each: tuple[float, ...]
    samples: np.ndarray
    items: int

    @property
    def has_seeds(self) -> bool:
        """Whether the samples are of seeds and items together."""
        return len(self.each) >= SEVERAL_SEEDS

    @property
    def p_value(self) -> float:
        """Two-sided: how often the difference of a sample is as far from their mean, on either side, as that mean is from zero.
        sacreBLEU counts one side alone, and so calls twice as many equals different."""
        beyond = int(np.sum(np.abs(self.samples - self.samples.mean()) >= abs(self.difference)))
        return (beyond + 1) / (len(self.samples) + 1)

    def interval(self, percent: float) -> tuple[float, float]:
        """That holds so many of the samples, with as many below it as above; of fewer than `SEVERAL_SEEDS` seeds, widened to
        hold the difference of each."""
        rest = (100 - percent) / 2
        low, high = (float(bound) for bound in np.percentile(self.samples, [rest, 100 - rest]))
        return (low, high) if self.has_seeds else (min(low, *self.each), max(high, *self.each))

    @property
    def noise(self) -> str | None:
        """Why nobody can say which is ahead, in words; None: one can."""
        if self.items < FEWEST_ITEMS:
            return f"{self.items} texts are too few for a bootstrap"
        if self.has_seeds:
            low, high = self.interval(95)
            return "within the noise of seeds and test set" if low <= 0 <= high else None
        if self.p_value >= SIGNIFICANT:
            return "within the noise of the test set"
        apart = len(self.each) > 1 and abs(self.difference) <= stdev(self.each)
        return "within the noise of the seeds" if apart or min(self.each) < 0 < max(self.each) else None

    def words(self, unit: str = "") -> str:
        """The difference, that of each seed, and how sure it is: the 95 % interval over seeds and items, or else the p-value."""
        text = mean_and_each(self.each, "{:+.2f}") + unit
        if self.items < FEWEST_ITEMS:
            return text
        p_value = f"p = {self.p_value:.3f}" if self.p_value >= 0.0005 else "p < 0.001"
        return f"{text}, {in_words(self, 95) if self.has_seeds else p_value}"


def in_words(comparison: Comparison, percent: int) -> str:
    """The interval of a comparison."""
    low, high = comparison.interval(percent)
    return f"{percent} % interval {low:+.2f} to {high:+.2f}"


def comparable(*statistics: Statistics | None) -> bool:
    """Whether all statistics are there, and of the same metric on the same references."""
    names = ("metric", "signature", "references")
    return all(statistics) and len({tuple(each[name] for name in names) for each in statistics}) == 1


def bootstrap_of_means(
    kind: Statistic, first: Sequence[Statistics], second: Sequence[Statistics], samples: int = SAMPLES
) -> Comparison:
    """Paired bootstrap of two mean scores, each over the seeds of a row: every sample draws the same items for all of them.

    The samples are sacreBLEU's. They say whether other test items would turn the difference; of `SEVERAL_SEEDS` seeds or more,
    whose samples draw the seeds of each row, too (the multi-bootstrap, arXiv 2106.16163), whether other trainings would.

    Raises:
        ValueError: statistics that are not [`comparable`].
    """
    if not comparable(*first, *second):
        raise ValueError(f"{first[0]['metric']} of different test texts cannot be compared")
    rows = [[kind.rows(each) for each in side] for side in (first, second)]
    count = len(rows[0][0])
    scores = [kind.score(_draws(count, samples) @ np.stack(side)) for side in rows]  # (seeds, samples) of both
    each = tuple(one["score"] - other["score"] for one, other in zip(first, second, strict=True))
    if len(each) >= SEVERAL_SEEDS:
        seeds = np.random.default_rng(SEED + 1).integers(0, len(each), (2, len(each), samples))
        ahead_first = seeds if fmean(each) >= 0 else seeds[::-1]  # so that the other way round it is the same interval
        scores = [np.take_along_axis(side, drawn, axis=0) for side, drawn in zip(scores, ahead_first, strict=True)]
    return Comparison(fmean(each), each, scores[0].mean(0) - scores[1].mean(0), count)


@functools.lru_cache(maxsize=1)
def _draws(count: int, samples: int) -> np.ndarray:
    """How often each of the items is in each sample, (samples, count)."""
    draw = np.random.default_rng(SEED).choice
    return np.stack([np.bincount(draw(count, count), minlength=count) for _ in range(samples)], dtype=np.float64)
