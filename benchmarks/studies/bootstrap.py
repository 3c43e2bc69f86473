"""Paired bootstrap (Koehn 2004) with sacreBLEU's samples, from what each item of a test set adds to a score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from benchmarks.studies.accuracy import accuracy_of, accuracy_rows
from benchmarks.studies.bleu import bleu_of, bleu_rows
from benchmarks.studies.perplexity import perplexity_of, perplexity_rows

SAMPLES = 1000
SEED = 12345  # sacreBLEU's
SIGNIFICANT = 0.05
FEWEST_ITEMS = 10  # of two documents, all samples together have three different scores


@dataclass(frozen=True)
class Statistic:
    """A score that is compared by a paired bootstrap; a result holds its statistics under the score's name.

    label: in words. unit: of a difference. rows: statistics → what each item of the test set adds, (items, columns).
    score: sum of some of the rows, (columns,) → the score. lower_is_better: as of a loss.
    """

    label: str
    unit: str
    rows: Callable[[Mapping[str, Any]], np.ndarray]
    score: Callable[[np.ndarray], float]
    lower_is_better: bool = False


STATISTICS = {
    "bleu": Statistic("BLEU", "BLEU", bleu_rows, bleu_of),
    "accuracy": Statistic("accuracy", "points", accuracy_rows, accuracy_of),
    "perplexity": Statistic("perplexity", "perplexity", perplexity_rows, perplexity_of, lower_is_better=True),
}


@dataclass(frozen=True)
class Comparison:
    """The first scores minus the second.

    difference: of the means over the seeds. each: by seed. p_value: of no difference of the means, by `samples` bootstrap
    samples of `items`.
    """

    difference: float
    each: tuple[float, ...]
    p_value: float
    samples: int
    items: int

    @property
    def noise(self) -> str | None:
        """Why nobody can say which is ahead, in words; None: one can."""
        if self.items < FEWEST_ITEMS:
            return f"{self.items} texts are too few for a bootstrap"
        if self.p_value >= SIGNIFICANT:
            return "within the noise of the test set"
        apart = len(self.each) > 1 and abs(self.difference) <= stdev(self.each)
        return "within the noise of the seeds" if apart or min(self.each) < 0 < max(self.each) else None


def comparable(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> bool:
    """Whether two statistics are of the same metric on the same references."""
    if not first or not second:
        return False
    return all(first[name] == second[name] for name in ("metric", "signature", "references"))


def bootstrap_of_means(
    kind: Statistic, first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], samples: int = SAMPLES
) -> Comparison:
    """Paired bootstrap test of two mean scores, each over the seeds of a row: every sample draws the same items for all of them.

    The samples are sacreBLEU's. The p-value is two-sided: how often the difference of a sample is as far from their mean, on
    either side, as that mean is from zero. sacreBLEU counts one side alone, and so calls twice as many equals different.

    It says whether other test items would turn the difference of these models; how much other seeds move it, their own
    scores say.

    Raises:
        ValueError: statistics that are not [`comparable`].
    """
    if not all(comparable(first[0], each) for each in (*first, *second)):
        raise ValueError("the two were not scored by the same metric on the same references")
    rows = [[kind.rows(each) for each in side] for side in (first, second)]
    count = len(rows[0][0])
    drawn = np.random.default_rng(SEED).choice(count, size=(samples, count), replace=True)
    scores = [np.array([_mean_score(kind, side, indices) for indices in drawn]) for side in rows]
    difference = _mean_score(kind, rows[0]) - _mean_score(kind, rows[1])
    differences = scores[0] - scores[1]
    beyond = int(np.sum(np.abs(differences - differences.mean()) >= abs(difference)))
    each = tuple(one["score"] - other["score"] for one, other in zip(first, second, strict=True))
    return Comparison(difference, each, (beyond + 1) / (samples + 1), samples, count)


def _mean_score(kind: Statistic, rows: Sequence[np.ndarray], items: np.ndarray | slice = slice(None)) -> float:
    return fmean(kind.score(part[items].sum(0)) for part in rows)
