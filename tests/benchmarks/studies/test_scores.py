"""What is kept of each item of a test set is enough for the score, and for sacreBLEU's bootstrap from it."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from benchmarks.studies.scores import (
    METRICS,
    SEED,
    STATISTICS,
    Comparison,
    Statistic,
    accuracy_statistics,
    bleu_statistics,
    comparable,
    compare_means,
    paired_t_test,
    perplexity_statistics,
)
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


def classified(folder, count, rate, seed, pictures=0):
    """Statistics of a classifier, and whether each picture was right."""
    labels = np.random.default_rng(pictures).integers(0, 10, count)
    found = np.where(np.random.default_rng(seed).random(count) < rate, labels, (labels + 1) % 10)
    lines = ["label\tprediction", *(f"{label}\t{guess}" for label, guess in zip(labels, found, strict=True))]
    (folder / "predictions.tsv").write_text("\n".join(lines), encoding="utf-8")
    return accuracy_statistics(folder / "predictions.tsv", "test"), found == labels


def predicted(folder, tokens, nats, split="test", context=128):
    """Statistics of documents with so many tokens and so much loss."""
    with (folder / "documents.tsv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter="\t", lineterminator="\n")
        writer.writerow(("document", "bytes", "tokens", "nats"))
        rows = enumerate(zip(tokens, nats, strict=True))
        writer.writerows(
            (f"a\tfolder/{number}.py", 3 * count, count, f"{total:.6f}") for number, (count, total) in rows
        )
    return perplexity_statistics(folder / "documents.tsv", split, context)


FIRST, *OTHERS = METRICS


@pytest.mark.parametrize("headline", [FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_bleu_is_that_of_sacrebleu_and_the_p_value_counts_both_sides(tmp_path, monkeypatch, headline):
    recipe = {"evaluation": {"headline": headline}}
    first, first_texts, references = translations(tmp_path, "first", 0.25, seed=1)
    second, second_texts, _ = translations(tmp_path, "second", 0.3, seed=2)
    metric = BLEU(**METRICS[headline])
    named = [("second", second_texts), ("first", first_texts)]
    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    test = PairedTest(named, {"BLEU": metric}, references=[references], test_type="bs", n_samples=200)
    baseline, system = test()[1]["BLEU"]
    statistics = [bleu_statistics(path, recipe) for path in (first, second)]
    assert statistics[0]["metric"] == headline and statistics[0]["score"] == pytest.approx(system.score)
    comparison = compare_means(STATISTICS["bleu"], *([each] for each in statistics), samples=200)
    assert comparison.difference == pytest.approx(system.score - baseline.score)
    differences = np.subtract(*(_of_samples(metric, texts, references) for texts in (first_texts, second_texts)))
    one_side = np.sum(np.abs(differences) - np.abs(differences).mean() > abs(comparison.difference))
    assert system.p_value == pytest.approx((one_side + 1) / 201), "these are sacreBLEU's samples"
    both = np.sum(np.abs(differences - differences.mean()) >= abs(comparison.difference))
    assert comparison.p_value == pytest.approx((both + 1) / 201)
    assert system.p_value < comparison.p_value < 1, "a test of nothing"


def _of_samples(metric, texts, references):
    drawn = np.random.default_rng(SEED).choice(len(texts), size=(200, len(texts)), replace=True)
    return [metric.corpus_score([texts[i] for i in each], [[references[i] for i in each]]).score for each in drawn]


def p_value(sampled, difference):
    differences = sampled[0] - sampled[1]
    return (np.sum(abs(differences - differences.mean()) >= abs(difference)) + 1) / (len(differences) + 1)


def test_means_over_seeds_are_compared_on_the_same_pictures(tmp_path):
    rates = (0.80, 0.78), (0.72, 0.77)
    sides = [
        [classified(tmp_path, 301, rate, (seed, at)) for seed, rate in enumerate(of)] for at, of in enumerate(rates)
    ]
    for statistics, right in sides[0]:
        rows = STATISTICS["accuracy"].rows(statistics)
        assert rows.tolist() == [[int(each), 1] for each in right] and statistics["pictures"] == 301
    found = compare_means(STATISTICS["accuracy"], *([each for each, _ in side] for side in sides), samples=400)
    drawn = np.random.default_rng(SEED).choice(301, size=(400, 301), replace=True)
    sampled = [np.mean([right[drawn].mean(1) for _, right in side], axis=0) for side in sides]
    difference = np.subtract(*(np.mean([right.mean() for _, right in side]) for side in sides))
    assert found.difference == pytest.approx(100 * difference)
    assert found.p_value == pytest.approx(p_value(sampled, difference)) and 0.003 < found.p_value < 1


def test_the_bootstrap_of_perplexities_draws_documents(tmp_path):
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, 900, 41)
    first = tokens * rng.normal(2.3, 0.4, 41)
    nats = first, first + tokens * rng.normal(0.02, 0.1, 41)
    statistics = [predicted(tmp_path, tokens, each) for each in nats]
    assert statistics[0]["score"] == pytest.approx(np.exp(first.sum() / tokens.sum()), rel=1e-8)
    assert statistics[0]["per_byte"] == pytest.approx(np.exp(first.sum() / (3 * tokens.sum())), rel=1e-8)
    found = compare_means(STATISTICS["perplexity"], *([each] for each in statistics), samples=400)
    drawn = np.random.default_rng(SEED).choice(41, size=(400, 41), replace=True)
    sampled = [np.exp(each[drawn].sum(1) / tokens[drawn].sum(1)) for each in nats]
    assert found.p_value == pytest.approx(p_value(sampled, found.difference)) and 0.005 < found.p_value < 1


def around(difference, scatter):
    return np.random.default_rng(0).normal(difference, scatter, 1000)


@pytest.mark.parametrize(
    "each, scatter, items, noise",
    [
        ((1.0,), 0.4, 10, None),
        ((1.0, 3.0), 0.1, 10, None),
        ((1.0,), 0.6, 10, "within the noise of the test set"),
        ((-1.0, 3.0), 0.1, 10, "within the noise of the seeds"),
        ((1.0, 5.8), 0.1, 10, None),  # 3.4 ± 3.39
        ((1.0, 6.0), 0.1, 10, "within the noise of the seeds"),  # 3.5 ± 3.54
        ((2.0, 2.0, -0.1), 0.5, 10, None),  # one points the other way, and the samples are of seeds, too
        ((2.0, 2.0, -0.1), 0.8, 10, "within the noise of seeds and test set"),
        ((1.0,), 0.1, 9, "9 texts are too few for a bootstrap"),
    ],
)
def test_a_difference_is_none_where_test_items_or_seeds_could_turn_it(each, scatter, items, noise):
    assert Comparison(np.mean(each), each, around(np.mean(each), scatter), items).noise == noise


def test_the_interval_of_few_seeds_holds_each_of_them():
    samples = np.linspace(-1, 1, 1001)
    assert Comparison(0.0, (0.0,), samples, 10).interval(90) == pytest.approx((-0.9, 0.9))
    assert Comparison(0.0, (-3.0, 0.5), samples, 10).interval(90) == pytest.approx((-3.0, 0.9))
    assert Comparison(0.0, (-3.0, 1.5, 1.5), samples, 10).interval(90) == pytest.approx((-0.9, 0.9))


MEAN = Statistic("mean", "", "items", lambda statistics: statistics["rows"], lambda sums: sums[..., 0] / sums[..., 1])


def scored(values):
    """Statistics of a made-up score, the mean of `values` over the items."""
    rows = np.stack([values, np.ones_like(values)], axis=1)
    return {"metric": "mean", "signature": "", "references": "", "score": float(values.mean()), "rows": rows}


def two_rows(rng, seeds, items, *, of_seed, of_item, of_both):
    """Two rows that are equally good, with what chance adds to a seed, to an item in all seeds, and to an item in one
    seed."""
    sides = []
    for _ in range(2):
        values = of_seed * rng.normal(size=(seeds, 1)) + of_item * rng.normal(size=items)
        sides.append([scored(each) for each in values + of_both * rng.normal(size=(seeds, items))])
    return sides


def test_the_interval_is_that_of_a_t_test_where_the_text_has_no_noise():
    """t(2) = 4.3027 and t(4) = 2.7764, from the tables."""
    for each, quantile in (((1.59, 0.85, 0.81), 4.3027), ((1.0, -0.2, 0.4, 2.0, 0.3), 2.7764)):
        sides = [[scored(np.full(10, value)) for value in of] for of in (each, (0.0,) * len(each))]
        found = compare_means(MEAN, *sides)
        half = quantile * np.std(each, ddof=1) / np.sqrt(len(each))
        assert found.interval(95) == pytest.approx((np.mean(each) - half, np.mean(each) + half), abs=0.003 * half)
        turned = compare_means(MEAN, *sides[::-1])
        assert turned.interval(95) == pytest.approx([-bound for bound in found.interval(95)[::-1]])


def test_noise_of_the_text_adds_to_that_of_the_seeds_and_is_the_bootstraps_alone_where_all_seeds_agree():
    rng = np.random.default_rng(0)
    items = rng.normal(0.2, 1.0, 400)
    rows = [[scored(items + seed) for seed in seeds] for seeds in ((0.0, 0.0, 0.0), (0.1, -0.1, 0.0))]
    zero = [scored(np.zeros(400))] * 3
    alone, together = (compare_means(MEAN, side, zero) for side in rows)
    low, high = alone.interval(95)
    assert (low, high) == pytest.approx((items.mean() - 1.96 * 0.05, items.mean() + 1.96 * 0.05), abs=0.015)
    both = (together.interval(95)[1] - together.interval(95)[0]) / 2
    of_seeds, of_text = 4.3027 * 0.1 / np.sqrt(3), 1.96 * items.std() / 20
    assert max(of_seeds, of_text) < both < of_seeds + of_text
    turned = compare_means(MEAN, zero, rows[1])
    assert turned.interval(95) == pytest.approx([-bound for bound in together.interval(95)[::-1]], rel=1e-9)


@pytest.mark.parametrize(
    ("chance", "most"),
    [
        ({"of_seed": 1.0, "of_item": 0.0, "of_both": 0.0}, 0.97),
        ({"of_seed": 0.0, "of_item": 1.0, "of_both": 0.0}, 0.97),
        ({"of_seed": 0.06, "of_item": 1.0, "of_both": 0.0}, 1.0),  # where drawing three seeds of three covers 0.89
        ({"of_seed": 0.03, "of_item": 0.3, "of_both": 1.0}, 1.0),
    ],
    ids=["seeds", "text", "seeds and text", "like the sentences"],
)
def test_at_least_95_of_100_intervals_of_three_seeds_hold_the_truth(chance, most):
    """The bound is 3 standard errors of the share below 0.95, and 0.97 is 3 above it."""
    rng, held, trials = np.random.default_rng(1), 0, 1000
    for _ in range(trials):
        low, high = compare_means(MEAN, *two_rows(rng, 3, 200, **chance), samples=1000).interval(95)
        held += low <= 0 <= high
    assert 0.93 <= held / trials <= most


def test_the_paired_t_test_has_the_p_values_of_the_tables():
    """Of 5 degrees of freedom: 2.571 is 0.05, 4.032 is 0.01."""
    for t, p_value in ((2.5706, 0.05), (4.0321, 0.01)):
        differences = np.array([-1.0, 1.0, -1.0, 1.0, -1.0, 1.0])
        differences += t * differences.std(ddof=1) / np.sqrt(6)
        assert paired_t_test(list(differences)) == pytest.approx(p_value, rel=1e-3)
        assert paired_t_test(list(-differences)) == pytest.approx(p_value, rel=1e-3)


def test_only_scores_on_the_same_references_by_the_same_metric_are_compared(tmp_path):
    first = bleu_statistics(translations(tmp_path, "first", 0.2)[0], {})
    fewer = bleu_statistics(translations(tmp_path, "fewer", 0.2, count=50)[0], {})
    by_moses = bleu_statistics(tmp_path / "first.tsv", {"evaluation": {"headline": "moses_lowercase_bleu"}})
    lower = bleu_statistics(tmp_path / "first.tsv", {"evaluation": {"headline": "tokenized_lowercase_bleu"}})
    assert by_moses == lower, "a lower-cased model is not scored by its case"
    assert comparable(first, first) and not comparable(first, None)
    for other in (fewer, lower):
        assert not comparable(first, other)
        with pytest.raises(ValueError, match="different test texts"):
            compare_means(STATISTICS["bleu"], [first], [other])
    assert not comparable(*(classified(tmp_path, 50, 0.8, 0, pictures)[0] for pictures in (0, 1)))
    tokens, nats = np.array([3, 4]), [5.0, 6.0]
    others = predicted(tmp_path, tokens + 1, nats), predicted(tmp_path, tokens, nats, context=256)
    assert not any(comparable(predicted(tmp_path, tokens, nats), other) for other in others)


def test_bleu_of_sums_is_that_of_sacrebleu_where_nothing_matches():
    for sums in ([0, 0, 0, 0, 5, 4, 3, 2, 5, 6], [3, 1, 0, 0, 5, 4, 3, 2, 5, 6], [1, 0, 0, 0, 1, 0, 0, 0, 1, 3]):
        score = BLEU.compute_bleu(sums[:4], sums[4:8], *sums[8:], smooth_method="exp").score
        assert STATISTICS["bleu"].score(np.array(sums)) == pytest.approx(score)


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
