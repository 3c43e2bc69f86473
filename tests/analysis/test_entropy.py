"""Row statistics, entropy shares and top-p% sums: closed forms, and sums over batches equal to one computation by
hand."""

import math

import pytest
import torch

from reluformer.analysis.collection import CROSS, DECODER_SELF, AttentionRows, HeadSums
from reluformer.analysis.entropy import entropy_table, share_table
from reluformer.analysis.top_p import PERCENTAGES, add_rows, negative_modules, top_p_table
from reluformer.configuration.errors import UserError


def of_layer(table, layer=1):
    return {row["head"]: row for row in table if row["layer"] == layer}


def statistics_of(weights, visible):
    return of_layer(entropy_table([AttentionRows(CROSS, 0, weights, visible)]))


def test_equal_weights_have_the_entropy_log_n():
    visible = torch.ones(5, 8, dtype=torch.bool)
    visible[:, 6:] = False
    weights = torch.full((5, 2, 8), 0.25)  # what stands at hidden keys must not count
    row = statistics_of(weights, visible)["all"]
    assert row["entropy"] == row["uniform_entropy"] == pytest.approx(math.log(6))
    assert row["row_sum"] == pytest.approx(1.5)
    assert (row["rows"], row["dead_row_fraction"], row["zero_fraction"]) == (10, 0, 0)
    dead = statistics_of(torch.zeros(2, 1, 8), visible[:2])["all"]
    assert (dead["entropy"], dead["entropy_of_live_rows"], dead["zero_fraction"]) == (0, None, 1)


def random_rows():
    """Weights, what is visible, and both cut into batches of two layers."""
    torch.manual_seed(0)
    weights, visible = torch.relu(torch.randn(60, 3, 9) - 0.8), torch.rand(60, 9) < 0.7
    visible[:, 0] = True
    parts = zip(weights.split(7), visible.split(7), strict=True)
    return weights, visible, [AttentionRows("encoder_self", layer, *part) for part in parts for layer in (1, 0)]


def test_batches_sum_to_the_direct_computation():
    weights, visible, rows = random_rows()
    row = of_layer(entropy_table(rows), layer=2)[2]
    entropies, zeros, sums = [], 0, []
    for values, seen in zip(weights[:, 1].double(), visible, strict=True):
        values = values[seen]
        zeros += int((values == 0).sum())
        sums.append(float(values.sum()))
        p = values[values > 0] / values.sum()
        entropies.append(float(-(p * p.log()).sum()))
    dead = sums.count(0)
    assert 0 < dead < 60 == row["rows"]
    assert row["entropy"] == pytest.approx(sum(entropies) / 60, abs=1e-12)
    assert row["entropy_of_live_rows"] == pytest.approx(sum(entropies) / (60 - dead), abs=1e-12)
    assert row["dead_row_fraction"] == dead / 60
    assert row["zero_fraction"] == pytest.approx(zeros / int(visible.sum()), abs=1e-12)
    assert row["row_sum"] == pytest.approx(sum(sums) / 60, abs=1e-6)


def test_negative_weights_are_refused():
    for table in (entropy_table, share_table):
        with pytest.raises(UserError, match="cross attention, layer 1 has negative weights"):
            table([AttentionRows(CROSS, 0, torch.tensor([[[1.0, -0.1]]]), torch.ones(1, 2).bool())])


# entropy-share


def test_heads_between_the_quarters_marks():
    # equal weights of 2, 4, 8 and 16 keys of 32: 1, 2, 3 and 4 fifths of the maximum
    weights = torch.stack([(torch.arange(32) < keys).float() for keys in (2, 4, 8, 16)])
    table = of_layer(share_table([AttentionRows(DECODER_SELF, 0, weights.unsqueeze(0), torch.ones(1, 32).bool())]))
    for head in (1, 2, 3, 4):
        assert table[head]["entropy_share"] == pytest.approx(head / 5) and table[head][f"quarter_{head}"] == 1


@pytest.mark.parametrize("cut", [1, 2])  # between the batches; 1: two rows of different n are in one
def test_entropy_shares_by_hand(cut):
    # row 1 sees one key and does not count; row 2 equal weights; row 3 one key of three; a head that is dead, and one
    # with NaN
    visible = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]]).bool()
    good = torch.tensor([[2.0, 9, 9], [3, 3, 9], [0, 5, 0]])
    dead, broken = torch.zeros(3, 3), good.clone()
    broken[2, 1] = float("nan")
    weights = torch.stack([good, dead, broken], dim=1)
    batches = [AttentionRows(DECODER_SELF, 0, weights[part], visible[part]) for part in (slice(0, cut), slice(cut, 3))]
    table = of_layer(share_table(batches))
    assert table[1]["rows"] == 2 and table[1]["entropy_share"] == pytest.approx(0.5) and table[1]["quarter_3"] == 1
    assert table[2]["entropy_share"] == 0 and table[2]["quarter_1"] == 1
    assert table[3]["rows"] == 1 and table[3]["entropy_share"] == pytest.approx(1) and table[3]["nan_count"] == 1
    assert [table["all"][f"quarter_{n}"] for n in (1, 2, 3, 4)] == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])


def test_a_head_without_a_row_that_counts_is_in_no_quarter():
    """Its weights are all NaN; the mean over the heads is that of the other one."""
    visible, good = torch.ones(2, 2).bool(), torch.ones(2, 2)
    weights = torch.stack([good, torch.full((2, 2), float("nan"))], dim=1)
    table = of_layer(share_table([AttentionRows(DECODER_SELF, 0, weights, visible)]))
    assert table[2]["rows"] == 0 and table[2]["entropy_share"] is None and table[2]["quarter_1"] is None
    assert table["all"]["entropy_share"] == 1 and table["all"]["quarter_1"] == 0 and table["all"]["quarter_4"] == 1


# top-p


def sums_of(scores, visible=None):
    sums = HeadSums()
    add_rows(sums, CROSS, 0, scores, visible)
    return {row["p_percent"]: row for row in top_p_table(sums) if row["layer"] == "all"}


def test_the_largest_of_equal_scores_hold_p():
    visible = torch.ones(3, 7, dtype=torch.bool)
    visible[0, 2:] = False
    rows = sums_of(torch.full((3, 2, 7), 0.3), visible)
    assert tuple(rows) == PERCENTAGES
    for p, row in rows.items():
        assert row["score_sum"] == pytest.approx(p / 100, abs=1e-12)


def test_dead_rows_are_left_out():
    row = sums_of(torch.eye(4)[:, :1].expand(4, 5).unsqueeze(1))[50]
    assert row["rows"] == 1 and row["score_sum"] == pytest.approx(0.5)
    assert sums_of(torch.zeros(4, 1, 5))[50]["score_sum"] is None


def test_top_p_of_batches_is_the_direct_computation():
    weights, visible, rows = random_rows()
    sums = HeadSums()
    for module, layer, part, seen in rows:
        add_rows(sums, module, layer, part, seen)
    [row] = [row for row in top_p_table(sums) if (row["layer"], row["head"], row["p_percent"]) == (2, 2, 20)]
    held = []
    for values, seen in zip(weights[:, 1].double(), visible, strict=True):
        values = values[seen].sort(descending=True).values
        if values.sum() > 0:
            count = 0.2 * len(values)
            rest = (count - int(count)) * values[int(count)]
            held.append(float((values[: int(count)].sum() + rest) / values.sum()))
    assert row["score_sum"] == pytest.approx(sum(held) / len(held), abs=1e-12)
    assert row["rows"] == len(held)


def test_memories_have_no_heads_and_a_module_with_negative_scores_is_left_out_whole():
    sums = HeadSums()
    for module, layer, sign in (("encoder_ffn", 0, 1), ("decoder_ffn", 0, 1), ("decoder_ffn", 1, -1)):
        add_rows(sums, module, layer, sign * torch.ones(3, 1, 20))
    assert negative_modules(sums) == ["decoder_ffn"]
    places = [(row["module"], row["layer"], row["head"]) for row in top_p_table(sums) if row["p_percent"] == 10]
    assert places == [("encoder_ffn", "all", "all"), ("encoder_ffn", 1, "all")]
