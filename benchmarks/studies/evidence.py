"""ReLU beside softmax, from the results of the studies: the tables of docs/evidence.md, a section of evidence.yaml
each.

Other pages quote a pair by its name: its difference, how sure it is, and of how many seeds.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from benchmarks.markdown import table
from benchmarks.studies.outcomes import outcomes_of, value
from benchmarks.studies.parser import Catalogue, load_rows, load_study
from benchmarks.studies.scores import (
    FEWEST_ITEMS,
    SIGNIFICANT,
    STATISTICS,
    Comparison,
    compare_means,
    p_in_words,
    paired_t_test,
)
from benchmarks.studies.tasks import Places, Task, has_diverged, read_result, spent

SEEDS, SIZE = (1, 2, 3), "cpu"
SEEDS_IN_WORDS = {1: "one seed", 2: "two seeds", 3: "three seeds"}
NOT_TRAINED, DIVERGED = "not trained yet", "does not converge"
Results = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Pair:
    """Two rows of the studies that differ in the attention alone.

    task: what was trained. theirs, ours: rows. score: one of `STATISTICS`. name: what other pages call the pair.
    to_the_end: it is one of those that [`seed_pairs`] counts.
    """

    task: str
    theirs: str
    ours: str
    score: str = "bleu"
    name: str | None = None
    to_the_end: bool = False


_SAID = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
SECTIONS = {
    name: tuple(Pair(**pair) for pair in section["pairs"]) for name, section in _SAID.items() if "pairs" in section
}
MODELS = {name: section for name, section in _SAID.items() if "study" in section}
PAIRS = tuple(pair for pairs in SECTIONS.values() for pair in pairs)
BY_NAME = {pair.name: pair for pair in PAIRS if pair.name}


@functools.cache
def _catalogue() -> Catalogue:
    return load_rows(SIZE)


@functools.cache
def results_of(pair: Pair) -> tuple[Results, Results]:
    """Of theirs and of ours, of each seed that both were trained with."""
    both = [[read_result(task) for task in tasks] for tasks in _tasks(pair)]
    complete = [results for results in both if all(results)]
    theirs, ours = zip(*complete, strict=True) if complete else ((), ())
    return theirs, ours


def _tasks(pair: Pair) -> list[list[Task]]:
    rows, places = _catalogue().rows, Places.of(SIZE)
    return [[Task(rows[name], seed, places) for name in (pair.theirs, pair.ours)] for seed in SEEDS]


@functools.cache
def comparison(pair: Pair) -> Comparison | None:
    """Our mean score minus theirs; None where one did not converge or was not trained."""
    theirs, ours = results_of(pair)
    if not ours or any(map(has_diverged, (*theirs, *ours))):
        return None
    return compare_means(STATISTICS[pair.score], *([result[pair.score] for result in side] for side in (ours, theirs)))


def how_sure(comparison: Comparison) -> str:
    """Of three seeds, the 95 % interval; of one or two, the p-value of the test set, and of two what both seeds say."""
    seeds = SEEDS_IN_WORDS[len(comparison.each)]
    if comparison.items < FEWEST_ITEMS:
        return f"{seeds}; {comparison.noise}"
    if comparison.has_seeds:
        low, high = comparison.interval(95)
        noise = ": within the noise" if comparison.noise else ""
        return f"{seeds}, 95 % interval {signed(low)} to {signed(high)}{noise}"
    if len(comparison.each) > 1:
        seeds += " that differ too much" if comparison.seeds_disagree else " that agree"
    test_set = ", inconclusive" if comparison.p_value >= SIGNIFICANT else ""
    alone = "these models" if len(comparison.each) > 1 else "this pair"
    return f"{seeds}; for {alone} alone {p_in_words(comparison.p_value)}{test_set}"


def signed(number: float, digits: int = 2) -> str:
    """With its sign, a minus as it is printed."""
    return f"{number:+.{digits}f}".replace("-", "−")


def evidence_table(section: str) -> str:
    """A line for each pair: mean scores with each seed's, their difference, how sure it is, and what was trained."""
    names = {"theirs": "softmax", "ours": "ReLU", **_SAID[section].get("names", {})}
    pairs = SECTIONS[section]
    label = STATISTICS[pairs[0].score].label + ", %" * (pairs[0].score == "accuracy")
    header = [
        "what was trained",
        f"{names['theirs']}, {label}",
        f"{names['ours']}, {label}",
        "difference",
        "how sure",
        "updates",
        f"core-seconds, {names['theirs']} / {names['ours']}",
    ]
    return "\n".join(table(header, map(_line, pairs))) + "\n"


def _line(pair: Pair) -> list[str]:
    theirs, ours = results_of(pair)
    if not ours:
        return [pair.task, "–", "–", NOT_TRAINED, "–", "–", "–"]
    updates = dict.fromkeys(f"{spent(result)[0]:,}" for results in zip(theirs, ours, strict=True) for result in results)
    compared = comparison(pair)
    difference, sure = ("–", SEEDS_IN_WORDS[len(ours)]) if compared is None else (_each(compared), how_sure(compared))
    scores = [_scores(pair.score, side) for side in (theirs, ours)]
    return [pair.task, *scores, difference, sure, " and ".join(updates), _core_seconds(pair)]


def _each(comparison: Comparison) -> str:
    each = f" ({', '.join(map(signed, comparison.each))})" if len(comparison.each) > 1 else ""
    return signed(comparison.difference) + each


def _scores(score: str, results: Results) -> str:
    if any(map(has_diverged, results)):
        return DIVERGED
    values = [result[score]["score"] for result in results]
    each = f" ({', '.join(f'{number:.2f}' for number in values)})" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{each}"


def _core_seconds(pair: Pair) -> str:
    seconds = core_seconds(pair)
    return "–" if seconds is None else " / ".join(f"{of_side:,.0f}" for of_side in seconds)


def core_seconds(pair: Pair) -> tuple[float, float] | None:
    """Means of theirs and of ours; None where a result does not tell them, as older ones and those of a GPU."""
    trained = [tasks for tasks in _tasks(pair) if all(read_result(task) for task in tasks)]
    theirs, ours = ([_cpu_seconds(tasks[side], read_result(tasks[side])) for tasks in trained] for side in (0, 1))
    return None if None in (*theirs, *ours) else (fmean(theirs), fmean(ours))


def _cpu_seconds(task: Task, result: Mapping[str, Any] | None) -> float | None:
    """CPU seconds of the updates, with those of all that it started from."""
    on_cpu = result is not None and result["recipe"]["training"].get("use_cpu", False)
    own = result.get("cpu_seconds") if on_cpu else None
    if own is None or task.start is None:
        return own
    before = _cpu_seconds(task.start, read_result(task.start))
    return None if before is None else own + before


def models_table(section: str) -> str:
    """Figures of single models of a study, means over the seeds that were trained."""
    said = MODELS[section]
    study = load_study(said["study"])
    outcomes = outcomes_of(study, _catalogue(), Places.of(SIZE))
    rows = []
    for name, label in said["rows"].items():
        outcome, cells = outcomes[name], []
        for figure in (study.figures[name] for name in said["figures"]):
            numbers = [number for seed in outcome.results if (number := value(figure, outcome, seed)) is not None]
            cells.append(f"{fmean(numbers):.{figure.digits}f}".replace("-", "−") if numbers else "–")
            if 0 < len(numbers) < len(outcome.results):
                cells[-1] += f" ({SEEDS_IN_WORDS[len(numbers)]})"
        rows.append([label, *cells, SEEDS_IN_WORDS[len(outcome.results)]])
    return "\n".join(table(["model", *said["figures"].values(), "trained with"], rows)) + "\n"


def seed_differences() -> list[float]:
    """By how much BLEU softmax is ahead of ReLU, of each pair of one seed on the corpora that were trained to the
    end."""
    pairs = (pair for pair in PAIRS if pair.to_the_end)
    return [
        softmax[pair.score]["score"] - relu[pair.score]["score"]
        for pair in pairs
        for softmax, relu in zip(*results_of(pair), strict=True)
    ]


def seed_pairs() -> str:
    """Whether softmax is ahead with each seed, of the two corpora that were trained to the end."""
    differences = seed_differences()
    ahead = sum(difference > 0 for difference in differences)
    p_value = p_in_words(paired_t_test(differences))
    return (
        f"Softmax is ahead of ReLU in {ahead} of the {len(differences)} pairs of one seed on Multi30k and Tatoeba, by "
        f"{fmean(differences):.2f} BLEU on average (paired t test, {p_value}; of other seeds, on these two test "
        "texts).\n"
    )
