"""The reference against the formulas written out, and the number of visible keys against the dense mask."""

import math
import sys

import pytest
import torch

from reluformer.modeling_reluformer.attention_reluformer import (
    NON_NEGATIVE,
    POINTWISE,
    Visibility,
    positions_from_padding,
    positions_from_segments,
    reference_attention,
    segments_from_positions,
)
from reluformer.modeling_reluformer.loss_reluformer import row_entropy

from . import paper_formulas


def inputs(batch=2, heads=3, queries=5, keys=7, head_dim=4, dtype=torch.float64):
    query = torch.randn(batch, heads, queries, head_dim, dtype=dtype) * 2
    key, value = (torch.randn(batch, heads, keys, head_dim, dtype=dtype) for _ in range(2))
    return query, key, value, torch.rand(batch, heads, queries, dtype=dtype) + 0.1


@pytest.mark.parametrize("activation", POINTWISE)
def test_reference_is_equation_6_written_out(activation):
    query, key, value, row_scale = inputs()
    mask = torch.rand(2, 1, 5, 7) < 0.7
    result = reference_attention(
        query, key, value, activation=activation, mask=mask, row_scale=row_scale, statistics="sum+entropy"
    )
    for b, h, i in [(0, 0, 0), (1, 2, 4), (0, 1, 3)]:
        weights = []
        for j in range(7):
            score = float(query[b, h, i] @ key[b, h, j]) / math.sqrt(4)
            weights.append(
                float(row_scale[b, h, i]) * paper_formulas.POINTWISE[activation](score) if mask[b, 0, i, j] else 0.0
            )
        expected = sum(weight * value[b, h, j] for j, weight in enumerate(weights))
        torch.testing.assert_close(result.weights[b, h, i], torch.tensor(weights, dtype=torch.float64))
        torch.testing.assert_close(result.output[b, h, i], expected)
        if activation in NON_NEGATIVE:
            total = sum(weights)
            assert float(result.row_sum[b, h, i]) == pytest.approx(total)
            entropy = -sum(w / total * math.log(w / total) for w in weights if w > 0) if total > 0 else 0.0
            assert float(row_entropy(result.row_sum, result.row_sum_log)[b, h, i]) == pytest.approx(entropy, abs=1e-12)


def test_without_a_row_scale_it_is_one():
    query, key, value, row_scale = inputs()
    found = reference_attention(query, key, value, activation="relu")
    expected = reference_attention(query, key, value, activation="relu", row_scale=torch.ones_like(row_scale))
    torch.testing.assert_close(found.output, expected.output)


@pytest.mark.parametrize("activation", ["softmax", "sparsemax", "entmax15"])
def test_normalized_rows_sum_to_one_over_the_visible_keys(activation):
    if activation != "softmax":
        pytest.importorskip("entmax")
    query, key, value, _ = inputs()
    mask = torch.rand(2, 1, 5, 7) < 0.7
    mask[0, 0, 0] = False
    weights = reference_attention(query, key, value, activation=activation, mask=mask).weights
    assert (weights[~mask.expand_as(weights)] == 0).all()
    expected = mask.any(-1).expand(2, 3, 5).double()
    torch.testing.assert_close(weights.sum(-1), expected)
    if activation == "softmax":
        scores = (query / 2) @ key.transpose(-1, -2)
        row = scores[1, 1, 2][mask[1, 0, 2]].softmax(0)
        torch.testing.assert_close(weights[1, 1, 2][mask[1, 0, 2]], row)
    narrow = [tensor.bfloat16() for tensor in (query, key, value)]
    assert reference_attention(*narrow, activation=activation).weights.dtype == torch.bfloat16


def test_unknown_names_are_refused():
    query, key, value, row_scale = inputs()
    with pytest.raises(ValueError, match="'swish' is unknown; choose one of relu"):
        reference_attention(query, key, value, activation="swish")
    with pytest.raises(ValueError, match="row_scale was given for 'softmax'"):
        reference_attention(query, key, value, activation="softmax", row_scale=row_scale)
    with pytest.raises(ValueError, match="'all' is unknown"):
        reference_attention(query, key, value, activation="relu", statistics="all")


def test_missing_entmax_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "entmax", None)
    query, key, value, _ = inputs()
    with pytest.raises(ImportError, match=r"'entmax15' needs the package entmax: pip install entmax"):
        reference_attention(query, key, value, activation="entmax15")


def visibilities(batch, queries, keys):
    left, right = torch.ones(batch, keys, dtype=torch.bool), torch.ones(batch, keys, dtype=torch.bool)
    left[1, : keys // 2] = False
    right[0, keys - keys // 3 :] = False
    query_segments = (torch.arange(queries) * 3 // queries + 1).expand(batch, -1)
    key_segments = (torch.arange(keys) * 3 // keys + 1).expand(batch, -1)
    yield "none", Visibility()
    yield "left", Visibility(left)
    yield "right", Visibility(right)
    yield "causal", Visibility(causal=True, query_offset=keys - queries)
    yield "causal-left", Visibility(left, causal=True, query_offset=keys - queries)
    yield "causal-tensor-offset", Visibility(right, causal=True, query_offset=torch.tensor(1))
    yield "packed", Visibility(query_segments=query_segments, key_segments=key_segments)
    yield "packed-hole", Visibility(left, query_segments=query_segments, key_segments=key_segments)
    if queries == keys:
        own = {"query_segments": key_segments, "key_segments": key_segments}
        yield "packed-causal", Visibility(causal=True, **own)
        yield "packed-causal-hole", Visibility(right, causal=True, **own)
        yield "packed-causal-left", Visibility(left, causal=True, **own)
    yield "given", Visibility(given_mask=torch.rand(batch, 1, queries, keys) < 0.6)


def test_visible_key_counts_equal_the_dense_mask():
    for queries, keys in [(1, 1), (6, 6), (3, 9)]:
        for name, visibility in visibilities(2, queries, keys):
            dense = visibility.dense(queries, keys, torch.device("cpu"))
            dense = torch.ones(2, 1, queries, keys) if dense is None else dense.expand(2, 1, queries, keys)
            expected = dense[:, 0].sum(-1).clamp_min(1).float()
            torch.testing.assert_close(visibility.count(2, queries, keys, torch.device("cpu")), expected, msg=name)


@pytest.mark.parametrize("offset", [-2, 0, 1, 3])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_the_mask_is_the_rule_written_out(offset, as_tensor):
    padding = torch.tensor([[False, True, True, True, False], [True, True, False, True, True]])
    query_segments, key_segments = (
        torch.tensor([[1, 1, 2, 2], [1, 2, 2, 3]]),
        torch.tensor([[1, 1, 2, 2, 2], [1, 2, 3, 3, 3]]),
    )
    given_offset = torch.tensor(offset) if as_tensor else offset
    for real in (None, padding):
        for segments in ((None, None), (query_segments, key_segments)):
            visibility = Visibility(real, True, given_offset, *segments)
            whole = torch.tensor(
                [
                    [
                        [
                            j <= i + offset
                            and (real is None or bool(real[b, j]))
                            and (segments[0] is None or int(segments[0][b, i]) == int(segments[1][b, j]))
                            for j in range(5)
                        ]
                        for i in range(4)
                    ]
                    for b in range(2)
                ]
            )
            mask = visibility.dense(4, 5, padding.device)
            assert whole.all() if mask is None else torch.equal(mask.expand(2, 1, 4, 5)[:, 0], whole)


def test_only_what_hides_something_is_a_mask():
    device = torch.device("cpu")
    assert Visibility(causal=True, query_offset=4).dense(1, 5, device) is None
    assert Visibility(causal=True, query_offset=3).dense(1, 5, device) is not None
    assert (
        Visibility(causal=True, query_offset=torch.tensor(4)).dense(1, 5, device) is not None
    )  # its value is not read


def test_packed_causal_counts_restart_at_each_segment():
    segments = torch.tensor([[1, 1, 1, 2, 2, 3, 0]])
    visibility = Visibility(causal=True, query_segments=segments, key_segments=segments)
    assert visibility.count(1, 7, 7, segments.device).tolist() == [[1, 2, 3, 1, 2, 1, 1]]
    assert positions_from_segments(segments).tolist() == [[0, 1, 2, 0, 1, 0, 0]]
    assert segments_from_positions(torch.tensor([[0, 1, 2, 0, 1, 5, 6]])).tolist() == [[1, 1, 1, 2, 2, 3, 3]]
    assert positions_from_padding(torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]]), 4).tolist() == [
        [0, 0, 0, 1],
        [0, 1, 1, 1],
    ]
