"""The bootstrap from statistics is sacreBLEU's from texts."""

import json
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from benchmarks.studies.bleu import METRICS, bleu_statistics
from benchmarks.studies.bootstrap import STATISTICS, Comparison, bootstrap_of_means, comparable
from reluformer.training.scoring.evaluation import write_translations

WORDS = ["a", "the", "small", "house", "dog", "runs", "stands", "wet", "grass", "two", "men", "play", "cards", ",", "."]


def translations(folder, name, noise, seed=0, count=60):
    """A file of references with some of their words exchanged; some sentences are empty or very short."""
    generator, noisy = np.random.default_rng(0), np.random.default_rng(seed)
    references = [" ".join(generator.choice(WORDS, generator.integers(1, 12))) for _ in range(count)]
    hypotheses = [
        " ".join(str(noisy.choice(WORDS)) if noisy.random() < noise else word.title() for word in reference.split())
        for reference in references
    ]
    hypotheses[3] = ""
    write_translations(folder / f"{name}.tsv", references, hypotheses, references)
    return folder / f"{name}.tsv", hypotheses, references


@pytest.mark.parametrize("headline", list(METRICS))
def test_scores_are_those_of_sacrebleu_and_the_p_value_counts_both_sides(tmp_path, monkeypatch, headline):
    recipe = {"evaluation": {"headline": headline}}
    first, first_texts, references = translations(tmp_path, "first", 0.25, seed=1)
    second, second_texts, _ = translations(tmp_path, "second", 0.3, seed=2)
    metric = BLEU(**METRICS[headline])
    named = [("second", second_texts), ("first", first_texts)]
    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    test = PairedTest(named, {"BLEU": metric}, references=[references], test_type="bs", n_samples=200)
    baseline, system = test()[1]["BLEU"]
    statistics = [bleu_statistics(path, recipe) for path in (first, second)]
    assert statistics[0]["metric"] == headline
    assert statistics[0]["score"] == pytest.approx(system.score)
    comparison = bootstrap_of_means(STATISTICS["bleu"], *([each] for each in statistics), samples=200)
    assert comparison.difference == pytest.approx(system.score - baseline.score)
    scores = [_of_samples(metric, texts, references) for texts in (first_texts, second_texts)]
    differences = np.subtract(*scores)
    one_side = np.sum(np.abs(differences) - np.abs(differences).mean() > abs(comparison.difference))
    assert system.p_value == pytest.approx((one_side + 1) / 201), "these are sacreBLEU's samples"
    both = np.sum(np.abs(differences - differences.mean()) >= abs(comparison.difference))
    assert comparison.p_value == pytest.approx((both + 1) / 201)
    assert system.p_value < comparison.p_value < 1, "a test of nothing"


def _of_samples(metric, texts, references):
    drawn = np.random.default_rng(12345).choice(len(texts), size=(200, len(texts)), replace=True)
    return [metric.corpus_score([texts[i] for i in each], [[references[i] for i in each]]).score for each in drawn]


def test_equals_are_called_different_as_often_as_the_p_value_says():
    """By sacreBLEU's p-value, which counts one side, it were twice as often."""
    random = np.random.default_rng(0)

    def classifier():
        right = random.random(400) < 0.5
        statistics = {"pictures": 400, "right": np.packbits(right).tobytes().hex(), "score": 100 * right.mean()}
        return {"metric": "accuracy", "signature": "test", "references": "r", **statistics}

    pairs = [(classifier(), classifier()) for _ in range(200)]
    found = [bootstrap_of_means(STATISTICS["accuracy"], [a], [b], samples=200).p_value < 0.1 for a, b in pairs]
    assert 0.04 < np.mean(found) < 0.16, "0.1 ± three standard errors of 200"


@pytest.mark.parametrize(
    "each, p_value, items, noise",
    [
        ((1.0,), 0.049, 10, None),
        ((1.0, 3.0), 0.001, 10, None),
        ((1.0,), 0.05, 10, "within the noise of the test set"),
        ((-1.0, 3.0), 0.001, 10, "within the noise of the seeds"),
        ((1.0, 5.8), 0.001, 10, None),  # 3.4 ± 3.39
        ((1.0, 6.0), 0.001, 10, "within the noise of the seeds"),  # 3.5 ± 3.54
        ((-6.0, -1.0), 0.001, 10, "within the noise of the seeds"),
        ((2.0, 2.0, -0.1), 0.001, 10, "within the noise of the seeds"),  # 1.3 ± 1.2, but one points the other way
        ((1.0,), 0.001, 9, "9 texts are too few for a bootstrap"),
    ],
)
def test_a_difference_is_none_where_test_items_or_seeds_could_turn_it(each, p_value, items, noise):
    assert Comparison(np.mean(each), each, p_value, 1000, items).noise == noise


def test_the_difference_is_that_of_the_mean_scores(tmp_path):
    each = [bleu_statistics(translations(tmp_path, "text", noise, seed=1)[0], {}) for noise in (0.05, 0.6, 0.3)]
    scores = [one["score"] for one in each]
    found = bootstrap_of_means(STATISTICS["bleu"], each[:2], [each[2], each[2]], samples=20)
    assert found.difference == pytest.approx((scores[0] + scores[1]) / 2 - scores[2])
    assert found.each == pytest.approx((scores[0] - scores[2], scores[1] - scores[2]))


def test_only_scores_on_the_same_references_by_the_same_metric_are_compared(tmp_path):
    first = bleu_statistics(translations(tmp_path, "first", 0.2)[0], {})
    fewer = bleu_statistics(translations(tmp_path, "fewer", 0.2, count=50)[0], {})
    by_moses = bleu_statistics(tmp_path / "first.tsv", {"evaluation": {"headline": "moses_lowercase_bleu"}})
    lower = bleu_statistics(tmp_path / "first.tsv", {"evaluation": {"headline": "tokenized_lowercase_bleu"}})
    assert by_moses == lower, "a lower-cased model is not scored by its case"
    assert comparable(first, first) and not comparable(first, None)
    for other in (fewer, lower):
        assert not comparable(first, other)
        with pytest.raises(ValueError, match="same references"):
            bootstrap_of_means(STATISTICS["bleu"], [first], [other])


def test_every_committed_score_is_that_of_its_statistics():
    """A table prints the score, a p-value is of the statistics."""
    scored = 0
    for path in sorted(Path("benchmarks/results/studies").glob("*/*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        for name in STATISTICS.keys() & {name for name, found in result.items() if found}:
            kind = STATISTICS[name]
            assert result[name]["score"] == pytest.approx(kind.score(kind.rows(result[name]).sum(0))), path.name
            scored += 1
    assert scored > 100
