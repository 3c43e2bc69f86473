"""`relu_attention` counts the visible keys itself: `gamma`, `scaling` and `alpha` against the float64 reference."""

from itertools import pairwise, product

import pytest
import torch

import reluformer.modeling_reluformer.fused.attention as fused
import reluformer.modeling_reluformer.fused.blockwise as blockwise
from reluformer import relu_attention
from reluformer.modeling_reluformer.attention_reference import reference_attention
from reluformer.modeling_reluformer.fused.compiled.library import library, python_loop
from reluformer.modeling_reluformer.visibility_reluformer import Visibility, scale_of_rows

from .cases import SCALE, masks, random_inputs, relative_error

SCALINGS = (
    {"gamma": 3.0},
    {"scaling": "length", "alpha": 0.5},
    {"scaling": "length"},
    {"scaling": "length", "alpha": 2},
    {"scaling": "none"},
)
GAMMA_OF_HEADS = torch.tensor([0.5, 2.0, 3.0, 8.0], dtype=torch.float64)


@pytest.fixture(params=["plain", "blocks", "compiled"])
def path(request, monkeypatch):
    """Each of the paths on a CPU; the compiled one computes in float32."""
    if request.param == "compiled":
        operators = library(large=True)
        if operators is None or not operators.supports(torch.float32):
            pytest.skip("the compiled attention cannot be built here, or does not serve this processor")
        monkeypatch.setattr(fused, "_is_small", None)
        monkeypatch.setattr(fused, "operator_for", None)
        yield torch.float32
        return
    monkeypatch.setattr(fused, "_is_small", lambda *call: request.param == "plain")
    monkeypatch.setattr(blockwise, "BYTES_PER_BLOCK", 0)
    with python_loop():
        yield torch.float64


def visible_pairs(
    queries, keys, batch, causal=False, query_offset=0, key_padding_mask=None, cu_seqlens_q=None, cu_seqlens_k=None
):
    """The rule of visibility written out, one pair after the other: boolean (batch, 1, queries, keys)."""
    rows = [(0, queries)] if cu_seqlens_q is None else list(pairwise(cu_seqlens_q.tolist()))
    columns = [(0, keys)] if cu_seqlens_k is None else list(pairwise(cu_seqlens_k.tolist()))
    seen = torch.zeros(batch, 1, queries, keys, dtype=torch.bool)
    for (first, end), (first_key, end_key) in zip(rows, columns, strict=True):
        for i, j in product(range(end - first), range(end_key - first_key)):
            seen[:, :, first + i, first_key + j] = not causal or j <= i + int(query_offset)
    return seen if key_padding_mask is None else seen & key_padding_mask[:, None, None, :]


def expected_scale(seen, gamma=None, scaling="variance", alpha=1.0):
    """Eq. 6 and the scaling by length, (batch, 1 or heads, queries)."""
    count = seen.sum(-1).clamp_min(1).double()
    if scaling == "none":
        return torch.ones_like(count)
    if scaling == "length":
        return count**-alpha
    gamma = torch.as_tensor(gamma, dtype=torch.float64)
    return 1 / (gamma.view(-1, 1) * (count / 2).sqrt())


def assert_equals_reference(inputs, mask, seen, row_scale, dtype, statistics="sum+entropy"):
    """Output, S, T, and the gradients of query, key and value, and of gamma if it is a tensor. seen: of `visible_pairs`."""
    gamma = row_scale.get("gamma")
    leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in inputs[:3]]
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs[:3]]
    found_scale, expected = dict(row_scale), dict(row_scale)
    if isinstance(gamma, torch.Tensor):
        for tensors, options in ((leaves, found_scale), (exact, expected)):
            options["gamma"] = gamma.clone().requires_grad_()
            tensors.append(options["gamma"])
    found = relu_attention(*leaves[:3], **found_scale, **mask, scale=SCALE, statistics=statistics)
    group = inputs.query.shape[1] // inputs.key.shape[1]
    result = reference_attention(
        exact[0],
        *(tensor.repeat_interleave(group, 1) for tensor in exact[1:3]),
        activation="relu",
        mask=seen,
        row_scale=expected_scale(seen, **expected),
        scale=SCALE,
        statistics=statistics,
    )
    wanted = result.output, result.row_sum, result.row_sum_log
    noise = [torch.randn(item.shape, dtype=torch.float64) for item in wanted]
    gradients = [
        torch.autograd.grad(sum((item * one.to(item.dtype)).sum() for item, one in zip(items, noise, strict=True)), of)
        for items, of in ((found, leaves), (wanted, exact))
    ]
    for number, (one, other) in enumerate(zip((*found, *gradients[0]), (*wanted, *gradients[1]), strict=True)):
        assert one.shape == other.shape and one.isfinite().all()
        assert relative_error(one, other) < (1e-12 if dtype == torch.float64 else 2e-5), (number, mask, row_scale)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 20), (15, 15), (19, 33), (27, 9), (17, 1)])
def test_every_mask_and_scaling(path, queries, keys):
    inputs = random_inputs(heads=4, key_heads=2, queries=queries, keys=keys)
    rounded = inputs._replace(query=(inputs.query * 4).round() / 4, key=(inputs.key * 4).round() / 4)
    offsets = (-3, 3, torch.tensor(keys), torch.tensor(-queries - 2, dtype=torch.int32))
    every_mask = [*masks(2, queries, keys), *({"causal": True, "query_offset": offset} for offset in offsets)]
    padding = torch.rand(2, keys) < 0.5
    every_mask += [{**mask, "key_padding_mask": padding} for mask in every_mask if "query_offset" in mask]
    for mask in every_mask:
        seen = visible_pairs(queries, keys, 2, **mask)
        for row_scale in (*SCALINGS, {"gamma": GAMMA_OF_HEADS}):
            assert_equals_reference(rounded, mask, seen, row_scale, path)


def test_packed_sequences(path):
    query_lengths, key_lengths = (9, 0, 1, 12), (11, 4, 0, 12)
    ends = [torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (query_lengths, key_lengths)]
    inputs = random_inputs(batch=1, heads=4, key_heads=2, queries=sum(query_lengths), keys=sum(key_lengths))
    inputs = inputs._replace(query=(inputs.query * 4).round() / 4, key=(inputs.key * 4).round() / 4)
    hidden = torch.rand(1, sum(key_lengths)) < 0.6
    for padding, (causal, offset) in product((None, hidden), ((False, 0), (True, 0), (True, 2), (True, -2))):
        mask = {"cu_seqlens_q": ends[0], "cu_seqlens_k": ends[1], "causal": causal, "query_offset": offset}
        mask |= {} if padding is None else {"key_padding_mask": padding}
        seen = visible_pairs(sum(query_lengths), sum(key_lengths), 1, **mask)
        for row_scale in (*SCALINGS, {"gamma": GAMMA_OF_HEADS}):
            assert_equals_reference(inputs, mask, seen, row_scale, path)


def test_a_causal_row_is_not_scaled_as_if_it_saw_all_keys():
    """What the dense row scale with causal=True computed: another function."""
    query, key, value = random_inputs(queries=12)[:3]
    dense = torch.full((2, 1, 12), 1 / (8 * (12 / 2) ** 0.5), dtype=torch.float64)
    found = relu_attention(query, key, value, gamma=8.0, causal=True)
    other = relu_attention(query, key, value, row_scale=dense, causal=True)
    torch.testing.assert_close(found[:, :, -1], other[:, :, -1])
    assert (found[:, :, 0].abs() > 3 * other[:, :, 0].abs()).any()


@pytest.mark.parametrize("offset", [2**63 - 1, -(2**62), torch.tensor(2**63 - 1), torch.tensor(-(2**63))])
@pytest.mark.parametrize("padded", [False, True])
def test_offsets_beyond_every_key(offset, padded):
    query, key, value = random_inputs(queries=12)[:3]
    mask = {"key_padding_mask": torch.tensor([[True] * 8 + [False] * 4] * 2)} if padded else {}
    found = relu_attention(query, key, value, gamma=8.0, causal=True, query_offset=offset, **mask)
    expected = relu_attention(query, key, value, gamma=8.0, **mask) if offset > 0 else torch.zeros_like(value)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0), (0, 0)])
def test_empty_sequences(queries, keys):
    query, key, value = random_inputs(queries=queries, keys=keys)[:3]
    for mask in ({}, {"causal": True}, {"causal": True, "query_offset": torch.tensor(-2)}):
        padding = {"key_padding_mask": torch.ones(2, keys, dtype=torch.bool)}
        for options in (mask, mask | padding):
            assert relu_attention(query, key, value, gamma=8.0, **options).shape == (2, 2, queries, 8)
    ends = [torch.tensor([0, length], dtype=torch.int32) for length in (queries, keys)]
    one = relu_attention(query[:1], key[:1], value[:1], gamma=8.0, cu_seqlens_q=ends[0], cu_seqlens_k=ends[1])
    assert (one == 0).all()


@pytest.mark.parametrize(
    "mask",
    [
        {"causal": True},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"causal": True, "query_offset": torch.tensor(3)}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_counted_scales_compile_and_export(mask):
    query, key, value = random_inputs(queries=24, keys=30, dtype=torch.float32)[:3]
    padding = torch.rand(2, 30) < 0.7

    class Attention(torch.nn.Module):
        def forward(self, query, key, value, padding):
            return relu_attention(query, key, value, gamma=8.0, key_padding_mask=padding, **mask)

    expected = Attention()(query, key, value, padding)
    compiled = torch.compile(Attention(), fullgraph=True, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(compiled(query, key, value, padding), expected)
    length = torch.export.Dim("length", min=2, max=500)
    keys = torch.export.Dim("keys", min=2, max=500)
    shapes = {"query": {2: length}, "key": {2: keys}, "value": {2: keys}, "padding": {1: keys}}
    exported = torch.export.export(Attention(), (query, key, value, padding), dynamic_shapes=shapes).module()
    torch.testing.assert_close(exported(query, key, value, padding), expected)
    longer = [torch.cat([tensor, tensor], 2) for tensor in (query, key, value)]
    doubled = torch.cat([padding, padding], 1)
    torch.testing.assert_close(exported(*longer, doubled), Attention()(*longer, doubled))


@pytest.mark.slow
def test_packed_scales_compile():
    query, key, value = random_inputs(batch=1, queries=24, dtype=torch.float32)[:3]
    ends = torch.tensor([0, 7, 24], dtype=torch.int32)

    def attend(query, key, value, ends):
        return relu_attention(query, key, value, gamma=8.0, causal=True, cu_seqlens_q=ends, cu_seqlens_k=ends)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(query, key, value, ends), attend(query, key, value, ends))


def test_the_models_count_is_the_same():
    """The visibility of packed segments, which the model uses, and the sequences of `relu_attention`."""
    segments = torch.tensor([[1] * 7 + [2] * 5])
    ends = torch.tensor([0, 7, 12], dtype=torch.int32)
    real = torch.rand(1, 12) < 0.7
    query, key, value = random_inputs(batch=1, queries=12)[:3]
    for causal, mask in product((False, True), (None, real)):
        visible = Visibility(mask, causal, query_segments=segments, key_segments=segments).count(
            1, 12, 12, torch.device("cpu")
        )
        row_scale = scale_of_rows(visible.double().unsqueeze(1), "variance", gamma=8.0)
        packed = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "causal": causal, "key_padding_mask": mask}
        given = relu_attention(query, key, value, row_scale=row_scale, **packed)
        torch.testing.assert_close(relu_attention(query, key, value, gamma=8.0, **packed), given, rtol=0, atol=0)


def test_what_makes_no_row_scale_is_refused():
    query, key, value, row_scale = random_inputs(1, 2, 5, 7, 4)

    def refused(words, **options):
        with pytest.raises(ValueError, match=words):
            relu_attention(query, key, value, **options)

    refused("no scale for its rows; give gamma .* scaling='length', scaling='none', or a row_scale")
    refused("no scale for its rows", row_scale=None)
    refused("row_scale was given together with gamma=8.0", row_scale=row_scale, gamma=8.0)
    refused("row_scale was given together with .* scaling='length'", row_scale=row_scale, scaling="length")
    refused("row_scale was given together with .* alpha=0", row_scale=row_scale, alpha=0)
    refused("scaling='var' is unknown; choose one of variance, length, none", scaling="var", gamma=8.0)
    refused("gamma belongs to scaling='variance', and scaling is 'length'", scaling="length", gamma=8.0)
    refused("alpha belongs to scaling='length', and scaling is 'variance'", gamma=8.0, alpha=1.0)
    for gamma in (0, -1.0, float("nan"), float("inf"), True, "8"):
        refused("gamma=.* must be a finite number above 0", gamma=gamma)
    for alpha in (2.5, -0.5, float("nan"), True, "1"):
        refused("alpha=.* must be a number from 0 to 2", scaling="length", alpha=alpha)
    refused("gamma must be a number, or a floating tensor .* got torch.float32 \\(3,\\)", gamma=torch.ones(3))
    refused("gamma must be a number, or .* got torch.int64 \\(\\)", gamma=torch.tensor(8))
