"""The table of activations, which keys a query sees, and the reference attention."""

import math
import re

import pytest
import torch

from reluformer.modeling_reluformer.attention_reluformer import (
    NON_NEGATIVE,
    NORMALIZED,
    POINTWISE,
    Visibility,
    positions_from_segments,
    reference_attention,
)
from reluformer.modeling_reluformer.fused.activations import ACTIVATIONS
from reluformer.modeling_reluformer.layers_reluformer import library_mask, token_positions
from reluformer.modeling_reluformer.loss_reluformer import row_entropy
from reluformer.modeling_reluformer.modeling_decoder import packed_segments

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


def test_the_ends_of_segments_are_those_of_both_sides():
    def ends(queries, keys):
        sides = torch.tensor(queries), torch.tensor(keys, dtype=torch.int8)
        return [side.tolist() for side in Visibility(None, False, 0, *sides).segment_ends()]

    assert ends([[1, 2, 2]], [[1, 1, 2, 5]]) == [[0, 1, 3, 3, 3, 3, 3], [0, 2, 3, 3, 3, 4, 4]]
    assert ends([[1, 1, 1, 2]], [[0, 0, 1, 2]]) == [[0, 0, 3, 4], [0, 2, 3, 4]]
    assert ends([[1, 2, 0], [0, 0, 0]], [[1, 2], [0, 0]]) == [[0, 1, 2, 3, 3, 3, 6], [0, 1, 2, 2, 2, 2, 4]]
    for keys in ([[2, 2, 1, 1]], [[1, 1, -1, -1]]):
        with pytest.raises(ValueError, match=re.escape(f"got the segments {keys}")):
            ends([[1, 1, 2, 2]], keys)


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
    for offset, hides in ((4, False), (3, True), (torch.tensor(4), True)):  # the value of a tensor is not read
        assert (Visibility(causal=True, query_offset=offset).dense(1, 5, device) is not None) == hides


def test_packed_causal_counts_restart_at_each_segment():
    segments = torch.tensor([[1, 1, 1, 2, 2, 3, 0]])
    visibility = Visibility(causal=True, query_segments=segments, key_segments=segments)
    assert visibility.count(1, 7, 7, segments.device).tolist() == [[1, 2, 3, 1, 2, 1, 1]]
    assert positions_from_segments(segments).tolist() == [[0, 1, 2, 0, 1, 0, 0]]
    assert packed_segments(torch.tensor([[0, 1, 2, 0, 1, 5, 6]]), None, None).tolist() == [[1, 1, 1, 2, 2, 3, 3]]
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]])
    assert token_positions(4, mask.device, mask, None).tolist() == [[0, 0, 0, 1], [0, 1, 1, 1]]


def scores() -> torch.Tensor:
    """On both sides of every corner, 0 and 6, and past them; none on a corner."""
    return torch.linspace(-9, 9, 360, dtype=torch.float64)


@pytest.mark.parametrize("name", POINTWISE)
def test_the_function_is_that_of_the_papers(name):
    found = POINTWISE[name](scores())
    by_hand = [paper_formulas.POINTWISE[name](float(score)) for score in scores()]
    torch.testing.assert_close(found, torch.tensor(by_hand, dtype=torch.float64), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("name", POINTWISE)
def test_the_derivative_is_that_of_the_function(name):
    leaf = scores().requires_grad_()
    (expected,) = torch.autograd.grad(POINTWISE[name](leaf).sum(), leaf)
    found = ACTIVATIONS[name].backward(torch.ones_like(leaf), scores(), POINTWISE[name](scores()))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", POINTWISE)
def test_its_properties_are_those_of_the_function(name):
    function, activation, zero = POINTWISE[name], ACTIVATIONS[name], torch.zeros(1, dtype=torch.float64)
    weights = function(scores())
    assert (name in NON_NEGATIVE) == bool((weights >= 0).all())
    assert activation.zero_at_zero == bool(function(zero) == 0)
    assert activation.closed_at_zero == (
        activation.zero_at_zero and not activation.backward(zero + 1, zero, function(zero)).any()
    )
    assert activation.homogeneous == torch.allclose(function(3 * scores()), 3 * weights, rtol=1e-12, atol=0)


def test_the_table_names_every_activation():
    assert [*ACTIVATIONS] == [*POINTWISE, *NORMALIZED]
    for activation in ACTIVATIONS.values():
        assert "x_{ij}" in activation.latex and "x_{ij}" not in activation.title


def test_the_masks_of_the_library_s_own_functions():
    """Only `sdpa` takes a whole mask; padding alone, and causality alone, are what all of them know."""
    segments, cpu = torch.tensor([[1, 1, 2]]), torch.device("cpu")
    packed = Visibility(query_segments=segments, key_segments=segments)
    whole = Visibility(given_mask=torch.ones(1, 1, 3, 3, dtype=torch.bool))
    padding = torch.tensor([[True, True, False]])
    for visibility in (packed, whole):
        with pytest.raises(ValueError, match="'sdpa' or 'eager', not 'flash_attention_2'"):
            library_mask("flash_attention_2", visibility, 3, 3, cpu)
        assert torch.equal(library_mask("sdpa", visibility, 3, 3, cpu), visibility.dense(3, 3, cpu))
        assert library_mask("fused", visibility, 3, 3, cpu) is None
    assert library_mask("flash_attention_2", Visibility(padding, causal=True), 3, 3, cpu) is padding
    assert torch.equal(library_mask("sdpa", Visibility(padding), 3, 3, cpu), padding[:, None, None])
    for name in ("sdpa", "flash_attention_2"):
        assert library_mask(name, Visibility(torch.ones_like(padding), causal=True), 3, 3, cpu) is None
    # FlashAttention's function would take a source's padding for that of the queries, and keys to be written for real
    for visibility, cross in (
        (Visibility(padding), True),
        (Visibility(causal=True, query_offset=torch.tensor(2)), False),
    ):
        with pytest.raises(ValueError, match=r"A static cache, and a source with padding .* not 'flash_attention_2'"):
            library_mask("flash_attention_2", visibility, 1, 3, cpu, cross)
    assert library_mask("flash_attention_2", Visibility(torch.ones_like(padding)), 1, 3, cpu, True) is None
    behind_a_cache = Visibility(causal=True, query_offset=2)
    assert torch.equal(library_mask("sdpa", behind_a_cache, 2, 4, cpu), behind_a_cache.dense(2, 4, cpu))
