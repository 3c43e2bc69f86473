"""Whether the figures of a study bear out what the paper claims."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from string import Formatter
from typing import Any

import numpy as np

from benchmarks.markdown import mean_and_each
from benchmarks.studies.outcomes import NOT_HERE, RUN, Outcome, compared_with, select, value
from benchmarks.studies.parser import filled, row_of_line, said
from benchmarks.studies.scores import FEWEST_ITEMS, STATISTICS, Comparison, comparable, compare_means, in_words
from benchmarks.studies.study import Claim, Figure, Study
from benchmarks.studies.tasks import has_diverged, spent

AGREES, DISAGREES, PENDING = "agrees", "disagrees", "pending"
UNDECIDED = "undecided"  # the figures say neither
NOT_MEASURED = "not measured"  # a row that this size does not have, or that cannot be run here
WORDS = (AGREES, DISAGREES, UNDECIDED, NOT_MEASURED, PENDING)
# What claims are about. A path names its score; the seconds that a training took are of its speed.
KINDS = ("BLEU", "accuracy", "perplexity", "mechanism", "speed")
_SPEED = ("cpu_seconds", "training_seconds")
# "Does not converge": a loss that is not finite or, after as many updates, less than this share of the twin's BLEU. A
# model with less BLEU than the second has not learned the task.
CONVERGED, LEARNED = 0.5, 10.0
# The paths of figures that are compared by a paired bootstrap.
_PAIRED = {f"{name}.score": name for name in STATISTICS}
ONE_SEED = "(one seed)"  # how a verdict ends that no second seed bears out
# The parts of a claim that name a row, or several.
_NAMES = ("best", "higher", "lower", "diverges", "twin", "row", "equal", "among")

# How a value that a family of claims differs in is written behind the claim.
_SETTINGS = {"ffn": "width {}", "activation": "{}", "norms": "{}", "temperature": "temperature {}", "alpha": "α = {}"}

Word = tuple[str, str]  # one of the five words, and why


@dataclass(frozen=True)
class Verdict:
    """`verdict` is one of the five words; `text` the claim; `why` the figures behind it; `kind` one of `KINDS`.

    statement: what the claim is a test of, see [`study.Claim`]. to_the_end: whether its rows were trained to the end.
    """

    text: str
    verdict: str
    why: str
    kind: str
    statement: str
    to_the_end: bool = False

    @property
    def of_one_seed(self) -> bool:
        return self.why.endswith(ONE_SEED)


def judge(study: Study, outcomes: Mapping[str, Outcome]) -> list[Verdict]:
    """One verdict for each claim, and for each row of the family that a claim is made of."""
    verdicts = []
    for claim in study.claims:
        statement = claim.statement or f"{study.title}: {claim.text}"
        for each in _expanded(claim, outcomes):
            word, why = _judge(each, study, outcomes)
            verdicts.append(Verdict(each.text, word, why, _kind(each, study), statement, claim.to_the_end))
    return verdicts


def decisive(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Those that decide about a statement, of all that test it: of rows trained to the end, if some of them were
    measured."""
    ended = [verdict for verdict in verdicts if verdict.to_the_end and verdict.verdict not in (NOT_MEASURED, PENDING)]
    return ended or list(verdicts)


def of_statement(verdicts: Sequence[Verdict]) -> str:
    """The word for a statement: it agrees where all tests that were measured agree, and disagrees where some of them
    disagree and none agrees.

    Args:
        verdicts: of all claims that test it.
    """
    words = {verdict.verdict for verdict in decisive(verdicts)}
    if PENDING in words or words == {NOT_MEASURED}:
        return PENDING if PENDING in words else NOT_MEASURED
    words.discard(NOT_MEASURED)
    if words == {AGREES}:
        return AGREES
    return DISAGREES if DISAGREES in words and AGREES not in words else UNDECIDED


def _kind(claim: Claim, study: Study) -> str:
    """What a claim is about: a score, speed, or else what goes on in a model."""
    path = "bleu" if claim.diverges else study.figures[claim.figure].path
    if path in _SPEED or "speed" in path:
        return "speed"
    return next((kind for kind in KINDS if kind.lower() in path), "mechanism")


def _expanded(claim: Claim, outcomes: Mapping[str, Outcome]) -> list[Claim]:
    fields = [getattr(claim, name) for name in _NAMES]
    names = [name for each in fields for name in (each if isinstance(each, list) else [each]) if name]
    template = next((name for name in names if "{" in name), None)
    if template is None:
        return [claim]
    rows = [(name, outcome.entry.row.values) for name, outcome in outcomes.items() if outcome.entry.row is not None]
    matching = [values for name, values in rows if row_of_line(template, values) == name]
    return [_filled(claim, template, values) for values in matching] or [claim]


def _filled(claim: Claim, template: str, values: Mapping[str, Any]) -> Claim:
    changes = {name: filled(getattr(claim, name), values) for name in _NAMES}
    names = [name for _, name, _, _ in Formatter().parse(template) if name]
    of = ", ".join(_SETTINGS.get(name, f"{name} = {{}}").format(said(values)[name]) for name in names)
    return dataclasses.replace(claim, text=f"{claim.text} ({of})", **changes)


def _rows_of(claim: Claim) -> list[str]:
    if claim.best:
        return [claim.best, *claim.among]
    return claim.equal or [row for row in (claim.higher, claim.lower, claim.diverges, claim.twin, claim.row) if row]


def _judge(claim: Claim, study: Study, outcomes: Mapping[str, Outcome]) -> Word:
    names = _rows_of(claim)
    if any(name not in outcomes for name in names):
        return NOT_MEASURED, "not trained at this size"
    rows = [outcomes[name] for name in names]
    figure = None if claim.diverges else study.figures[claim.figure]
    if figure is not None and figure.file is not None:  # another benchmark has measured it, without any training
        values = [value(figure, row) for row in rows]
        return (PENDING, f"{figure.file} does not hold it") if None in values else _compare(claim, values, figure)
    others = [other for row in rows if figure is not None and (other := compared_with(figure, row)) is not None]
    for outcome in (*rows, *others):
        if outcome.status != RUN:
            return NOT_MEASURED if outcome.status == NOT_HERE else PENDING, f"{outcome.entry.label}: {outcome.why}"
    seeds = [seed for seed in rows[0].results if all(seed in outcome.results for outcome in (*rows, *others))]
    if not seeds:
        named = dict.fromkeys(outcome.entry.label for outcome in (*rows, *others))
        return PENDING, f"{' and '.join(named)} have no seed in common"
    return _Case(not study.ours, claim, figure, rows, others).over(seeds)


@dataclass(frozen=True)
class _Case:
    """A claim with the rows that decide it, all of which have results, and what a relative figure compares them with.

    of_paper: whose claim it is. figure: None where a row is said not to converge.
    """

    of_paper: bool
    claim: Claim
    figure: Figure | None
    rows: list[Outcome]
    others: list[Outcome]

    def over(self, seeds: list[int]) -> Word:
        """Scores by a bootstrap of their means, if all converged; else each seed by itself, and all must agree."""
        gone = [seed for seed in seeds if any(has_diverged(row.results[seed]) for row in (*self.rows, *self.others))]
        if self.figure is not None:  # a row that diverges has no figure, and is not to be left out for that
            seeds = [seed for seed in seeds if seed in gone or None not in self._values(seed)] or seeds
        groups = [seeds] if self._score is not None and not gone else [[seed] for seed in seeds]
        judged = [self._judge(group) for group in groups]
        words = {word for word, _ in judged}
        texts = [text for _, text in judged]
        if len(groups) > 1:
            texts = [f"seed {seed}: {text}" for (seed,), text in zip(groups, texts, strict=True)]
        few = f" {ONE_SEED}" if len(seeds) == 1 else " (two seeds)" if len(groups[0]) == 2 else ""
        return words.pop() if len(words) == 1 else UNDECIDED, "; ".join(texts) + few

    def _values(self, seed: int) -> list[float | None]:
        return [value(self.figure, row, seed) for row in self.rows]

    @property
    def _score(self) -> str | None:
        """The score that is compared by a bootstrap."""
        if self.figure is None or self.claim.row or self.figure.relative_to:
            return None
        return _PAIRED.get(self.figure.path)

    def _judge(self, seeds: list[int]) -> Word:
        """By the means over the seeds."""
        claim, figure = self.claim, self.figure
        if claim.best:
            return self._judge_best(seeds)
        results = [[row.results[seed] for seed in seeds] for row in self.rows]
        if figure is None:
            return _convergence(*(of_row[0] for of_row in results))
        others = [other.results[seed] for other in self.others for seed in seeds]
        if any(map(has_diverged, others)):
            return UNDECIDED, "what it is compared with does not converge"
        diverged = [any(map(has_diverged, of_row)) for of_row in results]
        if any(diverged):
            return self._with_diverged(diverged)
        values = [self._values(seed) for seed in seeds]
        if any(None in of_seed for of_seed in values):
            return PENDING, f"{figure.label} was not measured"
        compared = [result for of_row in results for result in of_row] + others
        updates = dict.fromkeys(spent(result)[0] for result in compared)
        if len(updates) > 1 and not (claim.of_updates or claim.per_compute):
            return UNDECIDED, f"trained for {' and '.join(f'{number:,}' for number in updates)} updates"
        means = [fmean(of_row) for of_row in zip(*values, strict=True)]
        if len(means) > 2:  # equal: so are all, if the highest and the lowest are
            ends = [means.index(max(means)), means.index(min(means))]
            word, text = self._compare([results[at] for at in ends], [means[at] for at in ends])
            high, low = (self.rows[at].entry.label for at in ends)
            return word, f"from {low} to {high}: {text}"
        word, text = self._compare(results, means)
        return self._per_compute(word, text, results) if claim.per_compute else (word, text)

    def _per_compute(self, word: str, text: str, results: list[list[Mapping[str, Any]]]) -> Word:
        """A row that is ahead with more core-seconds, or behind with fewer, says nothing of what as many would give."""
        spent_by = [[result.get("cpu_seconds") for result in of_row] for of_row in results]
        if any(None in of_row for of_row in spent_by):
            return PENDING, f"{text}: core-seconds were not measured"
        ours, theirs = (fmean(of_row) for of_row in spent_by)
        text = f"{text}, in {ours:,.0f} core-seconds against {theirs:,.0f}"
        if (word == AGREES and ours > theirs) or (word == DISAGREES and ours < theirs):
            return UNDECIDED, f"{text}: equal ones were not measured"
        return word, text

    def _judge_best(self, seeds: list[int]) -> Word:
        """Above every other: as many claims of two rows, of which one may contradict."""
        best, *others = self.rows
        words, texts = set(), []
        for other in others:
            names = {"best": None, "among": None, "higher": best.entry.name, "lower": other.entry.name}
            pair = dataclasses.replace(self, claim=dataclasses.replace(self.claim, **names), rows=[best, other])
            word, text = pair._judge(seeds)
            words.add(word)
            texts.append(f"beside {other.entry.label}: {text}")
        return next(word for word in (DISAGREES, PENDING, UNDECIDED, AGREES) if word in words), "; ".join(texts)

    def _with_diverged(self, diverged: list[bool]) -> Word:
        """A row that does not converge has the worst score, and is the equal of none; of its other figures it says
        nothing."""
        gone = [row.entry.label for row, is_gone in zip(self.rows, diverged, strict=True) if is_gone]
        text = " and ".join(gone) + " does not converge"
        if self._score is None or all(diverged):
            return UNDECIDED, text
        worst = 0 if STATISTICS[self._score].lower_is_better else 1
        return (AGREES if self.claim.lower and diverged[worst] else DISAGREES), text

    def _compare(self, results: list[list[Mapping[str, Any]]], means: list[float]) -> Word:
        if self._score is None:
            return self._compare_figures(results, means)
        first, second = ([result.get(self._score) for result in side] for side in results)
        word, text = _compare_scores(self.claim, self._score, first, second)
        if self._score == "bleu" and self.of_paper and max(means) < LEARNED:
            return UNDECIDED, f"{text}: neither has learned the task"
        return word, text

    def _compare_figures(self, results: list[list[Mapping[str, Any]]], means: list[float]) -> Word:
        """Figures without a bootstrap: their difference must be beyond their standard errors, where those are known."""
        word, text = _compare(self.claim, means, self.figure)
        if self.figure.path.endswith("document_bleu") and not self.claim.row:
            return UNDECIDED, f"{text}: whole documents are too few"
        noise = 1.96 * math.hypot(*(select(of_row[0], f"{self.figure.path}_error") or 0.0 for of_row in results))
        if any(_compare(self.claim, [means[0] + by, *means[1:]], self.figure)[0] != word for by in (-noise, noise)):
            return UNDECIDED, f"{text}: within 1.96 standard errors"
        return word, text


def _convergence(result: Mapping[str, Any], twin: Mapping[str, Any]) -> Word:
    if reason := result["training"].get("diverged"):
        return AGREES, reason["reason"]
    ours, softmax = result["bleu"]["score"], (twin["bleu"] or {"score": 0.0})["score"]
    figures = f"BLEU {ours:.2f}, its twin {softmax:.2f}"
    if softmax < LEARNED:
        return UNDECIDED, f"{figures}: the twin has not learned the task either"
    return (AGREES if ours < CONVERGED * softmax else DISAGREES), f"{figures} ({100 * ours / softmax:.0f} %)"


def _compare_scores(claim: Claim, name: str, ours: Sequence[Any], theirs: Sequence[Any]) -> Word:
    if not comparable(*ours, *theirs):
        return UNDECIDED, "not scored on the same references"
    test, unit = compare_means(STATISTICS[name], ours, theirs), f" {STATISTICS[name].unit}"
    if claim.equal or claim.margin < 0:
        return _within(claim, test, unit)
    beyond = Comparison(*(np.subtract(x, claim.margin) for x in (test.difference, test.each, test.samples)), test.items)
    text = test.words(unit) + (f"; less {claim.margin:g}, {beyond.words(unit)}" if claim.margin else "")
    if beyond.noise:
        return UNDECIDED, f"{text}: {beyond.noise}"
    return (AGREES if beyond.difference > 0 else DISAGREES), text


def _within(claim: Claim, test: Comparison, unit: str) -> Word:
    """Two one-sided tests of 5 % each, or one for "no more than so much behind": the 90 % interval must lie within the
    margin."""
    figures = mean_and_each(test.each, "{:+.2f}") + unit
    if test.items < FEWEST_ITEMS:
        return UNDECIDED, f"{figures}: {test.noise}"
    low, high = test.interval(90)
    lowest, highest = (-claim.margin, claim.margin) if claim.equal else (claim.margin, math.inf)
    inside, outside = lowest <= low and high <= highest, high < lowest or low > highest
    at = 0 if inside else 1 if outside else 2
    where = ("within ±", "beyond ±", "neither within nor beyond ±")[at] + f" {claim.margin:g}"
    if not claim.equal:
        where = ("no more than", "more than", "perhaps more than")[at] + f" {-claim.margin:g} behind"
    return (AGREES, DISAGREES, UNDECIDED)[at], f"{figures}, {in_words(test, 90)}: {where}"


def _compare(claim: Claim, values: list[float], figure: Figure) -> Word:
    """Of one value against numbers, or of two by their sign and margin."""
    texts = [f"{each:,.{figure.digits}f}" for each in values]
    if claim.row:
        inside = (claim.above is None or values[0] > claim.above) and (claim.below is None or values[0] < claim.below)
        return (AGREES if inside else DISAGREES), texts[0]
    difference, figures = values[0] - values[1], " against ".join(texts)
    if claim.equal:
        return (AGREES if abs(difference) <= claim.margin else DISAGREES), figures
    if 0 < difference <= claim.margin:
        return UNDECIDED, f"{figures}: a smaller difference than {claim.margin:g}"
    return (AGREES if difference > min(claim.margin, 0) else DISAGREES), figures
