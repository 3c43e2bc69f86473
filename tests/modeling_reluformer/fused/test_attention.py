"""`relu_attention` against the float64 reference, forward and backward, on the blockwise and on the plain path."""

import math
from itertools import product

import pytest
import torch
from torch.autograd import forward_ad

import reluformer.modeling_reluformer.fused.attention as fused
import reluformer.modeling_reluformer.fused.blockwise as blockwise
from reluformer import relu_attention
from reluformer.modeling_reluformer.attention_activations import NON_NEGATIVE, POINTWISE
from reluformer.modeling_reluformer.fused.compiled.library import python_loop
from reluformer.modeling_reluformer.visibility_reluformer import Visibility

from .cases import (
    LENGTHS,
    TOLERANCE,
    WIDTHS,
    Inputs,
    assert_a_value_that_is_not_finite_reaches_every_query_that_sees_it,
    assert_equals_reference,
    assert_nothing_is_read_before_it_is_written,
    gradients,
    masks,
    random_inputs,
    reference,
    relative_error,
)


@pytest.fixture(autouse=True)
def in_python():
    """The compiled operator has tests of its own, compiled/test_loop.py."""
    with python_loop():
        yield


@pytest.fixture(params=["blocks", "plain"])
def path(request, monkeypatch) -> str:
    """Forces one of the two paths; blocks are small, so that every problem has several."""
    use_path(monkeypatch, request.param)
    return request.param


@pytest.fixture
def blocks(monkeypatch) -> None:
    use_path(monkeypatch, "blocks")


def use_path(monkeypatch, path: str) -> None:
    monkeypatch.setattr(fused, "_is_small", lambda *call: path == "plain")
    monkeypatch.setattr(blockwise, "BYTES_PER_BLOCK", 0)
    monkeypatch.setattr(blockwise, "SMALLEST_BLOCK", 24)


@pytest.mark.parametrize("activation", POINTWISE)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (15, 15), (57, 57), (33, 65), (40, 9), (1, 20)])
def test_equals_reference(path, activation, queries, keys):
    torch.manual_seed(queries)
    statistics = "sum+entropy" if activation in NON_NEGATIVE else "none"
    for mask in masks(2, queries, keys):
        assert_equals_reference(random_inputs(queries=queries, keys=keys), mask, activation, statistics)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_length(length, dtype):
    """As it comes: small ones are plain, large ones in blocks of the usual size, on all threads."""
    inputs = random_inputs(batch=1, heads=3, queries=length, head_dim=32, dtype=dtype)
    for mask in ({}, {"causal": True}):
        assert_equals_reference(inputs, mask)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_width(path, width):
    for dtype in TOLERANCE:
        assert_equals_reference(random_inputs(queries=65, keys=70, head_dim=width, dtype=dtype), {"causal": True})


@pytest.mark.parametrize("statistics", ["none", "sum", "sum+entropy"])
def test_grouped_keys_and_a_row_scale_of_one_head(path, statistics):
    inputs = random_inputs(heads=6, key_heads=2, queries=50, keys=61)
    shared = inputs._replace(row_scale=inputs.row_scale[:, :1])
    for mask in masks(2, 50, 61):
        assert_equals_reference(shared, mask, statistics=statistics)


def test_strided_inputs(path):
    # heads side by side in memory, as projections give them, and every second feature of a wider tensor
    inputs = random_inputs(queries=50)
    query = inputs.query.transpose(1, 2).contiguous().transpose(1, 2)
    key = torch.stack([inputs.key, inputs.key], dim=-1).flatten(-2)[..., ::2]
    assert_equals_reference(
        Inputs(query, key, inputs.value.expand_as(inputs.value), inputs.row_scale), {"causal": True}
    )


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_packed_sequences_equal_their_parts(path, activation):
    torch.manual_seed(0)
    query_lengths, key_lengths = (30, 0, 1, 26), (31, 4, 0, 26)
    inputs = random_inputs(batch=1, queries=sum(query_lengths), keys=sum(key_lengths))
    ends = [torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (query_lengths, key_lengths)]
    real = torch.rand(1, sum(key_lengths)) < 0.7
    for causal, mask in product((False, True), (None, real)):
        options = {"causal": causal, "activation": activation, "statistics": "sum+entropy"}
        whole, parts = inputs.leaves(), inputs.leaves()
        packed = {"cu_seqlens_q": ends[0], "cu_seqlens_k": ends[1], "key_padding_mask": mask}
        found = relu_attention(*whole[:3], row_scale=whole[3], **packed, **options)
        pieces = []
        for number in range(len(query_lengths)):
            rows, columns = (slice(int(end[number]), int(end[number + 1])) for end in ends)
            query, key, value = parts.query[:, :, rows], parts.key[:, :, columns], parts.value[:, :, columns]
            row = {
                "row_scale": parts.row_scale[:, :, rows],
                "key_padding_mask": None if mask is None else mask[:, columns],
            }
            pieces.append(relu_attention(query, key, value, **row, **options))
        expected = tuple(torch.cat(items, dim=2) for items in zip(*pieces, strict=True))
        for one, other in zip(
            (*found, *gradients(found, whole)), (*expected, *gradients(expected, parts)), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_gradcheck_away_from_the_kink(blocks):
    torch.manual_seed(3)
    inputs = random_inputs(1, 2, 18, 9, 4).leaves()
    assert ((inputs.query / 2) @ inputs.key.transpose(-1, -2)).abs().min() > 1e-4  # finite differences must not cross 0

    def function(query, key, value, row_scale):
        return relu_attention(
            query, key, value, row_scale=row_scale, causal=True, query_offset=-9, statistics="sum+entropy"
        )

    assert torch.autograd.gradcheck(function, tuple(inputs), eps=1e-6)


def test_dead_rows_are_zero_with_zero_gradients(path):
    inputs = random_inputs(queries=40)
    key = inputs.key.abs() + 0.1
    query = inputs.query.abs() + 0.1
    query[:, :, :20] *= -1  # their scores are all negative
    leaves = inputs._replace(query=query, key=key).leaves()
    found = relu_attention(*leaves[:3], row_scale=leaves[3], statistics="sum+entropy")
    grad_query, *others = gradients(found, leaves)
    for item in (*found, grad_query, *others):
        assert item.isfinite().all()
    for item in (*found, grad_query):
        assert (item[:, :, :20] == 0).all()
    assert (found[1][:, :, 20:] > 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_nan_stays_nan(path, dtype):
    inputs = random_inputs(queries=40).leaves(dtype)
    without = relu_attention(*inputs[:3], row_scale=inputs[3], statistics="sum+entropy")
    with torch.no_grad():
        inputs.query[0, 0, 7, 0] = math.nan
    found = relu_attention(*inputs[:3], row_scale=inputs[3], statistics="sum+entropy")
    for item, usual in zip(found, without, strict=True):
        assert item[0, 0, 7].isnan().all()
        torch.testing.assert_close(item[0, 1], usual[0, 1])
        torch.testing.assert_close(item[0, 0, :7], usual[0, 0, :7])
    assert gradients(found, inputs)[1][0, 0].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_nan_in_a_key_reaches_every_query_that_sees_it(path, dtype):
    inputs = random_inputs(queries=40).leaves(dtype)
    with torch.no_grad():
        inputs.key[0, 0, 7, 0] = math.nan
    for item in relu_attention(*inputs[:3], row_scale=inputs[3], statistics="sum+entropy", causal=True):
        assert item[0, 0, 7:].isnan().all()
        assert item[0, 1].isfinite().all() and item[0, 0, :7].isfinite().all()


def test_a_value_that_is_not_finite_reaches_every_query_that_sees_it(path):
    assert_a_value_that_is_not_finite_reaches_every_query_that_sees_it(40, torch.float64)


def test_gradient_of_stride_zero(path):
    inputs = random_inputs(queries=40)
    one, other = inputs.leaves(), inputs.leaves()
    relu_attention(*one[:3], row_scale=one[3]).sum().backward()
    (relu_attention(*other[:3], row_scale=other[3]) * torch.ones(2, 2, 40, 8)).sum().backward()
    for first, second in zip(one, other, strict=True):
        torch.testing.assert_close(first.grad, second.grad)


def test_nothing_is_read_before_it_is_written(blocks):
    assert_nothing_is_read_before_it_is_written(50, 61)


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0), (0, 0)])
def test_empty_sequences(path, queries, keys):
    inputs = random_inputs(queries=queries, keys=keys).leaves()
    found = relu_attention(*inputs[:3], row_scale=inputs[3], statistics="sum+entropy")
    assert [item.shape for item in found] == [(2, 2, queries, 8), (2, 2, queries), (2, 2, queries)]
    assert all((item == 0).all() for item in (*found, *gradients(found, inputs)))


def test_backward_is_repeatable(blocks):
    inputs = random_inputs(queries=300, dtype=torch.float32).leaves()
    found = relu_attention(*inputs[:3], row_scale=inputs[3], statistics="sum+entropy", dropout_p=0.1)
    loss = sum(item.sum() for item in found)
    one, other = (torch.autograd.grad(loss, inputs, retain_graph=True) for _ in range(2))
    assert all(torch.equal(first, second) for first, second in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mask", [{}, {"causal": True}], ids=["full", "causal"])
def test_half_precision_errs_no_more_than_the_plain_computation(blocks, dtype, mask):
    inputs = random_inputs(batch=1, queries=257, head_dim=64, dtype=dtype)
    names = ("output", "S", "T", "query", "key", "value", "row_scale")
    exact, plain, found = inputs.leaves(torch.float64), inputs.leaves(), inputs.leaves()
    visibility = Visibility(causal=bool(mask))
    expected = reference(exact, visibility, "relu", "sum+entropy")
    usual = reference(plain, visibility, "relu", "sum+entropy")
    ours = relu_attention(*found[:3], row_scale=found[3], statistics="sum+entropy", **mask)
    columns = zip(
        names,
        (*expected, *gradients(expected, exact)),
        (*usual, *gradients(usual, plain)),
        (*ours, *gradients(ours, found)),
        strict=True,
    )
    limit = 0.01 if dtype == torch.bfloat16 else 0.005
    for name, truth, rival, result in columns:
        assert result.dtype == rival.dtype
        error = relative_error(result, truth)
        assert error <= max(2 * relative_error(rival, truth), 1e-6) and error < limit, f"{name}: {error:.1e}"


def test_dropout_is_the_same_in_forward_and_backward(path):
    torch.manual_seed(0)
    inputs = random_inputs(batch=1, heads=2, queries=60, head_dim=8)
    value = torch.eye(60, dtype=torch.float64).expand(1, 2, 60, 60)
    query, key, value, row_scale = inputs._replace(value=value).leaves()
    sees_all = relu_attention(query, key, value, row_scale=row_scale)
    found, row_sum = relu_attention(query, key, value, row_scale=row_scale, dropout_p=0.4, statistics="sum")
    torch.testing.assert_close(row_sum, sees_all.sum(-1))  # the statistics are those before dropout
    ratio = (found / sees_all)[sees_all > 0]
    assert set(ratio.detach().round(decimals=9).unique().tolist()) == {0.0, round(1 / 0.6, 9)}
    assert abs(float((ratio == 0).double().mean()) - 0.4) < 0.05
    assert not torch.equal(found[0, 0] == 0, found[0, 1] == 0)
    # with the identity for values, d(sum of outputs)/d(value) is the sum over queries of the dropped weights
    grad_query, grad_value = torch.autograd.grad(found.sum(), (query, value))
    torch.testing.assert_close(grad_value[0, 0, :, 0], found[0, 0].sum(0))
    mask = (found.detach() / sees_all.detach().clamp_min(1e-30)).round(decimals=6)
    expected = torch.autograd.grad((sees_all * mask).sum(), query)[0]
    torch.testing.assert_close(grad_query, expected, rtol=1e-4, atol=1e-6)


def test_dropout_follows_the_seed(path):
    inputs = random_inputs(queries=60)

    def draw(seed):
        torch.manual_seed(seed)
        return relu_attention(*inputs[:3], row_scale=inputs[3], dropout_p=0.3)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


@pytest.mark.parametrize(
    ("name", "words"),
    [("is_causal", "; give causal=True"), ("attn_mask", "key_padding_mask.*ReLUAttention"), ("foo", "\\.$")],
)
def test_arguments_of_other_functions_are_refused_with_the_name_here(name, words):
    with pytest.raises(TypeError, match=f"relu_attention has no argument '{name}'.*{words}"):
        relu_attention(*random_inputs(1, 2, 5, 7, 4)[:3], gamma=1.0, **{name: True})


def test_what_is_not_supported_is_refused():
    query, key, value, row_scale = random_inputs(1, 2, 5, 7, 4)
    ends = torch.tensor([0, 5], dtype=torch.int32)

    def refused(words, *tensors, **options):
        tensors = tensors or (query, key, value)
        with pytest.raises(ValueError, match=words):
            relu_attention(*tensors, **{"row_scale": row_scale, **options})

    refused("'softmax' needs whole rows of scores", activation="softmax")
    refused("\\['relu'\\] needs whole rows of scores", activation=["relu"])
    refused("statistics='all' is unknown; choose one of none, sum, sum\\+entropy", statistics="all")
    refused(
        "statistics='sum' needs weights that are never negative .* 'gelu' can be", activation="gelu", statistics="sum"
    )
    for given in (1.0, -0.1, float("nan"), "0.1", None, True):
        refused(f"dropout_p={given!r} must be a number that lies in", dropout_p=given)
    for given in (0, 0.0, float("nan"), float("inf"), "1", True):
        refused(f"scale={given!r} must be a finite number other than 0", scale=given)
    refused("scale=a tensor torch.float32 \\(\\) must be", scale=torch.tensor(1.0))
    for given in (1, None, "no"):
        refused(f"causal={given!r} must be True or False", causal=given)
    for given in (True, 1.0, None, 2**63, -(2**63) - 1):
        refused(f"query_offset={given!r} must be an int within 64 bits", query_offset=given)
    for given in (torch.tensor(1.0), torch.tensor([1]), torch.tensor(True)):
        refused("query_offset=a tensor .* must be an int", query_offset=given)
    refused("do not fit: expected", query, key[:, :, :3], value)
    refused("do not fit: expected", query[:, :1], key, value)
    refused("must share one floating dtype; got torch.float64, torch.float32", query, key.float(), value)
    refused("row_scale must have the shape .* got \\(1, 2, 4\\)", row_scale=row_scale[..., :4])
    refused("key_padding_mask must be boolean .* got torch.float32", key_padding_mask=torch.ones(1, 7))
    refused("given together", cu_seqlens_q=ends)
    refused("rise from 0 to 7", cu_seqlens_q=ends, cu_seqlens_k=ends)
    for given in ([0, 5], ends.float(), ends > 0, ends[0], ends[None]):
        refused("cu_seqlens_q must be an int32 or int64 tensor", cu_seqlens_q=given, cu_seqlens_k=given)
    refused("cu_seqlens_k must be an int32 or int64 tensor", cu_seqlens_q=ends, cu_seqlens_k=ends.float())


def test_tensors_on_different_devices_are_refused():
    """Plain products with a tensor without numbers would have none either, silently."""
    query, key, value, row_scale = random_inputs(1, 2, 5, 5, 4)
    mask, ends = torch.ones(1, 5, dtype=torch.bool), torch.tensor([0, 5], dtype=torch.int32)
    given = {"key": key, "value": value, "row_scale": row_scale, "key_padding_mask": mask}
    packed = given | {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
    scaled = {"key": key, "value": value, "gamma": torch.tensor(8.0)}
    offset = given | {"causal": True, "query_offset": torch.tensor(1)}
    for arguments in (packed, scaled, offset):
        relu_attention(query, **arguments)
        for name, tensor in arguments.items():
            if isinstance(tensor, torch.Tensor):
                with pytest.raises(ValueError, match=f"query is on cpu and {name} on meta: move"):
                    relu_attention(query, **(arguments | {name: tensor.to("meta")}))


@pytest.mark.parametrize("length", [60, 4096])
def test_float16_holds_sums_that_the_row_scale_makes_small(path, length):
    """Each sum over the keys is beyond float16's 65,504 and each output within it: the scale must come before the sum."""
    query = torch.full((1, 1, length, 8), 8.0)
    value = torch.full_like(query, 10.0)
    row_scale = torch.full((1, 1, length), 1 / (8 * (length / 2) ** 0.5))
    whole = relu_attention(query, query, value, row_scale=row_scale)
    leaves = [tensor.half().requires_grad_() for tensor in (query, query, value)]
    half = relu_attention(*leaves, row_scale=row_scale)
    assert (whole / row_scale.unsqueeze(-1)).min() > 65504 > whole.max()
    # the weights and their sum are each rounded by at most 2**-11
    torch.testing.assert_close(half.float(), whole, rtol=2**-10 * 1.01, atol=0)
    assert all(item.isfinite().all() for item in torch.autograd.grad(half.sum() / length, leaves))


def test_forward_mode_is_refused_where_it_would_be_zero(blocks):
    query, key, value, row_scale = random_inputs()
    with pytest.raises(NotImplementedError, match="dual tensor"):
        torch.func.jvp(lambda query: relu_attention(query, key, value, row_scale=row_scale), (query,), (query,))
    with pytest.raises(NotImplementedError, match="was given a dual tensor"), forward_ad.dual_level():
        relu_attention(query, key, value, row_scale=forward_ad.make_dual(row_scale, row_scale))


def test_without_a_row_scale_it_is_one(path):
    query, key, value, row_scale = random_inputs(queries=40)
    expected = relu_attention(query, key, value, row_scale=torch.ones_like(row_scale))
    torch.testing.assert_close(relu_attention(query, key, value, scaling="none"), expected)
