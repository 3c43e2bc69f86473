"""Theorem 4.1 by simulation."""

import pytest

from reluformer.analysis.variance import simulate_variance
from reluformer.configuration.errors import UserError


def test_the_variance_is_half_of_n():
    for row in simulate_variance((1, 8, 64), samples=20_000, seed=1):
        assert row["expected_variance"] == row["n"] / 2
        assert abs(row["variance"] - row["expected_variance"]) < 4 * row["standard_error"]
        assert 0 < row["standard_error"] < 0.05 * row["n"]
        assert abs(row["mean"]) < 4 * (row["variance"] / 20_000) ** 0.5


def test_small_n_is_far_from_gaussian():
    one, many = simulate_variance((1, 512), samples=20_000)
    assert one["excess_kurtosis"] > 8
    assert abs(many["excess_kurtosis"]) < 0.2


def test_a_row_depends_on_its_own_n_and_the_seed():
    assert simulate_variance((4, 2), samples=100)[1] == simulate_variance((4,), samples=100)[0]
    assert simulate_variance((4,), samples=100) != simulate_variance((4,), samples=100, seed=1)


def test_sizes_are_checked():
    with pytest.raises(UserError, match="--lengths"):
        simulate_variance((0, 2))
    with pytest.raises(UserError, match="--samples: 1"):
        simulate_variance((2,), samples=1)
