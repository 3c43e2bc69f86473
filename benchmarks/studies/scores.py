"""What each item of a test set adds to a score, and from it how far apart two rows are, with the noise of seeds and
test text.

A result keeps these statistics and no text, so that it can be compared with another one.

**The method.** Two rows are compared by the differences d₁ … dₖ of their scores, one for each seed: both trainings of a
seed see the data in the same order, and are a pair. The mean difference d̄ is uncertain twice over:

- Other seeds would give another mean. With s, the standard deviation of the k differences, and δ, the mean over all
  seeds, (d̄ - δ) / (s/√k) has Student's t distribution with k - 1 degrees of freedom.
- Another test text would give other scores. The paired bootstrap (Koehn 2004) draws the items of the test set with
  replacement, the same ones for all scores, and takes d̄ of every sample; the samples are those of sacreBLEU.

The two are independent and add up: sample b is d̄ of the bootstrap's sample b plus s/√k times a value of the t
distribution. The interval is made of the percentiles of these sums. It is that of the t test where the text has no
noise, and that of the bootstrap where all seeds give the same. In between it covers more than it says, for two reasons:
a sum of this kind is known to (Behrens and Fisher's), and what a seed does to single sentences is counted in both
parts. `test_scores.py` simulates it.

With one seed or two only the second part is there, and what it says is of these trainings. Of one seed nothing is known
of others, and Student's t with the one degree of freedom of two seeds is so wide (12.7 s/√2 on both sides) that it
would decide nothing. Of two seeds both must point the same way, and their mean must be further from 0 than s.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import math
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
SEVERAL_SEEDS = 3  # from so many on, the samples are of seeds, too
FEWEST_ITEMS = 10  # of two documents, all samples together have three different scores

Statistics = Mapping[str, Any]


def bleu_statistics(translations: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """BLEU of a file of translations: the recipe's headline where that is one of `METRICS`, else one with the same
    case.

    `sentences` holds six numbers for each: matching n-grams of order 1 to 4, and the lengths of translation and
    reference.
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
    right = np.array([label == predicted for label, predicted in rows])
    head = _head("accuracy", split, 100 * float(right.mean()), (label for label, _ in rows))
    return {**head, "pictures": len(rows), "right": np.packbits(right).tobytes().hex()}


def _accuracy_rows(statistics: Statistics) -> np.ndarray:
    """(pictures, 2): whether it is right, and 1."""
    packed = np.frombuffer(bytes.fromhex(statistics["right"]), dtype=np.uint8)
    right = np.unpackbits(packed, count=statistics["pictures"]).astype(np.int64)
    return np.stack([right, np.ones_like(right)], axis=1)


def perplexity_statistics(documents: Path, split: str, context: int) -> dict[str, Any]:
    """Perplexity of a split, per token (`score`) and per byte; `documents` holds the tokens and the nats of each.

    documents: a heading, then name, bytes, tokens and nats of each. context: tokens of a context, on which the loss
        depends.
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
        "perplexity",
        "perplexity",
        "documents",
        _perplexity_rows,
        lambda sums: np.exp(sums[..., 0] / sums[..., 1]),
        True,
    ),
}


@dataclass(frozen=True)
class Comparison:
    """The first scores minus the second: `difference` of the means over the seeds, and `each` by seed.

    samples: of that difference, (samples,): over test texts and, from `SEVERAL_SEEDS` seeds on, over seeds. items: of
    the test set.
    """

    difference: float
    each: tuple[float, ...]
    samples: np.ndarray
    items: int

    @property
    def has_seeds(self) -> bool:
        """Whether the samples are of seeds and items together, and not of items alone."""
        return len(self.each) >= SEVERAL_SEEDS

    @property
    def p_value(self) -> float:
        """Two-sided: how often the difference of a sample is as far from their mean, on either side, as that mean is
        from zero. sacreBLEU counts one side alone, and so calls twice as many equals different."""
        beyond = int(np.sum(np.abs(self.samples - self.samples.mean()) >= abs(self.difference)))
        return (beyond + 1) / (len(self.samples) + 1)

    def interval(self, percent: float) -> tuple[float, float]:
        """That holds so many of the samples, with as many below it as above; of fewer than `SEVERAL_SEEDS` seeds,
        widened to hold the difference of each."""
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
        return "within the noise of the seeds" if self.seeds_disagree else None

    @property
    def seeds_disagree(self) -> bool:
        """Whether the seeds point both ways, or their standard deviation is at least their mean."""
        apart = len(self.each) > 1 and abs(self.difference) <= stdev(self.each)
        return apart or min(self.each) < 0 < max(self.each)

    def words(self, unit: str = "") -> str:
        """The difference, that of each seed, and how sure it is: the 95 % interval over seeds and items, or else the
        p-value."""
        text = mean_and_each(self.each, "{:+.2f}") + unit
        if self.items < FEWEST_ITEMS:
            return text
        return f"{text}, {in_words(self, 95) if self.has_seeds else p_in_words(self.p_value)}"


def p_in_words(p_value: float) -> str:
    return f"p = {p_value:.3f}" if p_value >= 0.0005 else "p < 0.001"


def in_words(comparison: Comparison, percent: int) -> str:
    """The interval of a comparison."""
    low, high = comparison.interval(percent)
    return f"{percent} % interval {low:+.2f} to {high:+.2f}"


def comparable(*statistics: Statistics | None) -> bool:
    """Whether all statistics are there, and of the same metric on the same references."""
    names = ("metric", "signature", "references")
    return all(statistics) and len({tuple(each[name] for name in names) for each in statistics}) == 1


def compare_means(
    kind: Statistic, first: Sequence[Statistics], second: Sequence[Statistics], samples: int = SAMPLES
) -> Comparison:
    """Two mean scores over the same seeds, as this module's docstring says.

    Args:
        kind: of score.
        first, second: statistics of each row, by seed, both in the same order.
        samples: how many.

    Raises:
        ValueError: statistics that are not [`comparable`].
    """
    if not comparable(*first, *second):
        raise ValueError(f"{first[0]['metric']} of different test texts cannot be compared")
    rows = [[kind.rows(each) for each in side] for side in (first, second)]
    count = len(rows[0][0])
    scores = [kind.score(_draws(count, samples) @ np.stack(side)) for side in rows]  # (seeds, samples) of both
    each = tuple(one["score"] - other["score"] for one, other in zip(first, second, strict=True))
    difference = fmean(each)
    drawn = (scores[0] - scores[1]).mean(0)
    if len(each) >= SEVERAL_SEEDS:
        error = stdev(each) / math.sqrt(len(each))
        # with this sign the interval is the same one the other way round
        drawn = drawn + math.copysign(error, difference) * _student_t(len(each) - 1, samples)
    return Comparison(difference, each, drawn, count)


def paired_t_test(differences: Sequence[float]) -> float:
    """The two-sided p-value of the mean of these differences: the test of Student for pairs."""
    freedom = len(differences) - 1
    t = abs(fmean(differences)) / (stdev(differences) / math.sqrt(len(differences)))
    angles, below = _student_t_table(freedom)
    return 2 * (1 - float(np.interp(math.atan(t / math.sqrt(freedom)), angles, below)))


def _student_t(freedom: int, count: int) -> np.ndarray:
    """The middle of each of `count` equally likely parts of Student's t distribution, shuffled: (count,)."""
    angles, below = _student_t_table(freedom)
    values = math.sqrt(freedom) * np.tan(np.interp((np.arange(count) + 0.5) / count, below, angles))
    return np.random.default_rng(SEED + 1).permutation(values)


@functools.lru_cache
def _student_t_table(freedom: int) -> tuple[np.ndarray, np.ndarray]:
    """Angles from -π/2 to π/2, and the share of the distribution below √freedom · tan(angle): its density over the
    angle is proportional to cos(angle)^(freedom - 1)."""
    angles = np.linspace(-math.pi / 2, math.pi / 2, 200_001)
    density = np.cos(angles) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return angles, below / below[-1]


@functools.lru_cache(maxsize=1)
def _draws(count: int, samples: int) -> np.ndarray:
    """How often each of the items is in each sample, (samples, count)."""
    draw = np.random.default_rng(SEED).choice
    return np.stack([np.bincount(draw(count, count), minlength=count) for _ in range(samples)], dtype=np.float64)
