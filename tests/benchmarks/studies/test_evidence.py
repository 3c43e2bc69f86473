"""The table that sets ReLU beside softmax: pairs that exist and differ in the attention alone, means, p-values."""

import copy
from statistics import fmean

import numpy as np
import pytest

from benchmarks.studies import evidence
from benchmarks.studies.outcomes import RUN, Outcome
from benchmarks.studies.parser import TableRow, load_rows
from benchmarks.studies.scores import STATISTICS, Comparison
from benchmarks.studies.study import Figure, Study
from benchmarks.studies.tasks import Places, Task

CATALOGUE = load_rows(evidence.SIZE)
# What may differ: how attention is computed, how its weights are scaled and regularised, and from what a row starts.
ATTENTION = ("attention_", "regularization_weight", "attn_implementation", "preset")


@pytest.mark.parametrize("pair", evidence.PAIRS, ids=lambda pair: pair.task)
def test_a_pair_differs_in_the_attention_alone(pair):
    assert pair.score in STATISTICS
    softmax, relu = (copy.deepcopy(CATALOGUE.rows[name].recipe) for name in (pair.theirs, pair.ours))
    for recipe in (softmax, relu):
        recipe["model"] = {k: value for k, value in recipe["model"].items() if not k.startswith(ATTENTION)}
        recipe.pop("name", None), recipe.pop("description", None)
        recipe["training"] = {
            **recipe["training"],
            "eval_steps": None,
        }  # how often it is looked at, which changes no weight
    if "more epochs" in pair.task:
        epochs = relu["training"].pop("num_train_epochs"), softmax["training"].pop("num_train_epochs")
        assert epochs[0] > epochs[1]
    if pair.theirs.startswith("documents_end"):  # of as many core-seconds
        updates = relu["training"].pop("max_steps"), softmax["training"].pop("max_steps")
        assert updates[0] >= updates[1]
    assert softmax == relu


PAIR = next(pair for pair in evidence.PAIRS if pair.score == "accuracy")
GONE = {"training": {"updates": 3, "diverged": {"update": 3, "reason": "a loss of nan"}}, "accuracy": None}


def result(row, score, cpu_seconds, **changes):
    statistics = {"metric": "m", "signature": "s", "references": "r", "score": score}
    training, recipe = {"updates": 10}, {"training": {"use_cpu": True}}
    given = {"recipe": recipe, "row": row, "training_seconds": 1.0, "cpu_seconds": cpu_seconds, "training": training}
    return {**given, "accuracy": statistics, **changes}


@pytest.fixture
def line(monkeypatch):
    """The line of PAIR, given the accuracies of softmax and ReLU by seed, and what else the result of a row and seed
    says."""

    def compared(kind, first, second):
        each = tuple(one["score"] - other["score"] for one, other in zip(first, second, strict=True))
        return Comparison(fmean(each), each, fmean(each) + np.linspace(-1, 1, 1000) * 0.2 / len(each), items=1000)

    def of(softmax, relu, changes=None):
        found = {(PAIR.theirs, seed): result(PAIR.theirs, score, 100.0) for seed, score in softmax.items()}
        found |= {(PAIR.ours, seed): result(PAIR.ours, score, 60.0) for seed, score in relu.items()}
        for key, more in (changes or {}).items():
            found[key] |= more
        forget()
        monkeypatch.setattr(evidence, "read_result", lambda task: found.get((task.row.name, task.seed)))
        monkeypatch.setattr(evidence, "compare_means", compared)
        return evidence._line(PAIR)[1:]

    def forget():
        evidence.results_of.cache_clear()
        evidence.comparison.cache_clear()

    yield of
    forget()


def test_a_line_has_means_and_the_difference_of_each_seed_that_both_have(line):
    softmax, relu = {1: 80.0, 2: 82.0}, {1: 70.0, 2: 81.9, 3: 1.0}
    scores = ["81.00 (80.00, 82.00)", "75.95 (70.00, 81.90)", "−5.05 (−10.00, −0.10)"]
    noise = "two seeds that differ too much; for these models alone p = 0.001"
    assert line(softmax, relu) == [*scores, noise, "10", "100 / 60"]
    assert line(softmax, {1: 70.0, 2: 73.0})[3] == "two seeds that agree; for these models alone p = 0.001"
    longer = {"training": {"updates": 12_500}, "cpu_seconds": None}
    assert line(softmax, relu, {(PAIR.ours, 2): longer})[4:] == ["10 and 12,500", "–"], "of every seed"
    alone = ["82.00", "81.90", "−0.10", "one seed; for this pair alone p = 0.500, inconclusive"]
    assert line({2: 82.0}, relu)[:4] == alone
    assert line(softmax, relu, {(PAIR.theirs, 2): GONE})[:3] == ["does not converge", "75.95 (70.00, 81.90)", "–"]
    assert line({}, relu) == ["–", "–", evidence.NOT_TRAINED, "–", "–", "–"]


def test_three_seeds_have_an_interval_and_say_whether_it_holds_zero(line):
    softmax = {1: 80.0, 2: 80.0, 3: 80.0}
    assert line(softmax, {1: 81.0, 2: 81.0, 3: 81.0})[3] == "three seeds, 95 % interval +0.94 to +1.06"
    assert line(softmax, {1: 80.01, 2: 80.01, 3: 80.01})[3].endswith("−0.05 to +0.07: within the noise")


def test_a_table_of_models_says_where_a_figure_has_fewer_seeds(monkeypatch):
    both, one = ({1: {"bleu": {"score": 9.0}, "loss": loss}, 2: {"bleu": {"score": 8.0}}} for loss in (2.5, None))
    outcomes = {name: Outcome(None, RUN, "", results) for name, results in (("a", both), ("b", one))}
    for outcome in outcomes.values():
        outcome.entry = TableRow("row", "label", None, {}, None, ())
    figures = {"bleu": Figure(label="", path="bleu.score"), "loss": Figure(label="", path="loss", digits=3)}
    study = Study(title="", position=0, source="", rows=[], figures=figures)
    said = {"study": "any", "figures": {"bleu": "BLEU", "loss": "loss"}, "rows": {"a": "first", "b": "second"}}
    monkeypatch.setitem(evidence.MODELS, "some", said)
    monkeypatch.setattr(evidence, "load_study", lambda name: study)
    monkeypatch.setattr(evidence, "outcomes_of", lambda *_: outcomes)
    assert evidence.models_table("some").splitlines()[2:] == [
        "| first | 8.50 | 2.500 (one seed) | two seeds |",
        "| second | 8.50 | – | two seeds |",
    ]


def test_seconds_are_those_of_the_whole_chain(monkeypatch):
    def seconds(name):
        task = Task(CATALOGUE.rows[name], 1, Places.of(evidence.SIZE))
        return evidence._cpu_seconds(task, given.get(name))

    names = ["documents_end_start_relu", "documents_end_relu_128", "documents_end_relu_256"]
    given = {name: result(name, 1, own) for name, own in zip(names, (100.0, 5.0, 2.0), strict=True)}
    monkeypatch.setattr(evidence, "read_result", lambda task: given.get(task.row.name))
    assert [seconds(name) for name in names] == [100.0, 105.0, 107.0]
    given[names[2]]["recipe"] = {"training": {}}
    assert seconds(names[2]) is None, "the host's seconds beside a GPU are none of the training's"
    del given[names[0]]
    assert seconds(names[1]) is None, "what it started from does not tell them"
