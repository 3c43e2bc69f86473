"""Every path of `relu_attention` on a CPU against the float64 reference, forward and backward."""

import math
from itertools import product

import pytest
import torch

from reluformer import relu_attention
from reluformer.modeling_reluformer.attention_reluformer import NON_NEGATIVE, POINTWISE

from .cases import (
    INTERPRETED,
    NAMES,
    SCALE,
    TOLERANCE,
    TRITON,
    Inputs,
    assert_equals_reference,
    by_reference,
    by_relu_attention,
    forced_path,
    masks,
    random_inputs,
    reference,
    relative_error,
    results,
    visible_pairs,
    windows,
)

COMPILED = ["avx2", "avx512"]
PATHS = ["plain", "blocks", *COMPILED, *TRITON]
ALL = "sum+entropy"


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    yield from forced_path(request.param, monkeypatch)


def test_a_seed_on_the_device_draws_the_same_mask(path, monkeypatch):
    """As in a captured graph, which would keep a number."""
    if path.name != "triton":
        pytest.skip("the other paths run on a CPU, or take numbers alone")
    from reluformer.modeling_reluformer.fused import triton_launch

    tensors = [torch.randn(1, 2, 20, 16, requires_grad=True) for _ in range(3)]

    def draw():
        torch.manual_seed(3)
        output, *sums = relu_attention(*tensors, gamma=4.0, dropout_p=0.5, statistics=ALL)
        return output, *torch.autograd.grad(output.square().sum() + sum(map(torch.sum, sums)), tensors)

    expected = draw()
    monkeypatch.setattr(triton_launch, "_is_on_device", lambda seed: True)
    assert all(map(torch.equal, draw(), expected))


# The compiled loop takes up to 6 queries without copies of the keys; its tiles have 128 queries and 256 keys.
@pytest.mark.parametrize(
    ("queries", "keys"),
    [(1, 1), (1, 20), (15, 15), (6, 300), (7, 300), (40, 9), (64, 256), (65, 257), (128, 256), (129, 257), (130, 1030)],
)
def test_every_mask(path, queries, keys):
    if path.is_slow and queries > 65:
        return
    # sixteen features in whole tiles are read where they are, if no key is hidden
    inputs = random_inputs(queries=queries, keys=keys, head_dim=16 if keys == 256 else 8, dtype=path.dtype)
    for mask in masks(2, queries, keys):
        assert_equals_reference(inputs, mask)


@pytest.mark.parametrize(("queries", "keys"), [(1, 20), (6, 300), (40, 9), (65, 257), (130, 1030)])
@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_every_window(path, queries, keys, activation):
    if path.is_slow and queries > 65:
        return
    inputs = random_inputs(heads=4, key_heads=2, queries=queries, keys=keys, dtype=path.dtype)
    for mask in windows(2, queries, keys):
        assert_equals_reference(inputs, {"causal": True, **mask}, activation)


def test_keys_outside_the_window_cost_nothing(path):
    """What they hold, in whole tiles of keys that no query of a tile of queries sees, is never read."""
    if path.name == "plain":
        return
    inputs = random_inputs(queries=20, keys=1100, dtype=path.dtype)
    key, value = (item.clone() for item in inputs[1:3])
    key[:, :, :768], value[:, :, :768] = torch.nan, torch.nan
    mask = {"causal": True, "window": 100, "query_offset": 1080}
    found = by_relu_attention(inputs._replace(key=key, value=value), mask, statistics=ALL)
    for one, other in zip(found, by_relu_attention(inputs, mask, statistics=ALL), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("queries", [4, 40])
def test_a_window_drops_the_same_weights_in_both_passes(path, queries):
    """The output is linear in the values: with the same weights, its products with a gradient are those of the values
    with theirs."""
    inputs = random_inputs(queries=queries, keys=90, dtype=path.dtype).leaves()
    options = {"causal": True, "window": 30, "query_offset": 90 - queries, "dropout_p": 0.5, "activation": "identity"}
    output = relu_attention(*inputs[:3], row_scale=inputs.row_scale, **options)
    gradient = torch.randn_like(output)
    (of_value,) = torch.autograd.grad(output, inputs.value, gradient)
    torch.testing.assert_close((of_value * inputs.value).sum(), (gradient * output).sum())


@pytest.mark.parametrize("activation", POINTWISE)
def test_every_activation(path, activation):
    for queries, keys in ((33, 65),) if path.is_slow else ((5, 33), (33, 65), (70, 270)):
        inputs = random_inputs(queries=queries, keys=keys, dtype=path.dtype)
        for mask in masks(2, queries, keys):
            assert_equals_reference(inputs, mask, activation, ALL if activation in NON_NEGATIVE else "none")


@pytest.mark.parametrize("width", [1, 5, 17, 32, 64, 80, 96, 128])
def test_every_width(path, width):
    for queries, values in ((65, width), (3, width), (40, width + 3 * (path.name != "triton"))):
        inputs = random_inputs(queries=queries, keys=70, head_dim=width, dtype=path.dtype)
        wider = inputs._replace(value=torch.randn(2, 2, 70, values, dtype=path.dtype))
        assert_equals_reference(wider, {"causal": True, "query_offset": 70 - queries})


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_whole_tiles_of_neighbouring_heads(name, dtype, monkeypatch):
    """They are read where they are: several tiles of keys, whose rows are further apart than they are wide."""
    for _ in forced_path(name, monkeypatch):
        inputs = random_inputs(batch=1, heads=3, queries=256, keys=512, head_dim=32, dtype=dtype)
        apart = inputs._replace(
            **{
                part: getattr(inputs, part).transpose(1, 2).contiguous().transpose(1, 2)
                for part in ("query", "key", "value")
            }
        )
        for one, other in zip(by_relu_attention(apart, {}), by_relu_attention(inputs, {}), strict=True):
            assert torch.equal(one, other)
        if dtype == torch.float32:
            assert_equals_reference(apart, {})


@pytest.mark.parametrize("statistics", ["none", "sum", "sum+entropy"])
def test_grouped_keys_shared_row_scales_strides_and_statistics(path, statistics):
    inputs = random_inputs(heads=6, key_heads=2, queries=50, keys=61, dtype=path.dtype)
    # heads side by side in memory, as projections give them, and every second feature of a wider tensor
    query = inputs.query.transpose(1, 2).contiguous().transpose(1, 2)
    key = torch.stack([inputs.key, inputs.key], dim=-1).flatten(-2)[..., ::2]
    strided = Inputs(query, key, inputs.value, inputs.row_scale[:, :1])
    for mask in masks(2, 50, 61):
        assert_equals_reference(strided, mask, statistics=statistics)
    few = strided._replace(query=query[:, :, :2], row_scale=strided.row_scale[:, :, :2])
    assert_equals_reference(few, {}, statistics=statistics)


@pytest.mark.parametrize("path", COMPILED, indirect=True)
@pytest.mark.parametrize(("queries", "keys", "width"), [(8, 48, 32), (7, 33, 48), (5, 64, 128)])
def test_few_keys_are_read_where_they_lie(path, queries, keys, width):
    assert_equals_reference(random_inputs(batch=1, queries=queries, keys=keys, head_dim=width, dtype=path.dtype), {})


@pytest.mark.parametrize("path", COMPILED, indirect=True)
def test_rows_of_the_next_head_do_not_come_in(path):
    """Ten queries end within a tile that is read as a whole; behind them stand those of the next head."""
    inputs = random_inputs(batch=1, heads=2, queries=10, keys=20, head_dim=16, dtype=path.dtype)
    inputs.query[0, 1] = math.nan
    assert all(result[0, 0].isfinite().all() for result in by_relu_attention(inputs, {}))


@pytest.mark.parametrize("path", COMPILED, indirect=True)
def test_buffers_are_as_large_as_the_longest_of_few_sequences(path, set_threads):
    set_threads(5)  # more than there are pieces to share
    inputs = random_inputs(batch=1, heads=1, queries=300, keys=900, head_dim=16, dtype=path.dtype)
    ends = {"cu_seqlens_q": torch.tensor([0, 40, 300]).int(), "cu_seqlens_k": torch.tensor([0, 40, 900]).int()}
    assert_equals_reference(inputs, ends)


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_packed_sequences(path, activation):
    long = 40 if path.is_slow else 290
    query_lengths, key_lengths = (30, 0, 1, long), (31, 4, 0, long + 6)
    inputs = random_inputs(batch=1, queries=sum(query_lengths), keys=sum(key_lengths), dtype=path.dtype)
    ends = [torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (query_lengths, key_lengths)]
    hidden = torch.rand(1, sum(key_lengths)) < 0.7
    rules = [{"query_offset": 0}, *({"causal": True, "query_offset": offset} for offset in (0, 2, -2))]
    rules.append({"causal": True, "query_offset": 2, "window": 9})
    for padding, rule in product((None, hidden), rules):
        packed = {"cu_seqlens_q": ends[0], "cu_seqlens_k": ends[1], **rule}
        assert_equals_reference(inputs, packed | ({} if padding is None else {"key_padding_mask": padding}), activation)


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_packed_sequences_that_fill_whole_tiles_together_end_within_them(path, activation):
    ends = torch.tensor([0, 50, 128]).int()
    inputs = random_inputs(batch=1, queries=128, keys=128, head_dim=32, dtype=path.dtype)
    assert_equals_reference(inputs, {"cu_seqlens_q": ends, "cu_seqlens_k": ends}, activation)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"gamma": 3.0}, lambda count: 1 / (3.0 * (count / 2).sqrt())),
        ({"scaling": "length", "alpha": 0.5}, lambda count: count**-0.5),
        ({"scaling": "length"}, lambda count: 1 / count),
        ({"scaling": "none"}, torch.ones_like),
    ],
)
def test_row_scales_follow_the_keys_that_are_seen(scaling, expected):
    query, key, value, _ = random_inputs(queries=19, keys=33)
    for mask in [*masks(2, 19, 33), *({"causal": True, **mask} for mask in windows(2, 19, 33))]:
        count = visible_pairs((2, 19, 33), **mask).sum(-1).clamp_min(1).double()
        found = relu_attention(query, key, value, **scaling, **mask, statistics=ALL)
        wanted = relu_attention(query, key, value, row_scale=expected(count), **mask, statistics=ALL)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)


def test_each_head_may_learn_its_gamma():
    query, key, value, _ = random_inputs(heads=4, queries=19)
    gamma = torch.tensor([0.5, 2.0, 3.0, 8.0], dtype=torch.float64, requires_grad=True)
    output = relu_attention(query, key, value, gamma=gamma)
    (gradient,) = torch.autograd.grad(output.sum(), gamma)
    torch.testing.assert_close(gradient, -(output.detach().sum((0, 2, 3)) / gamma))
    for head, number in enumerate(gamma.tolist()):
        alone = relu_attention(query, key, value, gamma=number)
        torch.testing.assert_close(output[:, head], alone[:, head])


@pytest.mark.parametrize("queries", [3, 40])
def test_dead_rows_are_zero_with_zero_gradients(path, queries):
    inputs = random_inputs(queries=queries, keys=40, dtype=path.dtype)
    query = inputs.query.abs() + 0.1
    query[:, :, 2:] *= -1  # their scores are all negative
    found = by_relu_attention(inputs._replace(query=query, key=inputs.key.abs() + 0.1), {}, statistics=ALL)
    assert all(item.isfinite().all() for item in found)
    assert all((item[:, :, 2:] == 0).all() for item in found[:4])
    assert all((item[:, :, :2] != 0).any() for item in found[:4])


@pytest.mark.parametrize("queries", [8, 40])
@pytest.mark.parametrize("where", ["query", "key"])
def test_nan_stays_where_it_is_seen(path, where, queries):
    inputs = random_inputs(queries=queries, keys=40, dtype=path.dtype)
    getattr(inputs, where)[0, 0, 7, 0] = math.nan
    for item in by_relu_attention(inputs, {"causal": True}, statistics=ALL)[:3]:
        assert item[0, 0, 7].isnan().all() and item[1].isfinite().all()
        assert item[0, 0, :7].isfinite().all() and (where == "query" or item[0, 0, 7:].isnan().all())


@pytest.mark.parametrize("queries", [6, 7, 40])
def test_a_value_that_is_not_finite_reaches_every_query_that_sees_it(path, queries):
    """Whatever its weight. Heads of 84 features: 64, 16 and 4 of them go different ways in the compiled loop."""
    inputs = random_inputs(queries=queries, keys=40, head_dim=84, dtype=path.dtype)
    for feature, value in ((0, torch.nan), (70, torch.inf), (82, torch.nan)):
        inputs.value[0, 1, 3, feature] = value
    expected = torch.ones_like(inputs.query, dtype=torch.bool)
    expected[0, 1][:, [0, 70, 82]] = False
    assert torch.equal(by_relu_attention(inputs, {})[0].isfinite(), expected)
    causal = by_relu_attention(inputs, {"causal": True, "query_offset": 3})[0]
    assert not causal[0, 1][:, [0, 70, 82]].isfinite().any()


@pytest.mark.parametrize("queries", [3, 40])
def test_padding_may_hold_anything(path, queries):
    """Neither weights nor gradients see what stands where no key is real."""
    inputs = random_inputs(queries=queries, keys=40, dtype=path.dtype)
    real = torch.rand(2, 40) < 0.6
    found = []
    for filling in (0.0, torch.nan, torch.inf):
        key, value = (item.masked_fill(~real[:, None, :, None], filling) for item in inputs[1:3])
        rubbish = inputs._replace(key=key, value=value)
        found.append(by_relu_attention(rubbish, {"key_padding_mask": real}, activation="sigmoid", statistics=ALL))
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_nothing_is_read_before_it_is_written(path):
    """Under the setting by which torch fills new memory with NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        keys = 70 if path.is_slow else 300
        inputs = random_inputs(queries=50, keys=keys, dtype=path.dtype)
        for mask in masks(2, 50, keys):
            assert_equals_reference(inputs, mask)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0), (40, 0), (0, 0)])
def test_empty_sequences(path, queries, keys):
    inputs = random_inputs(queries=queries, keys=keys, dtype=path.dtype)
    for mask in ({}, {"causal": True}, {"key_padding_mask": torch.ones(2, keys, dtype=torch.bool)}):
        found = by_relu_attention(inputs, mask, statistics=ALL)
        assert [item.shape for item in found[:3]] == [(2, 2, queries, 8), (2, 2, queries), (2, 2, queries)]
        assert all((item == 0).all() for item in found)
    ends = [torch.tensor([0, length]) for length in (queries, keys)]
    one = relu_attention(*(item[:1] for item in inputs[:3]), scaling="none", cu_seqlens_q=ends[0], cu_seqlens_k=ends[1])
    assert (one == 0).all()


def test_a_gradient_of_stride_zero(path):
    inputs, gradients = random_inputs(queries=40, dtype=path.dtype), []
    for factor in (1.0, torch.ones_like(inputs.query)):
        leaves = inputs.leaves()
        output = relu_attention(*leaves[:3], row_scale=leaves[3])
        gradients.append(torch.autograd.grad((output * factor).sum(), leaves))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_a_gradient_may_lie_in_another_order_than_that_of_the_call_before(path):
    inputs, gradients = random_inputs(queries=40, dtype=path.dtype), []
    incoming = torch.randn_like(inputs.query).contiguous()
    for gradient in (incoming, incoming.transpose(1, 2).contiguous().transpose(1, 2)):
        leaves = inputs.leaves()
        output = relu_attention(*leaves[:3], row_scale=leaves[3])
        gradients.append(torch.autograd.grad(output, leaves, gradient))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["plain", "blocks", *COMPILED, *TRITON])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_errs_no_more_than_the_plain_computation(name, dtype, monkeypatch):
    if (name in COMPILED and dtype == torch.float16) or (name == "triton" and INTERPRETED and dtype == torch.bfloat16):
        return  # the compiled loop leaves float16 to the others, and the interpreter has no products of bfloat16
    for path in forced_path(name, monkeypatch):
        # whole tiles, which float32 reads where they are, and features that fill no register
        sizes = (
            ((3, 70, 64), (70, 70, 64)) if path.is_slow else ((3, 257, 64), (257, 257, 64), (64, 256, 64), (70, 65, 43))
        )
        for (queries, keys, width), mask in product(sizes, ({}, {"causal": True})):
            inputs = random_inputs(batch=1, queries=queries, keys=keys, head_dim=width, dtype=dtype)
            options = {"activation": "relu", "statistics": ALL, "scale": SCALE}
            seen = visible_pairs((1, queries, keys), **mask)
            usual = results(lambda *tensors: reference(*tensors, seen=seen, **options), inputs.leaves())  # noqa: B023
            truth, found = (of(inputs, mask, **options) for of in (by_reference, by_relu_attention))
            for name_of, exact, rival, ours in zip(NAMES, truth, usual, found, strict=True):
                error = relative_error(ours, exact)
                assert error <= max(3 * relative_error(rival, exact), 1e-6) and error < 0.01, f"{name_of}: {error:.1e}"


@pytest.mark.parametrize(("queries", "keys", "width"), [(3, 70, 43), (70, 300, 43), (64, 256, 64)])
def test_avx2_computes_bfloat16_as_float32_and_rounds_once(queries, keys, width, monkeypatch):
    for _ in forced_path("avx2", monkeypatch):
        inputs = random_inputs(queries=queries, keys=keys, head_dim=width, dtype=torch.bfloat16)
        gradient, found = torch.randn_like(inputs.query), []
        for dtype in (torch.bfloat16, torch.float32):
            leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in inputs[:3]]
            output, *statistics = relu_attention(*leaves, row_scale=inputs.row_scale.float().detach(), statistics=ALL)
            gains = [gradient.to(dtype), *map(torch.ones_like, statistics)]
            gradients = torch.autograd.grad([output, *statistics], leaves, gains)
            found.append([*statistics, *(item.bfloat16() for item in (output, *gradients))])
        for ours, wanted in zip(*found, strict=True):
            assert torch.equal(ours, wanted)


@pytest.mark.parametrize("length", [60, 4096])
def test_float16_holds_sums_that_the_row_scale_makes_small(length):
    """Each sum over the keys is beyond float16's 65,504 and each output within it: the scale must come before the
    sum."""
    query = torch.full((1, 1, length, 8), 8.0)
    value = torch.full_like(query, 10.0)
    row_scale = torch.full((1, 1, length), 1 / (8 * (length / 2) ** 0.5))
    whole = relu_attention(query, query, value, row_scale=row_scale)
    leaves = [tensor.half().requires_grad_() for tensor in (query, query, value)]
    half = relu_attention(*leaves, row_scale=row_scale)
    assert (whole / row_scale.unsqueeze(-1)).min() > 65504 > whole.max()
    torch.testing.assert_close(half.float(), whole, rtol=2**-10 * 1.01, atol=0)  # weights and sum: 2**-11 each
    assert all(item.isfinite().all() for item in torch.autograd.grad(half.sum() / length, leaves))


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("activation", POINTWISE)
def test_compiled_activations_and_derivatives_over_the_whole_range(name, activation, monkeypatch):
    """One key and one value of 1 for each query: the output is h(x), and the gradient of the query h'(x)."""
    scores = torch.cat([torch.linspace(-105, 105, 4001), torch.linspace(-1e-3, 1e-3, 101), torch.logspace(-38, 3, 200)])
    one, exact = torch.ones(1, 1, 1, 1), scores.double().requires_grad_()
    options = {"scaling": "none", "activation": activation, "scale": 1.0}
    for _ in forced_path(name, monkeypatch):
        found = scores.view(1, 1, -1, 1).clone().requires_grad_()
        output = relu_attention(found, one, one, **options)
        (slope,) = torch.autograd.grad(output.sum(), found)
    wanted = POINTWISE[activation](exact)
    if activation == "gelu":  # torch's float64 loses the left tail, 1 + erf(x / √2), from x = -8 on
        wanted = 0.5 * exact * torch.special.erfc(-exact * 0.5**0.5)
    (wanted_slope,) = torch.autograd.grad(wanted.sum(), exact)
    for kind, ours, other in (("h", output, wanted), ("h'", slope, wanted_slope)):
        error = (ours.detach().flatten().double() - other.detach()).abs()
        # float32 holds 2^-24 of a number, exponents up to 87 included, and nothing below its smallest normal number;
        # the derivative of the sigmoid is u (1 - u), of which 1 - u holds 2^-24.
        least = 2**-23 if (activation, kind) == ("sigmoid", "h'") else 1e-37
        assert (error <= 2**-17 * other.detach().abs() + least).all(), (kind, float(error.max()))


def test_dropout_is_random_by_the_seed_and_the_place(path):
    """Keys that all score alike, and values that tell them apart: the output is the mask."""
    p, length = 0.3, 96
    query = torch.ones(1, 2, length, 4, dtype=path.dtype)
    query = key = torch.nn.functional.pad(query, (0, length - 4))  # as wide as the values, which Triton wants
    value = torch.eye(length, dtype=path.dtype).expand(1, 2, -1, -1)

    def draw(seed, **packed):
        torch.manual_seed(seed)
        return relu_attention(query, key, value, scaling="none", scale=0.25, dropout_p=p, **packed)

    output = draw(5)
    torch.testing.assert_close(output.float().unique(), torch.tensor([0.0, 1 / (1 - p)]))
    assert torch.equal(draw(5), output) and not torch.equal(draw(6), output)
    assert not torch.equal(output[0, 0], output[0, 1])
    for rows in (24, 48):  # of blocks
        assert not torch.equal(output[0, 0, :rows], output[0, 0, rows : 2 * rows])
    ends = torch.tensor([0, 48, 96])
    packed = draw(5, cu_seqlens_q=ends, cu_seqlens_k=ends)[0, 0]
    assert not torch.equal(packed[:48, :48], packed[48:, 48:])
    kept = (output > 0).double() - (1 - p)
    for drawn in (kept, kept[:, :, 1:] * kept[:, :, :-1], kept[..., 1:] * kept[..., :-1]):
        assert abs(drawn.mean()) < 4 * (p * (1 - p) / drawn.numel()) ** 0.5
    for axis in (-1, -2):  # no row and no column is kept more often than chance has it
        assert kept.mean(axis).abs().max() < 5 * (p * (1 - p) / length) ** 0.5


@pytest.mark.parametrize("queries", [4, 96, 300])
@pytest.mark.parametrize("packed", [False, True])
def test_dropout_keeps_the_statistics_and_scales_what_it_keeps(path, queries, packed):
    """The mask is drawn twice: seen through keys that all weigh 1 and values that tell them apart, then applied."""
    keys = 300 if path.name != "triton" else 96
    queries = min(queries, keys)
    batch = 1 if packed else 2
    inputs = random_inputs(batch, 4, queries, keys, head_dim=keys, key_heads=2, dtype=path.dtype)
    inputs = inputs._replace(query=inputs.query / 8)
    ends = torch.tensor([0, keys // 3, keys]).int()
    options = {"cu_seqlens_q": ends * queries // keys, "cu_seqlens_k": ends} if packed else {}

    def attention(*tensors, **more):
        torch.manual_seed(3)
        return relu_attention(*tensors, scale=SCALE, dropout_p=0.3, **options, **more)

    apart = torch.eye(keys, dtype=path.dtype).expand(batch, 2, -1, -1)
    alike = torch.zeros_like(inputs.query), torch.zeros_like(inputs.key)
    mask = 2 * attention(*alike, apart, scaling="none", activation="sigmoid").double()
    seen = visible_pairs((batch, queries, keys), **options)

    def expected(query, key, value, row_scale):
        key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
        weights = torch.relu(query @ key.mT * SCALE) * seen * row_scale.unsqueeze(-1)
        sums = weights.sum(-1), (weights * weights.clamp_min(1e-30).log()).sum(-1)
        return (mask * weights) @ value, *sums

    def found(query, key, value, row_scale):
        return attention(query, key, value, row_scale=row_scale, statistics=ALL)

    wanted = results(expected, inputs.leaves(torch.float64))
    for one, other in zip(results(found, inputs.leaves()), wanted, strict=True):
        assert relative_error(one, other) < TOLERANCE[path.dtype]


@pytest.mark.parametrize("path", COMPILED, indirect=True)
@pytest.mark.parametrize("heads", [4, 2, 1])
def test_threads_change_rounding_at_most_and_stay_as_they_were(path, heads, set_threads):
    """With fewer heads than threads, sums over the queries are cut into ranges.

    2 heads are cut into 2 ranges each for 3 threads, and into 3 each for 5, of which two begin in the middle of a head;
    so many keys that threads share the adding up, too.
    """
    inputs = random_inputs(batch=1, heads=heads, queries=330, keys=700, head_dim=64, dtype=path.dtype)
    counts = (1, 2, 3, 5, 5)
    found = []
    for threads in counts:
        set_threads(threads)
        torch.manual_seed(0)
        found.append(by_relu_attention(inputs, {}, statistics=ALL, dropout_p=0.1))
        assert torch.get_num_threads() == threads
    assert all(map(torch.equal, *found[-2:]))
    for threads, other in zip(counts, found, strict=True):
        for one, two in zip(found[0], other, strict=True):
            assert torch.equal(one, two) if heads >= threads else relative_error(two, one) < 1e-6


@pytest.mark.parametrize("used", ["O", "OS", "T"])
def test_a_loss_may_use_a_part_of_what_is_computed(path, used):
    """S and T may be there for the logs alone."""
    inputs = random_inputs(queries=40, dtype=path.dtype)
    options = {"activation": "relu", "statistics": ALL, "scale": SCALE}

    def part(found):
        return tuple(item for name, item in zip("OST", found, strict=True) if name in used)

    def ours(query, key, value, row_scale):
        return (*part(relu_attention(query, key, value, row_scale=row_scale, **options)), 0 * value)

    def exact(query, key, value, row_scale):
        seen = torch.ones(1, 1, 40, 40, dtype=torch.bool)
        return (*part(reference(query, key, value, row_scale, seen=seen, **options)), 0 * value)

    for one, other in zip(results(ours, inputs.leaves()), results(exact, inputs.leaves(torch.float64)), strict=True):
        assert relative_error(one, other) < TOLERANCE[path.dtype]


@pytest.mark.parametrize("path", ["blocks", *TRITON], indirect=True)
def test_scores_beyond_float16_do_not_overflow(path):
    query, key, value = (torch.full((1, 1, 20, 64), number).half() for number in (100.0, 15.0, 0.01))
    whole = relu_attention(query, key, value, gamma=1e3)  # q·k = 96,000 is beyond float16, c · q·k is not
    assert whole.isfinite().all() and (whole > 0).all()


@pytest.mark.parametrize("path", ["plain"], indirect=True)
def test_plain_products_of_float16_are_computed_wide(path):
    """A weight of 160,000, which the row scale makes 1.6."""
    query, key, value = (torch.full((1, 1, 1, 4), number).half() for number in (20.0, 10.0, 0.5))
    options = {"row_scale": torch.full((1, 1, 1), 1e-5), "activation": "relu2", "statistics": ALL}
    output, row_sum, row_sum_log = relu_attention(query, key, value, **options)
    assert output.dtype == torch.float16 and row_sum.dtype == torch.float32
    torch.testing.assert_close(output.float(), torch.full((1, 1, 1, 4), 0.8), rtol=1e-3, atol=0)
    torch.testing.assert_close(row_sum, torch.full((1, 1, 1), 1.6))
    torch.testing.assert_close(row_sum_log, torch.full((1, 1, 1), 1.6 * math.log(1.6)), rtol=1e-5, atol=0)


ROW_SCALE = torch.ones(1, 2, 5)
ENDS = torch.tensor([0, 5], dtype=torch.int32)
PACKED = {"query": torch.ones(1, 2, 7, 4), "row_scale": torch.ones(1, 2, 7)}
PACKED |= {"cu_seqlens_q": ENDS * 7 // 5, "cu_seqlens_k": ENDS * 7 // 5}
REFUSED = [
    ("'softmax' needs whole rows of scores", {"activation": "softmax"}),
    ("statistics='all' is unknown; choose one of none, sum, sum\\+entropy", {"statistics": "all"}),
    ("statistics='sum' needs weights that are never negative", {"activation": "gelu", "statistics": "sum"}),
    ("dropout_p must be a number from 0 to below 1; got 1.0", {"dropout_p": 1.0}),
    ("dropout_p must be a number .* got torch.float32", {"dropout_p": torch.tensor(0.1)}),
    ("causal must be True or False; got 'no'", {"causal": "no"}),
    ("causal must be True or False; got torch.bool \\(2,\\)", {"causal": torch.tensor([True, False])}),
    ("window must be an int of at least 1, .* got window=0 and causal=True", {"window": 0, "causal": True}),
    ("window must be an int .* got window=2.0 and causal=True", {"window": 2.0, "causal": True}),
    ("window must be an int .* got window=True and causal=True", {"window": True, "causal": True}),
    ("window .* needs causal=True; got window=4 and causal=False", {"window": 4}),
    ("scale must be a finite number; got nan", {"scale": float("nan")}),
    ("scale must be a finite number; got '0.5'", {"scale": "0.5"}),
    ("query_offset must be an int, .* got 1.5", {"query_offset": 1.5}),
    ("query_offset must be an int, .* got torch.float32", {"query_offset": torch.tensor(1.0)}),
    ("query_offset must be an int, .* got torch.int64 \\(2,\\)", {"query_offset": torch.tensor([1, 2])}),
    ("must be tensors; got list, ndarray, Tensor", {"query": [1.0], "key": torch.ones(1, 2, 7, 4).numpy()}),
    (
        "must lie on one device; got cpu, meta and meta",
        dict.fromkeys(("key", "value"), torch.ones(1, 2, 7, 4).to("meta")),
    ),
    ("key_padding_mask lies on meta, and query on cpu", {"key_padding_mask": torch.ones(1, 7).bool().to("meta")}),
    ("row_scale lies on meta, and query on cpu", {"row_scale": ROW_SCALE.to("meta")}),
    ("query, key and value .* do not fit: expected", {"key": torch.ones(1, 2, 3, 4)}),
    ("query, key and value .* do not fit: expected", {"query": torch.ones(1, 3, 5, 4)}),
    ("must share one floating dtype; got .*float64", {"key": torch.ones(1, 2, 7, 4).double()}),
    ("row_scale must be a tensor .* got torch.float32 \\(1, 2, 4\\)", {"row_scale": ROW_SCALE[..., :4]}),
    ("row_scale must be .* got 0.1. For one number .* torch.full\\(\\(1, 1, 5\\), number\\)", {"row_scale": 0.1}),
    ("key_padding_mask must be a boolean tensor .* got torch.float32", {"key_padding_mask": torch.ones(1, 7)}),
    ("key_padding_mask must be a boolean tensor .* got True", {"key_padding_mask": True}),
    ("got \\(\\[0, 5\\], \\[0, 7\\]\\) and batch 1", {"cu_seqlens_q": [0, 5], "cu_seqlens_k": [0, 7]}),
    ("follow each other in one row", {"cu_seqlens_q": ENDS}),
    ("rise from 0 to 5 and to 7", {"cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS}),
    ("must be int32 or int64", {**PACKED, "cu_seqlens_q": PACKED["cu_seqlens_q"].float()}),
    ("no scale for its rows; give gamma .* or a row_scale", {"row_scale": None}),
    ("row_scale was given together with gamma=8.0", {"gamma": 8.0}),
    ("visible keys are not counted", {**PACKED, "row_scale": None, "gamma": 8.0}),
    ("scaling='var' is unknown", {"row_scale": None, "scaling": "var", "gamma": 8.0}),
    ("gamma belongs to scaling='variance'", {"row_scale": None, "scaling": "length", "gamma": 8.0}),
    ("gamma=0 must be a finite number above 0", {"row_scale": None, "gamma": 0}),
    ("gamma='8' must be a finite number above 0", {"row_scale": None, "gamma": "8"}),
    ("gamma=a list must be a finite number above 0", {"row_scale": None, "gamma": list(range(100))}),
    ("gamma must be a number, or .* \\(3,\\)", {"row_scale": None, "gamma": torch.ones(3)}),
    ("alpha=2.5 must be a number from 0 to 2", {"row_scale": None, "scaling": "length", "alpha": 2.5}),
    ("alpha='1' must be a number from 0 to 2", {"row_scale": None, "scaling": "length", "alpha": "1"}),
]


@pytest.mark.parametrize(("words", "changed"), REFUSED, ids=[words[:40] for words, _ in REFUSED])
def test_what_does_not_fit_is_refused(words, changed):
    tensors = {"query": torch.ones(1, 2, 5, 4), "key": torch.ones(1, 2, 7, 4), "value": torch.ones(1, 2, 7, 4)}
    with pytest.raises(ValueError, match=words):
        relu_attention(**{**tensors, "row_scale": ROW_SCALE, **changed})
