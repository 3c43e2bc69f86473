"""The compiled operator against the float64 reference, in torch's machinery, and beside the Python loop that it replaces."""

import threading

import pytest
import torch
from torch.autograd import forward_ad

import reluformer.modeling_reluformer.fused.attention as fused
import reluformer.modeling_reluformer.fused.blockwise as blockwise
from reluformer import relu_attention
from reluformer.modeling_reluformer.attention_activations import NON_NEGATIVE, POINTWISE
from reluformer.modeling_reluformer.fused.compiled import library, loop

from ..cases import (
    LENGTHS,
    SCALE,
    WIDTHS,
    Inputs,
    assert_a_value_that_is_not_finite_reaches_every_query_that_sees_it,
    assert_checkpoint_draws_the_same_dropout,
    assert_compiles_without_a_break,
    assert_equals_reference,
    assert_nothing_is_read_before_it_is_written,
    attend,
    gradients,
    masks,
    random_inputs,
    relative_error,
)

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=["avx2", "avx512"])
def extension(request, monkeypatch):
    """Every call goes to the compiled operator, which is built where it does not exist; another one fails."""
    operators = library.library(large=True)
    if operators is None or not operators.supports(torch.float32):
        pytest.skip("the compiled attention cannot be built here, or does not serve this processor")
    sets = operators.attention_instruction_sets()
    if request.param not in sets:
        pytest.skip(f"this processor has {', '.join(sets)}")
    monkeypatch.setattr(fused, "_is_small", None)
    monkeypatch.setattr(fused, "operator_for", None)
    operators.choose_attention_instruction_set(request.param)
    yield operators
    operators.choose_attention_instruction_set(sets[0])


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request, extension) -> torch.dtype:
    if not extension.supports(request.param):
        pytest.skip(f"this processor has no products of {request.param}")
    return request.param


def inputs_of(**sizes) -> Inputs:
    return random_inputs(**{"dtype": torch.float32, **sizes})


# Few queries go without copies of the keys; a tile has 64 queries and 256 keys.
@pytest.mark.parametrize("statistics", ["none", "sum", "sum+entropy"])
@pytest.mark.parametrize(
    ("queries", "keys"),
    [(1, 1), (15, 15), (57, 57), (33, 65), (40, 9), (1, 20), (6, 300), (7, 300), (130, 530), (65, 257), (64, 256)],
)
def test_equals_reference(extension, queries, keys, statistics):
    torch.manual_seed(queries)
    for mask in masks(2, queries, keys):
        assert_equals_reference(inputs_of(queries=queries, keys=keys), mask, statistics=statistics)


@pytest.mark.parametrize("activation", POINTWISE)
@pytest.mark.parametrize(("queries", "keys"), [(1, 20), (5, 33), (40, 9), (33, 65), (70, 270)])
def test_every_activation_is_that_of_the_table(extension, activation, queries, keys):
    torch.manual_seed(queries)
    statistics = "sum+entropy" if activation in NON_NEGATIVE else "none"
    for mask in masks(2, queries, keys):
        assert_equals_reference(inputs_of(queries=queries, keys=keys), mask, activation, statistics)


@pytest.mark.parametrize("activation", POINTWISE)
def test_every_activation_and_its_derivative_over_the_whole_range(extension, activation):
    """One key and one value of 1 for each query: the output is h(x), and the gradient of the query h'(x)."""
    scores = torch.cat([torch.linspace(-105, 105, 4001), torch.linspace(-1e-3, 1e-3, 101), torch.logspace(-38, 3, 200)])
    one = torch.ones(1, 1, 1, 1)
    found = scores.view(1, 1, -1, 1).clone().requires_grad_()
    output = relu_attention(found, one, one, scaling="none", activation=activation, scale=1.0)
    (slope,) = torch.autograd.grad(output.sum(), found)
    exact = scores.double().requires_grad_()
    wanted = POINTWISE[activation].function(exact)
    if activation == "gelu":  # torch's float64 loses the left tail, 1 + erf(x / √2), from x = -8 on
        wanted = 0.5 * exact * torch.special.erfc(-exact * 0.5**0.5)
    (wanted_slope,) = torch.autograd.grad(wanted.sum(), exact)
    for name, one_of, other in (("h", output.flatten(), wanted), ("h'", slope.flatten(), wanted_slope)):
        error = (one_of.detach().double() - other.detach()).abs()
        # float32 holds 2^-24 of a number, exponents up to 87 included, and nothing below its smallest normal number; the
        # derivative of the sigmoid is u (1 - u), of which 1 - u holds 2^-24.
        least = 2**-23 if (activation, name) == ("sigmoid", "h'") else 1e-37
        assert (error <= 2**-17 * other.detach().abs() + least).all(), (name, float(error.max()))


@pytest.mark.parametrize("length", LENGTHS)
def test_every_length(extension, length):
    for mask in ({}, {"causal": True}):
        assert_equals_reference(inputs_of(batch=1, heads=3, queries=length, head_dim=32), mask)


@pytest.mark.parametrize("width", (*WIDTHS, 1, 5, 17))
def test_every_width(extension, width):
    assert_equals_reference(inputs_of(queries=65, keys=70, head_dim=width), {"causal": True})
    assert_equals_reference(inputs_of(queries=3, keys=70, head_dim=width), {"causal": True, "query_offset": 60})


@pytest.mark.parametrize("queries", [40, 3])
def test_values_of_another_width(extension, queries):
    inputs = inputs_of(queries=queries, keys=50, head_dim=16)
    for width in (8, 33, 83):
        wider = inputs._replace(value=torch.randn(2, 2, 50, width))
        assert_equals_reference(wider, {"causal": True})


def test_grouped_keys_shared_row_scales_and_strides(extension):
    inputs = inputs_of(heads=6, key_heads=2, queries=50, keys=61)
    query = inputs.query.transpose(1, 2).contiguous().transpose(1, 2)
    key = torch.stack([inputs.key, inputs.key], dim=-1).flatten(-2)[..., ::2]
    strided = Inputs(query, key, inputs.value, inputs.row_scale[:, :1])
    for mask in masks(2, 50, 61):
        assert_equals_reference(strided, mask)
        assert_equals_reference(strided._replace(query=query[:, :, :2], row_scale=strided.row_scale[:, :, :2]), mask)


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_packed_sequences_equal_their_parts(extension, activation):
    torch.manual_seed(0)
    lengths = (30, 0, 1, 300)
    inputs = inputs_of(batch=1, queries=sum(lengths))
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    for mask in (None, torch.rand(1, sum(lengths)) < 0.7):
        options = {"causal": True, "activation": activation, "statistics": "sum+entropy"}
        packed = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "key_padding_mask": mask}
        whole, parts = inputs.leaves(), inputs.leaves()
        found = relu_attention(*whole[:3], row_scale=whole[3], **packed, **options)
        pieces = []
        for start, stop in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            query, key, value, row_scale = (tensor[:, :, start:stop] for tensor in parts)
            real = None if mask is None else mask[:, start:stop]
            pieces.append(relu_attention(query, key, value, row_scale=row_scale, key_padding_mask=real, **options))
        expected = tuple(torch.cat(items, dim=2) for items in zip(*pieces, strict=True))
        for one, other in zip(
            (*found, *gradients(found, whole)), (*expected, *gradients(expected, parts)), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("queries", [3, 40])
def test_dead_rows_and_nan(extension, queries):
    inputs = inputs_of(queries=queries, keys=40)
    dead = inputs._replace(query=-inputs.query.abs(), key=inputs.key.abs()).leaves()
    found = attend(*dead)
    assert all(not item.any() for item in (*found, *gradients(found, dead)[:3]))
    inputs.key[0, 0, 3] = torch.nan
    for item in attend(*inputs):
        assert item[0, 0].isnan().all() and not item[1].isnan().any()


@pytest.mark.parametrize("queries", [3, 40])
def test_padding_may_hold_anything(dtype, queries):
    """Neither weights nor gradients see what stands where no key is real."""
    inputs = inputs_of(queries=queries, keys=40, dtype=dtype)
    real = torch.rand(2, 40) < 0.6
    results = []
    for filling in (0.0, torch.nan, torch.inf):
        leaves = inputs._replace(
            key=inputs.key.masked_fill(~real[:, None, :, None], filling),
            value=inputs.value.masked_fill(~real[:, None, :, None], filling),
        ).leaves()
        found = attend(*leaves, key_padding_mask=real, activation="sigmoid")
        results.append((*found, *gradients(found, leaves)))
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


@pytest.mark.parametrize("queries", [6, 7])
def test_a_value_that_is_not_finite_reaches_every_query_that_sees_it(dtype, queries):
    assert_a_value_that_is_not_finite_reaches_every_query_that_sees_it(queries, dtype)


@pytest.mark.parametrize("queries", [3, 40])
def test_infinity_stays_where_the_python_loop_has_it(dtype, monkeypatch, queries):
    """An infinite query gives infinite statistics and gradients that are not finite, as in the Python loop."""
    inputs = inputs_of(queries=queries, keys=40, head_dim=16, dtype=dtype)
    inputs.query[0, 0, 2], inputs.key[0, 0] = torch.inf, inputs.key[0, 0].abs() + 0.5
    leaves = inputs.leaves()
    forward = attend(*leaves)
    output, row_sum, row_sum_log, grad_query = *forward, gradients(forward, leaves)[0]
    assert row_sum[0, 0, 2] == torch.inf and not row_sum_log[0, 0, 2].isfinite()
    assert not output[0, 0, 2].isfinite().any() and not grad_query[0, 0, 2].isfinite().any()
    assert output[1].isfinite().all() and grad_query[1].isfinite().all()


def test_bfloat16_errs_no_more_than_the_python_loop(extension, monkeypatch):
    if not extension.supports(torch.bfloat16):
        pytest.skip("this processor has no products of bfloat16")
    torch.manual_seed(0)
    exact = inputs_of(batch=1, queries=300, head_dim=32)
    rounded = Inputs(*(tensor.bfloat16() for tensor in exact[:3]), exact.row_scale)

    def results(leaves: Inputs):
        found = attend(*leaves)
        return *found, *gradients(found, leaves)

    ours = results(rounded.leaves())
    monkeypatch.undo()
    with library.python_loop():
        python, expected = results(rounded.leaves()), results(rounded.leaves(torch.float64))
    for one, other, truth in zip(ours, python, expected, strict=True):
        assert relative_error(one, truth) <= 1.5 * relative_error(other, truth) + 1e-6


@pytest.mark.parametrize("queries", [4, 96, 300])
def test_dropout_is_the_mask_of_the_python_loop(dtype, monkeypatch, queries):
    inputs = inputs_of(heads=4, key_heads=2, queries=queries, keys=300, dtype=dtype)
    keys = torch.tensor([0, 100, 300]).int()
    cases = [{}, {"cu_seqlens_q": keys * queries // 300, "cu_seqlens_k": keys}]

    def results():
        for options in cases:
            tensors = (tensor[: 1 if options else 2] for tensor in inputs)
            leaves = Inputs(*(tensor.detach().requires_grad_() for tensor in tensors))
            torch.manual_seed(3)
            found = attend(*leaves, scale=SCALE, dropout_p=0.3, **options)
            yield from (*found, *gradients(found, leaves))

    ours = list(results())
    monkeypatch.undo()
    monkeypatch.setattr(fused, "_is_small", lambda *call: False)
    monkeypatch.setattr(blockwise, "BYTES_PER_BLOCK", 0)  # several blocks of queries
    with library.python_loop():
        python = list(results())
    for one, other in zip(ours, python, strict=True):
        assert relative_error(one, other) < (1e-5 if dtype == torch.float32 else 2e-2)


def test_dropout_is_one_mask_in_both_passes(dtype):
    """Keys that all score alike: the output is the mask times the values, and the gradient of the values its transpose."""
    p, length = 0.3, 96
    query, key = torch.ones(1, 2, length, 4, dtype=dtype), torch.ones(1, 2, length, 4, dtype=dtype)
    value = torch.eye(length, dtype=dtype).expand(1, 2, -1, -1).clone().requires_grad_()
    torch.manual_seed(5)
    output = relu_attention(query, key, value, scaling="none", scale=0.25, dropout_p=p)
    (gradient,) = torch.autograd.grad(output, value, torch.eye(length, dtype=dtype).expand_as(output))
    torch.testing.assert_close(gradient, output.detach().transpose(-1, -2))  # each is the mask
    output = output.detach()
    torch.testing.assert_close(output.float().unique(), torch.tensor([0.0, 1 / (1 - p)]), rtol=1e-2, atol=0)
    share = (output > 0).double().mean()
    assert abs(share - (1 - p)) < 4 * (p * (1 - p) / output.numel()) ** 0.5
    assert not torch.equal(output[0, 0], output[0, 1])
    torch.manual_seed(6)
    assert not torch.equal(relu_attention(query, key, value, scaling="none", scale=0.25, dropout_p=p), output)


def test_dropout_is_not_correlated_along_rows_or_columns(extension):
    p, length = 0.5, 256
    query = torch.ones(1, 1, length, 4)
    value = torch.eye(length)[None, None]
    torch.manual_seed(0)
    kept = (relu_attention(query, query, value, scaling="none", dropout_p=p)[0, 0] > 0).double() - (1 - p)
    for neighbours in ((kept[1:] * kept[:-1]), (kept[:, 1:] * kept[:, :-1]), (kept[1:, 1:] * kept[:-1, :-1])):
        assert abs(neighbours.mean()) < 4 * p * (1 - p) / neighbours.numel() ** 0.5
    for axis in (0, 1):  # no row and no column is kept more often than chance has it
        assert kept.mean(axis).abs().max() < 5 * (p * (1 - p) / length) ** 0.5


@pytest.mark.parametrize("heads", [4, 1])
def test_threads_change_rounding_at_most_and_stay_as_they_were(extension, heads):
    """With fewer heads than threads, the sums over the queries are cut into ranges."""
    inputs = inputs_of(batch=1, heads=heads, queries=330)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            leaves = inputs.leaves()
            torch.manual_seed(0)
            found = attend(*leaves, dropout_p=0.1)
            results.append((*found, *gradients(found, leaves)))
            again = inputs.leaves()
            torch.manual_seed(0)
            found = attend(*again, dropout_p=0.1)
            assert all(map(torch.equal, results[-1], (*found, *gradients(found, again))))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert torch.equal(one, two) if heads == 4 else relative_error(two, one) < 1e-6


def test_python_threads_at_the_same_time(extension):
    before = torch.get_num_threads()
    inputs = inputs_of(heads=8, queries=70)
    expected = attend(*inputs)
    errors = []

    def call_with(threads: int) -> None:
        try:
            torch.set_num_threads(threads)
            for _ in range(20):
                assert all(map(torch.equal, attend(*inputs), expected))
        except BaseException as error:
            errors.append(error)

    callers = [threading.Thread(target=call_with, args=(threads,)) for threads in (2, 3, 4, 2)]
    try:
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    finally:
        torch.set_num_threads(before)
    assert errors == []


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("threads", [1, 2])
def test_without_gradients(dtype, mode, threads):
    inputs = inputs_of(heads=4, queries=70, dtype=dtype)
    outside = attend(*inputs.leaves(), causal=True)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with mode():
            inside = attend(*inputs, causal=True)
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, inside, outside)) and not inside[0].requires_grad


@pytest.mark.parametrize("statistics", ["none", "sum", "sum+entropy"])
def test_operator_keeps_torchs_rules(extension, statistics):
    """Schema, fake tensors, autograd registration and strides, by torch's own check."""
    inputs = inputs_of(queries=20, keys=31).leaves()
    mask = torch.rand(2, 31) < 0.7
    attention = loop.compiled_attention(inputs.query, inputs.key, "relu")
    options = ("relu", 0.25, True, 3, 0.0, statistics)
    torch.library.opcheck(attention, (*inputs, mask, None, None, None, None, *options))
    offset, seed = torch.tensor(3), torch.tensor(5)
    torch.library.opcheck(attention, (*inputs, mask, None, None, offset, seed, "relu", 0.25, True, 0, 0.2, statistics))


@pytest.mark.parametrize("options", [{}, {"causal": True, "query_offset": torch.tensor(2)}], ids=["full", "offset"])
def test_compiles_without_a_break(extension, options):
    assert_compiles_without_a_break(inputs_of(queries=40).leaves(), **options)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_draws_the_same_dropout(extension, reentrant):
    assert_checkpoint_draws_the_same_dropout(inputs_of(queries=40).leaves(), reentrant)


def test_whole_tiles_with_holes_equal_the_reference(extension):
    """Where nothing is to be padded the caller's memory is read in place, unless keys are hidden."""
    for queries, keys in ((16, 16), (64, 256), (70, 512)):
        inputs = inputs_of(queries=queries, keys=keys, head_dim=32)
        for mask in ({}, {"key_padding_mask": torch.rand(2, keys) < 0.7}):
            for activation in ("relu", "sigmoid"):
                assert_equals_reference(inputs, mask, activation)


@pytest.mark.parametrize("offset", [2**63 - 1, 2**62, -(2**62), torch.tensor(2**63 - 1)])
def test_offsets_beyond_every_sequence(extension, offset):
    inputs = inputs_of(queries=20)
    found = relu_attention(*inputs[:3], row_scale=inputs.row_scale, causal=True, query_offset=offset)
    expected = relu_attention(*inputs[:3], row_scale=inputs.row_scale) * bool(offset > 0)
    assert torch.equal(found, expected)


def test_transforms_of_torch_func_take_the_python_loop(extension, monkeypatch):
    monkeypatch.undo()
    query, key, value, row_scale = inputs_of()

    def total(query):
        return relu_attention(query, key, value, row_scale=row_scale, scale=SCALE).square().sum()

    leaf = query.clone().requires_grad_()
    (expected,) = torch.autograd.grad(total(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(total)(query), expected)


def test_second_and_forward_mode_derivatives_are_refused(extension):
    inputs = inputs_of(queries=20).leaves()
    (first,) = torch.autograd.grad(attend(*inputs)[0].square().sum(), inputs.query, create_graph=True)
    with pytest.raises(NotImplementedError, match="can be differentiated once"):
        first.square().sum().backward()
    query, key, value, row_scale = inputs_of()
    with pytest.raises(NotImplementedError, match="was given a dual tensor"), forward_ad.dual_level():
        relu_attention(query, key, value, row_scale=forward_ad.make_dual(row_scale, row_scale))


def test_autocast_outside_does_not_change_the_products(extension):
    inputs = inputs_of(queries=60)
    expected = attend(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(map(torch.equal, attend(*inputs), expected))


def test_nothing_is_read_before_it_is_written(extension):
    assert_nothing_is_read_before_it_is_written(50, 300, torch.float32)


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0), (40, 0), (0, 0)])
def test_empty_sequences(dtype, queries, keys):
    inputs = inputs_of(queries=queries, keys=keys, dtype=dtype).leaves()
    found = attend(*inputs)
    assert [item.shape for item in found] == [(2, 2, queries, 8), (2, 2, queries), (2, 2, queries)]
    assert all((item == 0).all() for item in (*found, *gradients(found, inputs)))


def test_gradient_of_stride_zero(extension):
    inputs = inputs_of(queries=40)
    one, other = inputs.leaves(), inputs.leaves()
    relu_attention(*one[:3], row_scale=one[3]).sum().backward()
    (relu_attention(*other[:3], row_scale=other[3]) * torch.ones(2, 2, 40, 8)).sum().backward()
    assert all(torch.equal(first.grad, second.grad) for first, second in zip(one, other, strict=True))


def test_wrong_inputs_are_named(extension):
    query, key, value, row_scale = inputs_of()
    for words, tensors, options in (
        ("do not fit: expected", (query, key[:, :, :3], value), {}),
        ("must share one floating dtype; got torch.float32, torch.float64", (query, key.double(), value), {}),
        ("value must be a tensor", (query, key, value[0]), {}),
        ("row_scale must have the shape .* got", (query, key, value), {"row_scale": row_scale[..., :4]}),
        ("row_scale must be a tensor", (query, key, value), {"row_scale": 2.0}),
        ("key_padding_mask must be boolean", (query, key, value), {"key_padding_mask": torch.ones(2, 33)}),
    ):
        with pytest.raises(ValueError, match=words):
            relu_attention(*tensors, **{"row_scale": row_scale, **options})


def test_what_it_does_not_serve(extension):
    for served, tensor, activation in (
        (True, torch.zeros(1, 1, 1, 1), "gelu"),
        (False, torch.zeros(1, 1, 1, 1, dtype=torch.float64), "relu"),
        (False, torch.zeros(1, 1, 1, 1, dtype=torch.float16), "relu"),
        (False, torch.zeros(1, 1, 1, 1), "softmax"),
    ):
        assert (loop.compiled_attention(tensor, tensor, activation) is not None) is served
    with library.python_loop():
        assert loop.compiled_attention(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), "relu") is None


def test_only_a_large_call_builds(monkeypatch):
    """Never one of a `generate` of ten tokens."""
    asked = []
    monkeypatch.setattr(library, "library", lambda large: asked.append(large))
    short, long = (torch.empty(1, 8, length, 1).requires_grad_() for length in (100, 1024))
    for tensor in (short, long):
        loop.compiled_attention(tensor, tensor, "relu")
    with torch.no_grad():
        loop.compiled_attention(long, long, "relu")
    assert asked == [False, True, False]
