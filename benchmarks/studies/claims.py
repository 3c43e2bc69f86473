"""Whether the figures of a study bear out what the paper claims."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from string import Formatter
from typing import Any

from benchmarks.markdown import mean_and_each
from benchmarks.studies.outcomes import NOT_HERE, RUN, Outcome, compared_with, has_diverged, value
from benchmarks.studies.parser import row_of_line
from benchmarks.studies.scores import (
    FEWEST_ITEMS,
    STATISTICS,
    Comparison,
    bootstrap_of_means,
    comparable,
    in_words,
)
from benchmarks.studies.study import Claim, Figure, Study
from benchmarks.studies.tasks import spent
from reluformer.configuration.errors import UserError

AGREES, DISAGREES, PENDING = "agrees", "disagrees", "pending"
UNDECIDED = "undecided"  # the figures say neither
NOT_MEASURED = "not measured"  # a row that this size does not have, or that cannot be run here
BLEU, ACCURACY, PERPLEXITY = "bleu.score", "accuracy.score", "perplexity.score"
# The paths of figures that are compared by a paired bootstrap.
_PAIRED = {f"{name}.score": name for name in STATISTICS}
# What claims are about. A path names its score; the seconds that a training took are of its speed.
KINDS = ("BLEU", "accuracy", "perplexity", "mechanism", "speed")
_SPEED = ("cpu_seconds", "training_seconds")
# "Does not converge": a loss that is not finite or, after as many updates, less than this share of the twin's BLEU; the twin must
# itself have learned.
CONVERGED, TWIN_LEARNED = 0.5, 10.0
# The parts of a claim that name a row, and those that name several.
_NAMES = ("best", "higher", "lower", "diverges", "twin", "row")
_LISTS = ("equal", "among")


@dataclass(frozen=True)
class Verdict:
    """`verdict` is one of the five words; `text` the claim; `why` the figures behind it; `kind` one of `KINDS`."""

    text: str
    verdict: str
    why: str
    kind: str = "mechanism"


def judge(study: Study, outcomes: Mapping[str, Outcome]) -> list[Verdict]:
    """One verdict for each claim, and for each row of the family that a claim is made of."""
    return [
        dataclasses.replace(_judge(claim, study, outcomes), kind=_kind(claim, study))
        for claim in study.claims
        for claim in _expanded(claim, outcomes)
    ]


def _kind(claim: Claim, study: Study) -> str:
    """What a claim is about: a score, speed, or else what goes on in a model."""
    path = BLEU if claim.diverges else _figure(claim, study).path
    if path in _SPEED or "speed" in path:
        return "speed"
    return next((kind for kind in KINDS if kind.lower() in path), "mechanism")


def _expanded(claim: Claim, outcomes: Mapping[str, Outcome]) -> list[Claim]:
    template = next((name for name in _names_of(claim) if "{" in name), None)
    if template is None:
        return [claim]
    rows = [(name, outcome.entry.row) for name, outcome in outcomes.items() if outcome.entry.row is not None]
    found = [row.values for name, row in rows if row_of_line(template, row.values) == name]
    return [_filled(claim, template, values) for values in found] or [claim]


def _filled(claim: Claim, template: str, values: Mapping[str, Any]) -> Claim:
    filled: dict[str, Any] = {
        name: text.format(**values) for name in _NAMES if (text := getattr(claim, name)) is not None
    }
    filled |= {
        name: [each.format(**values) for each in texts]
        for name in _LISTS
        if (texts := getattr(claim, name)) is not None
    }
    fields = [name for _, name, _, _ in Formatter().parse(template) if name]
    of = ", ".join(f"{name} {values[name]}" for name in fields)
    return dataclasses.replace(claim, text=f"{claim.text} ({of})", **filled)


def _names_of(claim: Claim) -> list[str]:
    single = [getattr(claim, name) for name in _NAMES]
    return [name for name in (*single, *(each for of in _LISTS for each in getattr(claim, of) or ())) if name]


def _judge(claim: Claim, study: Study, outcomes: Mapping[str, Outcome]) -> Verdict:
    names = _rows_of(claim)
    for name in names:
        if name not in outcomes:
            return Verdict(claim.text, NOT_MEASURED, f"{name} is no row of this size")
    chosen = [outcomes[name] for name in names]
    if not claim.diverges and _figure(claim, study).file is not None:
        return Verdict(claim.text, *_judge_file(claim, study, chosen))
    needed = {outcome.entry.name: outcome for outcome in (*chosen, *_compared(claim, study, chosen))}
    for name, outcome in needed.items():
        if outcome.status != RUN:
            word = NOT_MEASURED if outcome.status == NOT_HERE else PENDING
            return Verdict(claim.text, word, f"{name}: {outcome.why}")
    seeds = [seed for seed in chosen[0].results if all(seed in outcome.results for outcome in needed.values())]
    if not seeds:
        return Verdict(claim.text, PENDING, f"{' and '.join(needed)} have no seed in common")
    seeds = [seed for seed in seeds if _has_the_figure(claim, study, chosen, seed)] or seeds
    groups = [seeds] if _by_the_means(claim, study, chosen, seeds) else [[seed] for seed in seeds]
    judged = [_judge_seeds(claim, study, chosen, group) for group in groups]
    words = {word for word, _ in judged}
    verdict = words.pop() if len(words) == 1 else UNDECIDED
    why = "; ".join(
        f"seed {group[0]}: {text}" if len(groups) > 1 else text for group, (_, text) in zip(groups, judged, strict=True)
    )
    if len(seeds) == 1 and chosen[0].entry.row.recipe is not None:
        why += " (one seed)"
    return Verdict(claim.text, verdict, why)


def _has_the_figure(claim: Claim, study: Study, chosen: list[Outcome], seed: int) -> bool:
    """Whether it was measured of all rows with this seed; a row that diverges has none, and is not to be left out for that."""
    if claim.diverges:
        return True
    if any(has_diverged(outcome.results[seed]) for outcome in (*chosen, *_compared(claim, study, chosen))):
        return True
    return all(value(_figure(claim, study), outcome, seed) is not None for outcome in chosen)


def _by_the_means(claim: Claim, study: Study, chosen: list[Outcome], seeds: list[int]) -> bool:
    """Whether all seeds are judged at once, by a bootstrap of their means; else each by itself, and all must agree."""
    results = (outcome.results[seed] for outcome in chosen for seed in seeds)
    return not claim.diverges and _is_paired(claim, _figure(claim, study)) and not any(map(has_diverged, results))


def _is_paired(claim: Claim, figure: Figure) -> bool:
    return figure.path in _PAIRED and not claim.row and not figure.relative_to


def _figure(claim: Claim, study: Study) -> Figure:
    if claim.figure not in study.figures:
        raise UserError(f"claim {claim.text!r}: no figure {claim.figure!r}; the study has {', '.join(study.figures)}")
    return study.figures[claim.figure]


def _compared(claim: Claim, study: Study, chosen: list[Outcome]) -> list[Outcome]:
    """The rows that the figure of a claim compares those of the claim with, where it does."""
    others = [] if claim.diverges else [compared_with(_figure(claim, study), outcome) for outcome in chosen]
    return [other for other in others if other is not None]


def _judge_file(claim: Claim, study: Study, chosen: list[Outcome]) -> tuple[str, str]:
    """A claim of a figure that another benchmark has measured, without any training."""
    figure = _figure(claim, study)
    values = [value(figure, outcome) for outcome in chosen]
    return (PENDING, f"{figure.file} does not hold it") if None in values else _compare(claim, values, figure.digits)


def _rows_of(claim: Claim) -> list[str]:
    kinds = {
        "higher and lower": [claim.higher, claim.lower] if claim.higher and claim.lower else None,
        "best and among": [claim.best, *claim.among] if claim.best and claim.among else None,
        "equal": claim.equal,
        "diverges and twin": [claim.diverges, claim.twin] if claim.diverges and claim.twin else None,
        "row with above or below": [claim.row] if claim.row and (claim.above, claim.below) != (None, None) else None,
    }
    given = [rows for rows in kinds.values() if rows]
    if len(given) != 1 or (claim.equal and len(claim.equal) < 2):
        raise UserError(f"claim {claim.text!r}: give exactly one of {'; '.join(kinds)}")
    return given[0]


def _judge_seeds(claim: Claim, study: Study, chosen: list[Outcome], seeds: list[int]) -> tuple[str, str]:
    """By the means over the seeds; of one seed, where [`_by_the_means`] says no."""
    if claim.best:
        return _judge_best(claim, study, chosen, seeds)
    results = [[outcome.results[seed] for seed in seeds] for outcome in chosen]
    if claim.diverges:
        return _convergence(*(of_row[0] for of_row in results))
    figure = _figure(claim, study)
    others = [outcome.results[seed] for outcome in _compared(claim, study, chosen) for seed in seeds]
    if any(map(has_diverged, others)):
        return UNDECIDED, "what it is compared with does not converge"
    diverged = [any(map(has_diverged, of_row)) for of_row in results]
    if any(diverged):
        return _with_diverged(claim, diverged, None if figure.relative_to else _PAIRED.get(figure.path))
    values = [[value(figure, outcome, seed) for seed in seeds] for outcome in chosen]
    if any(None in of_row for of_row in values):
        return PENDING, f"{figure.label} was not measured"
    of_all = chain(*results, others)
    updates = dict.fromkeys(spent(result)[0] for result in of_all if "training" in result)
    if len(updates) > 1 and not claim.of_updates:
        return UNDECIDED, f"trained for {' and '.join(f'{number:,}' for number in updates)} updates"
    means = [fmean(of_row) for of_row in values]
    if len(means) > 2:  # equal: so are all, if the highest and the lowest are
        ends = [means.index(max(means)), means.index(min(means))]
        word, text = _compare_two(claim, figure, [results[at] for at in ends], [means[at] for at in ends])
        return word, f"from {chosen[ends[1]].entry.label} to {chosen[ends[0]].entry.label}: {text}"
    return _compare_two(claim, figure, results, means)


def _judge_best(claim: Claim, study: Study, chosen: list[Outcome], seeds: list[int]) -> tuple[str, str]:
    """Above every other: as many claims of two rows, of which one may contradict."""
    best, *others = chosen
    words, texts = set(), []
    for other in others:
        names = {"best": None, "among": None, "higher": best.entry.name, "lower": other.entry.name}
        word, text = _judge_seeds(dataclasses.replace(claim, **names), study, [best, other], seeds)
        words.add(word)
        texts.append(f"beside {other.entry.label}: {text}")
    return next(word for word in (DISAGREES, PENDING, UNDECIDED, AGREES) if word in words), "; ".join(texts)


def _compare_two(
    claim: Claim, figure: Figure, results: list[list[Mapping[str, Any]]], means: list[float]
) -> tuple[str, str]:
    if _is_paired(claim, figure):
        return _compare_paired(claim, _PAIRED[figure.path], *results)
    return _compare(claim, means, figure.digits)


def _convergence(result: Mapping[str, Any], twin: Mapping[str, Any]) -> tuple[str, str]:
    if reason := result["training"].get("diverged"):
        return AGREES, reason["reason"]
    ours, softmax = result["bleu"]["score"], (twin["bleu"] or {"score": 0.0})["score"]
    figures = f"BLEU {ours:.2f}, its twin {softmax:.2f}"
    if softmax < TWIN_LEARNED:
        return UNDECIDED, f"{figures}: the twin has not learned the task either"
    return (AGREES if ours < CONVERGED * softmax else DISAGREES), f"{figures} ({100 * ours / softmax:.0f} %)"


def _with_diverged(claim: Claim, diverged: list[bool], score: str | None) -> tuple[str, str]:
    """A row that does not converge has the worst score, and is the equal of none; of its other figures it says nothing."""
    names = _rows_of(claim)
    text = " and ".join(name for name, gone in zip(names, diverged, strict=True) if gone) + " does not converge"
    if score is None or all(diverged):
        return UNDECIDED, text
    worst = 0 if STATISTICS[score].lower_is_better else 1
    return (AGREES if claim.lower and diverged[worst] else DISAGREES), text


def _compare_paired(
    claim: Claim, name: str, first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
) -> tuple[str, str]:
    kind = STATISTICS[name]
    ours, theirs = ([result.get(name) for result in side] for side in (first, second))
    if not comparable(*ours, *theirs):
        return UNDECIDED, "not scored on the same references"
    test = bootstrap_of_means(kind, ours, theirs)
    if claim.equal or claim.margin < 0:
        return _within(claim, test, f" {kind.unit}")
    figures = test.words(f" {kind.unit}")
    if test.noise:
        return UNDECIDED, f"{figures}: {test.noise}"
    return (AGREES if test.difference > claim.margin else DISAGREES), figures


def _within(claim: Claim, test: Comparison, unit: str) -> tuple[str, str]:
    """Two one-sided tests of 5 % each, or one for "no more than so much behind": the 90 % interval must lie within the margin."""
    figures = mean_and_each(test.each, "{:+.2f}") + unit
    if test.items < FEWEST_ITEMS:
        return UNDECIDED, f"{figures}: {test.noise}"
    low, high = test.interval(90)
    lowest, highest = (-claim.margin, claim.margin) if claim.equal else (claim.margin, math.inf)
    inside, outside = lowest <= low and high <= highest, high < lowest or low > highest
    margin = f"± {claim.margin:g}" if claim.equal else f"{-claim.margin:g} behind"
    where = "within" if inside else "beyond" if outside else "neither within nor beyond"
    return (
        AGREES if inside else DISAGREES if outside else UNDECIDED,
        f"{figures}, {in_words(test, 90)}: {where} {margin}",
    )


def _compare(claim: Claim, values: list[float], digits: int) -> tuple[str, str]:
    if claim.row:
        inside = (claim.above is None or values[0] > claim.above) and (claim.below is None or values[0] < claim.below)
        return (AGREES if inside else DISAGREES), f"{values[0]:.{digits}f}"
    difference = values[0] - values[1]
    figures = f"{values[0]:.{digits}f} against {values[1]:.{digits}f}"
    if claim.equal:
        return (AGREES if abs(difference) <= claim.margin else DISAGREES), figures
    if 0 < difference <= claim.margin:
        return UNDECIDED, f"{figures}: a smaller difference than {claim.margin:g}"
    return (AGREES if difference > min(claim.margin, 0) else DISAGREES), figures
