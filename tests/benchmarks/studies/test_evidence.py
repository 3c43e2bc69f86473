"""The table that sets ReLU beside softmax: pairs that exist and differ in the attention alone, means, p-values."""

import copy
from statistics import fmean

import numpy as np
import pytest

from benchmarks.studies import evidence
from benchmarks.studies.parser import load_rows
from benchmarks.studies.scores import STATISTICS, Comparison
from benchmarks.studies.tasks import Places, Task

CATALOGUE = load_rows(evidence.SIZE)
# What may differ: how attention is computed, how its weights are scaled and regularised, and from what a row starts.
ATTENTION = ("attention_", "regularization_weight", "attn_implementation", "preset")


@pytest.mark.parametrize("pair", evidence.PAIRS, ids=lambda pair: pair.task)
def test_a_pair_differs_in_the_attention_alone(pair):
    assert pair.score in STATISTICS
    softmax, relu = (copy.deepcopy(CATALOGUE.rows[name].recipe) for name in (pair.softmax, pair.relu))
    models = [
        {name: value for name, value in recipe["model"].items() if not name.startswith(ATTENTION)}
        for recipe in (softmax, relu)
    ]
    assert models[0] == models[1]
    softmax, relu = (
        {k: v for k, v in each.items() if k not in ("model", "name", "description")} for each in (softmax, relu)
    )
    if "more epochs" in pair.task:
        epochs = relu["training"].pop("num_train_epochs"), softmax["training"].pop("num_train_epochs")
        assert epochs[0] > epochs[1]
    if pair.task.startswith("documents"):  # of as many core-seconds
        updates = relu["training"].pop("max_steps"), softmax["training"].pop("max_steps")
        assert updates[0] >= updates[1]
    assert softmax == relu


def result(row: str, right: int, cpu_seconds: float, updates: int = 10) -> dict:
    statistics = {"metric": "m", "signature": "s", "references": "r", "rights": right}
    return {
        "row": row,
        "training_seconds": 1.0,
        "cpu_seconds": cpu_seconds,
        "training": {"updates": updates},
        "accuracy": {**statistics, "score": right / 10},
    }


def test_a_line_has_means_and_the_difference_of_each_seed(monkeypatch):
    pair = next(pair for pair in evidence.PAIRS if pair.score == "accuracy")
    given = {
        (pair.softmax, 1): 800,
        (pair.softmax, 2): 820,
        (pair.relu, 1): 700,
        (pair.relu, 2): 819,
        (pair.relu, 3): 1,
    }

    def read(task):
        right = given.get((task.row.name, task.seed))
        return None if right is None else result(task.row.name, right, 100.0 if "softmax" in task.row.name else 60.0)

    monkeypatch.setattr(evidence, "read_result", read)
    compared = []

    def bootstrap(kind, first, second):
        compared.append([[each["score"] for each in side] for side in (first, second)])
        each = tuple(one["score"] - other["score"] for one, other in zip(first, second, strict=True))
        samples = fmean(each) + np.linspace(-1, 1, 1000) * (0.1 if len(first) > 1 else 0.2)
        return Comparison(fmean(each), each, samples, items=1000)

    monkeypatch.setattr(evidence, "bootstrap_of_means", bootstrap)
    line = evidence._line(pair, CATALOGUE.rows, Places.of(evidence.SIZE))
    assert line[1:4] == ["accuracy", "81.00 (80.00, 82.00)", "75.95 (70.00, 81.90)"], "seed 3 has no partner"
    assert line[4:] == ["-5.05 (-10.00, -0.10), p = 0.001: within the noise of the seeds", "10", "100 / 60"]
    assert compared == [[[70.0, 81.9], [80.0, 82.0]]]

    def read_longer(task):
        found = read(task)
        return found and {**found, "training": {"updates": 12_500 if task.row.name == pair.relu else 11_000}}

    monkeypatch.setattr(evidence, "read_result", read_longer)
    assert evidence._line(pair, CATALOGUE.rows, Places.of(evidence.SIZE))[5] == "11,000 and 12,500"

    def read_older(task):
        found = read(task)
        older = {"training": {"updates": 9}, "cpu_seconds": None}
        return {**found, **older} if found and (task.row.name, task.seed) == (pair.relu, 2) else found

    monkeypatch.setattr(evidence, "read_result", read_older)
    assert evidence._line(pair, CATALOGUE.rows, Places.of(evidence.SIZE))[5:] == ["10 and 9", "–"], "of every seed"
    monkeypatch.setattr(evidence, "read_result", read)
    del given[pair.softmax, 1]
    line = evidence._line(pair, CATALOGUE.rows, Places.of(evidence.SIZE))
    assert line[2:5] == ["82.00", "81.90", "-0.10, p = 0.500: within the noise of the test set"]
    diverged = {"training": {"updates": 3, "diverged": {"update": 3, "reason": "a loss of nan"}}, "accuracy": None}

    def read_diverged(task):
        found = read(task)
        return {**found, **diverged} if found and (task.row.name, task.seed) == (pair.softmax, 2) else found

    given[pair.softmax, 1] = 800
    monkeypatch.setattr(evidence, "read_result", read_diverged)
    line = evidence._line(pair, CATALOGUE.rows, Places.of(evidence.SIZE))
    assert line[2:5] == ["does not converge", "75.95 (70.00, 81.90)", "–"]
    monkeypatch.setattr(evidence, "read_result", read)
    given.clear()
    assert evidence._line(pair, CATALOGUE.rows, Places.of(evidence.SIZE))[2:] == [
        "–",
        "–",
        evidence.NOT_TRAINED,
        "–",
        "–",
    ]


def test_seconds_are_those_of_the_whole_chain(monkeypatch):
    def seconds(name):
        task = Task(CATALOGUE.rows[name], 1, Places.of(evidence.SIZE))
        return evidence._cpu_seconds(task, given.get(name))

    names = ["documents_end_start_relu", "documents_end_relu_128", "documents_end_relu_256"]
    given = {name: result(name, 1, own) for name, own in zip(names, (100.0, 5.0, 2.0), strict=True)}
    monkeypatch.setattr(evidence, "read_result", lambda task: given.get(task.row.name))
    assert [seconds(name) for name in names] == [100.0, 105.0, 107.0]
    del given[names[0]]
    assert seconds(names[1]) is None, "what it started from does not tell them"
