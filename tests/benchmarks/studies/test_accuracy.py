"""What is kept of a classifier's predictions is enough to compare it with another one, picture by picture."""

import math

import numpy as np
import pytest

from benchmarks.studies.accuracy import accuracy_rows, accuracy_statistics
from benchmarks.studies.bootstrap import SEED, STATISTICS, bootstrap_of_means, comparable

KIND = STATISTICS["accuracy"]


def predictions(folder, name, labels, found):
    lines = ["label\tprediction", *(f"{label}\t{guess}" for label, guess in zip(labels, found, strict=True))]
    path = folder / f"{name}.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def two_classifiers(folder, count, first_rate=0.8, second_rate=0.8, seed=0, trained_with=None):
    """Statistics of two classifiers of the same pictures, and whether each picture was right; `trained_with` gives others."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    rng = rng if trained_with is None else np.random.default_rng(trained_with)
    found = [np.where(rng.random(count) < rate, labels, (labels + 1) % 10) for rate in (first_rate, second_rate)]
    paths = [predictions(folder, str(number), labels, each) for number, each in enumerate(found)]
    return [accuracy_statistics(path, "test") for path in paths], [each == labels for each in found]


@pytest.mark.parametrize("count", [1, 7, 8, 13, 101])
def test_every_picture_is_kept_in_its_order(tmp_path, count):
    statistics, right = two_classifiers(tmp_path, count)
    for each, expected in zip(statistics, right, strict=True):
        rows = accuracy_rows(each)
        assert rows[:, 0].tolist() == expected.tolist() and rows[:, 1].tolist() == [1] * count
        assert each["score"] == pytest.approx(100 * expected.mean()) and each["pictures"] == count
        assert len(each["right"]) == 2 * math.ceil(count / 8)


def test_the_bootstrap_is_that_of_the_pictures_themselves(tmp_path):
    statistics, (first, second) = two_classifiers(tmp_path, 301, 0.80, 0.74)
    found = bootstrap_of_means(KIND, *([each] for each in statistics), samples=400)
    drawn = np.random.default_rng(SEED).choice(301, size=(400, 301), replace=True)
    differences = 100 * (first[drawn].mean(1) - second[drawn].mean(1))
    beyond = np.sum(abs(differences - differences.mean()) >= 100 * abs(first.mean() - second.mean()))
    assert found.difference == pytest.approx(100 * (first.mean() - second.mean()))
    assert found.p_value == pytest.approx((beyond + 1) / 401)
    assert 0.005 < found.p_value < 1, "a test of nothing"


def test_means_over_seeds_are_compared_on_the_same_pictures(tmp_path):
    (first, second), (right, wrong) = two_classifiers(tmp_path, 301, 0.80, 0.72)
    (third, fourth), (other_right, other_wrong) = two_classifiers(tmp_path, 301, 0.78, 0.77, trained_with=1)
    found = bootstrap_of_means(KIND, [first, third], [second, fourth], samples=400)
    drawn = np.random.default_rng(SEED).choice(301, size=(400, 301), replace=True)
    means = [
        (one[drawn].mean(1) + other[drawn].mean(1)) / 2 for one, other in ((right, other_right), (wrong, other_wrong))
    ]
    difference = (right.mean() + other_right.mean() - wrong.mean() - other_wrong.mean()) / 2
    differences = means[0] - means[1]
    assert found.difference == pytest.approx(100 * difference)
    beyond = np.sum(abs(differences - differences.mean()) >= abs(difference))
    assert found.p_value == pytest.approx((beyond + 1) / 401)
    assert 0.003 < found.p_value < 1, "a test of nothing"
    (others, _), _ = two_classifiers(tmp_path, 50)
    with pytest.raises(ValueError, match="same references"):
        bootstrap_of_means(KIND, [first, others], [second, fourth])


def test_a_clear_difference_is_significant_and_none_is_not(tmp_path):
    (better, worse), _ = two_classifiers(tmp_path, 1000, 0.9, 0.8)
    assert bootstrap_of_means(KIND, [better], [worse]).p_value < 0.01
    assert bootstrap_of_means(KIND, [better], [better]).p_value == 1
    assert bootstrap_of_means(KIND, [worse], [better]).difference == pytest.approx(worse["score"] - better["score"])


def test_only_classifiers_of_the_same_pictures_are_compared(tmp_path):
    (first, _), _ = two_classifiers(tmp_path, 50)
    (others, _), _ = two_classifiers(tmp_path, 50, seed=1)
    held_out = accuracy_statistics(tmp_path / "0.tsv", "validation")
    for other in (others, held_out):
        assert not comparable(first, other)
        with pytest.raises(ValueError, match="same references"):
            bootstrap_of_means(KIND, [first], [other])
