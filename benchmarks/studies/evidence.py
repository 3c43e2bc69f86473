"""ReLU beside softmax, one line a task of evidence.yaml, from the results of the studies: the table of docs/evidence.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from benchmarks.markdown import mean_and_each, table
from benchmarks.studies.parser import Row, load_rows
from benchmarks.studies.scores import STATISTICS, compare_means, p_in_words, paired_t_test
from benchmarks.studies.tasks import Places, Task, has_diverged, read_result, spent

SEEDS, SIZE = (1, 2, 3), "cpu"
NOT_TRAINED, DIVERGED = "not trained yet", "does not converge"


@dataclass(frozen=True)
class Pair:
    """Two rows of the studies that differ in the attention alone. score: one of `STATISTICS`. to_the_end: whether it is one of
    those that [`seed_pairs`] counts."""

    task: str
    softmax: str
    relu: str
    score: str
    to_the_end: bool = False


PAIRS = tuple(Pair(**says) for says in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")))


def evidence_table() -> str:
    """A line for each pair: scores of each seed, their difference with its p-value, and what was trained."""
    rows, places = load_rows(SIZE).rows, Places.of(SIZE)
    header = ["task", "score", "softmax", "ReLU", "ReLU over softmax", "updates", "core-seconds, softmax / ReLU"]
    return "\n".join(table(header, [_line(pair, rows, places) for pair in PAIRS])) + "\n"


def seed_pairs() -> str:
    """Whether softmax is ahead with each seed, of the two corpora that were trained to the end."""
    rows, places = load_rows(SIZE).rows, Places.of(SIZE)
    differences = []
    for pair in (each for each in PAIRS if each.to_the_end):
        for seed in SEEDS:
            results = (read_result(Task(rows[name], seed, places)) for name in (pair.softmax, pair.relu))
            softmax, relu = (result[pair.score]["score"] for result in results)
            differences.append(softmax - relu)
    ahead = sum(difference > 0 for difference in differences)
    p_value = p_in_words(paired_t_test(differences))
    return (
        f"Softmax is ahead of ReLU in {ahead} of the {len(differences)} pairs of one seed on Multi30k and Tatoeba, by "
        f"{fmean(differences):.2f} BLEU in the mean (paired t test, {p_value}; of other seeds, on these two test texts).\n"
    )


def _line(pair: Pair, rows: Mapping[str, Row], places: Places) -> list[str]:
    tasks = [[Task(rows[name], seed, places) for name in (pair.softmax, pair.relu)] for seed in SEEDS]
    found = [(both, results) for both in tasks if all(results := [read_result(task) for task in both])]
    label = STATISTICS[pair.score].label
    if not found:
        return [pair.task, label, "–", "–", NOT_TRAINED, "–", "–"]
    softmax, relu = zip(*(results for _, results in found), strict=True)
    updates = dict.fromkeys(f"{spent(result)[0]:,}" for _, results in found for result in results)
    scores = [_scores(pair.score, side) for side in (softmax, relu)]
    seconds = [[_cpu_seconds(both[at], results[at]) for both, results in found] for at in (0, 1)]
    difference = _difference(pair.score, softmax, relu)
    is_told = not any(None in of_side for of_side in seconds)  # older results do not tell them, and a GPU's are none
    means = " / ".join(f"{fmean(of_side):,.0f}" for of_side in seconds) if is_told else "–"
    return [pair.task, label, *scores, difference, " and ".join(updates), means]


def _scores(score: str, results: Sequence[Mapping[str, Any]]) -> str:
    if any(map(has_diverged, results)):
        return DIVERGED
    return mean_and_each([result[score]["score"] for result in results], "{:.2f}")


def _cpu_seconds(task: Task, result: Mapping[str, Any] | None) -> float | None:
    """CPU seconds of the updates, with those of all that it started from."""
    on_cpu = result is not None and result["recipe"]["training"].get("use_cpu", False)
    own = result.get("cpu_seconds") if on_cpu else None
    if own is None or task.start is None:
        return own
    before = _cpu_seconds(task.start, read_result(task.start))
    return None if before is None else own + before


def _difference(score: str, softmax: Sequence[Mapping[str, Any]], relu: Sequence[Mapping[str, Any]]) -> str:
    if any(map(has_diverged, (*softmax, *relu))):
        return "–"
    ours, theirs = ([result[score] for result in side] for side in (relu, softmax))
    test = compare_means(STATISTICS[score], ours, theirs)
    return test.words() + (f": {test.noise}" if test.noise else "")
