"""Top-p% score sums: equal scores hold p%, fractions of an element, masks, dead rows, and batches."""

import pytest
import torch

from reluformer.analysis.figure import Subject
from reluformer.analysis.top_p import TopP, TopPSums


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


def test_a_single_score_holds_all_from_one_element_on():
    rows = sums_of(torch.eye(10).unsqueeze(1), (5, 10, 50))
    assert [row["score_sum"] for row in rows.values()] == [pytest.approx(0.5), 1, 1]
    assert rows[5]["elements"] == pytest.approx(0.5)


def test_scores_are_sorted_and_normalised():
    rows = sums_of(torch.tensor([[[1.0, 4.0, 2.0, 3.0]]]), (25, 50, 60))
    assert [row["score_sum"] for row in rows.values()] == pytest.approx([0.4, 0.7, 0.7 + 0.4 * 0.2])


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


@pytest.mark.parametrize(
    ("percentages", "told"), [((5.0, 1.5, 50.0), "1.5% hold cross 1.5%"), ((20.0, 50.0), "20% hold cross 20.0%")]
)
def test_the_line_tells_the_paper_s_percentage_or_the_first(percentages, told):
    figure = TopP(top_p=percentages)
    figure._sums, figure._no_memory = TopPSums(percentages), None
    figure._sums.update("cross", 0, torch.ones(3, 2, 10), None)
    assert figure.take(Subject()).summary == f"the top {told}"
