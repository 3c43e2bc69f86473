"""Top-p% score sums: equal scores hold p%, fractions of an element, masks, dead rows, and batches."""

import pytest
import torch

from reluformer.analysis.top_p import TopPSums


def sums_of(scores, percentages, visible=None):
    sums = TopPSums(percentages)
    sums.update("cross", 0, scores, visible)
    return {row["p_percent"]: row for row in sums.table() if row["layer"] == "all"}


def test_the_largest_of_equal_scores_hold_p():
    visible = torch.ones(3, 7, dtype=torch.bool)
    visible[0, 2:] = False
    rows = sums_of(torch.full((3, 2, 7), 0.3), (0.1, 20, 33.3, 100), visible)
    for p, row in rows.items():
        assert row["score_sum"] == pytest.approx(p / 100, abs=1e-12)
    assert rows[100]["elements"] == pytest.approx((2 + 7 + 7) / 3)


def test_dead_rows_are_left_out_and_counted():
    scores = torch.zeros(4, 1, 5)
    scores[0] = 1
    row = sums_of(scores, (40,))[40]
    assert (row["rows"], row["dead_rows"]) == (1, 3)
    assert row["score_sum"] == pytest.approx(0.4)
    assert sums_of(torch.zeros(4, 1, 5), (40,))[40]["score_sum"] is None


def test_batches_sum_to_the_direct_computation():
    torch.manual_seed(0)
    scores, visible = torch.relu(torch.randn(40, 2, 11)), torch.rand(40, 11) < 0.8
    visible[:, 0] = True
    sums = TopPSums((1.5, 30))
    for part, seen in zip(scores.split(9), visible.split(9), strict=True):
        sums.update("decoder_self", 0, part, seen)
    [row] = [row for row in sums.table() if row["head"] == 2 and row["p_percent"] == 30]

    held = []
    for values, seen in zip(scores[:, 1].double(), visible, strict=True):
        values = values[seen].sort(descending=True).values
        if values.sum() == 0:
            continue
        count = 0.3 * len(values)
        whole = int(count)
        held.append(float((values[:whole].sum() + (count - whole) * values[whole]) / values.sum()))
    assert row["score_sum"] == pytest.approx(sum(held) / len(held), abs=1e-12)
    assert row["rows"] == len(held)


def test_a_memory_has_no_heads():
    sums = TopPSums((10,))
    sums.update("encoder_ffn", 0, torch.ones(3, 1, 20))
    assert [(row["layer"], row["head"]) for row in sums.table()] == [("all", "all"), (1, "all")]


def test_a_module_with_negative_scores_is_left_out_whole():
    sums = TopPSums((10,))
    sums.update("encoder_ffn", 0, torch.ones(3, 1, 20))
    sums.update("encoder_ffn", 1, -torch.ones(3, 1, 20))
    sums.update("cross", 0, torch.ones(3, 1, 20))
    assert sums.negative == {"encoder_ffn": 1}
    assert {row["module"] for row in sums.table()} == {"cross"}
