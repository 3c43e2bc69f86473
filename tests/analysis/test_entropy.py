"""Row statistics: known closed forms, and sums over batches equal to one computation over all weights."""

import math

import pytest
import torch

from reluformer.analysis.entropy import RowStatistics
from reluformer.configuration.errors import UserError


def statistics_of(weights, visible, margin=0.7):
    statistics = RowStatistics(margin)
    statistics.update("cross", 0, weights, visible)
    return {row["head"]: row for row in statistics.table() if row["layer"] == 1}


def test_equal_weights_have_the_entropy_log_n():
    visible = torch.ones(5, 8, dtype=torch.bool)
    visible[:, 6:] = False
    weights = torch.full((5, 2, 8), 0.25)  # what stands at hidden keys must not count
    row = statistics_of(weights, visible)["all"]
    assert row["entropy"] == pytest.approx(math.log(6))
    assert row["uniform_entropy"] == pytest.approx(math.log(6))
    assert row["above_margin_fraction"] == 1
    assert row["row_sum"] == pytest.approx(1.5)
    assert (row["rows"], row["dead_row_fraction"], row["zero_fraction"]) == (10, 0, 0)


def test_dead_rows_and_zeros_are_counted_by_head():
    weights = torch.ones(4, 2, 3)
    weights[:3, 0] = 0
    weights[3, 1, 2] = 0
    visible = torch.ones(4, 3, dtype=torch.bool)
    visible[3, 2] = False
    rows = statistics_of(weights, visible)
    assert rows[1]["dead_row_fraction"] == 0.75
    assert rows[2]["dead_row_fraction"] == 0
    assert rows["all"]["dead_row_fraction"] == 0.375
    assert rows[1]["zero_fraction"] == pytest.approx(9 / 11)
    assert rows[2]["zero_fraction"] == 0  # the one zero is at a key that cannot be seen
    # Dead rows count as 0 in one column and not at all in the other.
    assert rows[1]["entropy"] == pytest.approx(math.log(2) / 4)
    assert rows[1]["entropy_of_live_rows"] == pytest.approx(math.log(2))


def test_only_dead_rows_have_no_entropy_of_live_rows():
    row = statistics_of(torch.zeros(2, 1, 3), torch.ones(2, 3, dtype=torch.bool))["all"]
    assert row["entropy_of_live_rows"] is None
    assert (row["entropy"], row["dead_row_fraction"]) == (0, 1)


def test_batches_sum_to_the_direct_computation():
    torch.manual_seed(0)
    weights = torch.relu(torch.randn(60, 3, 9) - 0.8)
    visible = torch.rand(60, 9) < 0.7
    visible[:, 0] = True
    statistics = RowStatistics(0.4)
    for part, seen in zip(weights.split(7), visible.split(7), strict=True):
        statistics.update("encoder_self", 1, part, seen)
        statistics.update("encoder_self", 0, part, seen)
    [row] = [row for row in statistics.table() if row["layer"] == 2 and row["head"] == 2]

    entropies, dead, zeros, seen_weights, sums, above = [], 0, 0, 0, [], 0
    for values, seen in zip(weights[:, 1].double(), visible, strict=True):
        values = values[seen]
        zeros, seen_weights = zeros + int((values == 0).sum()), seen_weights + len(values)
        sums.append(float(values.sum()))
        p = values[values > 0] / values.sum()
        entropies.append(float(-(p * p.log()).sum()))
        dead += sums[-1] == 0
        above += entropies[-1] > 0.4 * math.log(len(values)) + 1e-9
    assert 0 < dead < 60
    assert row["rows"] == 60
    assert row["entropy"] == pytest.approx(sum(entropies) / 60, abs=1e-12)
    assert row["entropy_of_live_rows"] == pytest.approx(sum(entropies) / (60 - dead), abs=1e-12)
    assert row["dead_row_fraction"] == dead / 60
    assert row["zero_fraction"] == pytest.approx(zeros / seen_weights, abs=1e-12)
    assert row["row_sum"] == pytest.approx(sum(sums) / 60, abs=1e-6)
    assert row["above_margin_fraction"] == above / 60


def test_negative_weights_are_refused():
    with pytest.raises(UserError, match="cross attention, layer 1 has negative weights"):
        statistics_of(torch.tensor([[[1.0, -0.1]]]), torch.ones(1, 2, dtype=torch.bool))
