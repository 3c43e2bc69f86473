"""The Triton kernels against the float64 reference; `test_triton.py` runs this file in a process of its own.

By hand: TRITON_INTERPRET=1 python -m pytest tests/modeling_reluformer/fused/triton_numerics.py, or without the variable on a GPU.
"""

import pytest
import torch

pytest.importorskip("triton", reason="the CUDA kernels need Triton")
import triton

from reluformer.modeling_reluformer.attention_activations import NON_NEGATIVE, POINTWISE
from reluformer.modeling_reluformer.attention_reference import reference_attention
from reluformer.modeling_reluformer.fused import triton_launch
from reluformer.modeling_reluformer.fused.operator import _LaunchedAttention
from reluformer.modeling_reluformer.fused.triton_launch import Tiles, triton_backward, triton_forward

DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"
HALF = torch.float16 if DEVICE == "cpu" else torch.bfloat16  # the interpreter has no bfloat16 product
HALF_TOLERANCE = 0.005 if DEVICE == "cpu" else 0.01


@pytest.fixture(autouse=True)
def _poisoned_memory(monkeypatch):
    """What a kernel forgets to write is NaN."""
    empty = torch.empty

    def poisoned(*shape, **options):
        return empty(*shape, **options).fill_(float("nan"))

    monkeypatch.setattr(torch, "empty", poisoned)
    torch.manual_seed(0)


def rms(tensor):
    return tensor.double().square().mean().sqrt()


def tensors(batch=1, heads=1, queries=65, keys=None, head_dim=32, key_heads=None, dtype=torch.float32):
    """query, key, value as the model lays them out, row_scale and the gradients of O, S and T."""
    keys = queries if keys is None else keys

    def heads_of(rows, count):
        return torch.randn(batch, rows, count, head_dim, device=DEVICE).to(dtype).transpose(1, 2)

    query, grad_output = heads_of(queries, heads) * 2, heads_of(queries, heads)
    key, value = heads_of(keys, key_heads or heads), heads_of(keys, key_heads or heads)
    rows = (batch, heads, queries)
    row_scale = torch.rand(rows, device=DEVICE) + 0.1
    return [query, key, value, row_scale], [grad_output, *(torch.randn(rows, device=DEVICE) for _ in range(2))]


def dense_mask(shape, causal=False, query_offset=0, padding=None, cu_q=None, cu_k=None):
    """The visible pairs, (batch, 1, queries, keys), from the definition."""
    batch, queries, keys = shape
    row, column = torch.arange(queries, device=DEVICE), torch.arange(keys, device=DEVICE)
    mask = torch.ones(batch, 1, queries, keys, dtype=torch.bool, device=DEVICE)
    if cu_q is not None:
        row_sequence, column_sequence = (
            torch.bucketize(place, ends[1:], right=True) for place, ends in ((row, cu_q), (column, cu_k))
        )
        mask &= row_sequence[:, None] == column_sequence[None, :]
        row, column = row - cu_q[row_sequence], column - cu_k[column_sequence]
    if causal:
        mask &= column[None, :] <= row[:, None] + query_offset
    return mask if padding is None else mask & padding[:, None, None, :]


def by_reference(inputs, gradients, mask, dropped=None, *, activation, scale, statistics, dtype=torch.float64):
    """O, S, T and the gradients by autograd; `dropped` is the explicit D."""
    query, key, value, row_scale = (
        None if item is None else item.detach().to(dtype).requires_grad_() for item in inputs
    )
    group = query.shape[1] // key.shape[1]
    wide_key, wide_value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    result = reference_attention(
        query, wide_key, wide_value, activation=activation, mask=mask, row_scale=row_scale, scale=scale,
        statistics=statistics,
    )  # fmt: skip
    output = result.output if dropped is None else (result.weights * dropped.to(dtype)) @ wide_value
    found = [item for item in (output, result.row_sum, result.row_sum_log) if item is not None]
    loss = sum((item * gradient.to(item.dtype)).sum() for item, gradient in zip(found, gradients, strict=False))
    return [item.detach() for item in found], torch.autograd.grad(loss, (query, key, value))


def by_kernels(inputs, gradients, padding=None, cu_q=None, cu_k=None, **options):
    """The same from the kernels."""
    arguments = (*inputs, padding, cu_q, cu_k)
    options = {"causal": False, "query_offset": 0, "dropout_p": 0.0, "seed": 7, **options}
    found = [item for item in triton_forward(*arguments, **options) if item is not None]
    grad_output, grad_sum, grad_sum_log = gradients
    level = ["none", "sum", "sum+entropy"].index(options["statistics"])
    given = grad_sum if level >= 1 else None, grad_sum_log if level == 2 else None
    return found, triton_backward(grad_output, *given, *arguments, **options)


def check(inputs, gradients, activation="relu", statistics=None, scale=None, dropped=None, **options):
    """Kernels against the float64 reference, within 1e-5 or twice what the same-precision reference makes of it."""
    if statistics is None:
        statistics = "sum+entropy" if activation in NON_NEGATIVE else "none"
    query, key = inputs[:2]
    common = {
        "activation": activation,
        "statistics": statistics,
        "scale": query.shape[-1] ** -0.5 if scale is None else scale,
    }
    seen = {name: options[name] for name in ("causal", "query_offset", "padding", "cu_q", "cu_k") if name in options}
    mask = dense_mask((query.shape[0], query.shape[2], key.shape[2]), **seen)
    expected = by_reference(inputs, gradients, mask, dropped, **common)
    found = by_kernels(inputs, gradients, **common, **options)
    plain = by_reference(inputs, gradients, mask, dropped, dtype=query.dtype, **common)
    names = [*("output", "S", "T")[: len(found[0])], "dq", "dk", "dv"]
    results = ([*group[0], *group[1]] for group in (expected, found, plain))
    for name, right, item, rounded in zip(names, *results, strict=True):
        assert item.shape == right.shape, name
        assert item.dtype == (torch.float32 if name in "ST" else query.dtype), name
        assert item.isfinite().all(), name
        size = rms(right).clamp_min(1e-30)  # all may be hidden
        error, usual = rms(item - right) / size, rms(rounded - right) / size
        assert error <= 1e-5 or (error <= 2 * usual and name not in "ST"), f"{name}: {error:.2g} against {usual:.2g}"
        assert error <= (1e-3 if query.dtype == torch.float32 else HALF_TOLERANCE), (
            f"{name}: relative error {error:.2g}"
        )
    return found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 15, 63, 64, 65, 127, 129, 257])
def test_lengths(length, causal):
    inputs, gradients = tensors(queries=length, dtype=torch.float32 if causal else HALF)
    inputs[0][:, :, -1] = inputs[1][:, :, 0]  # no gradient is 0 by chance at length 1
    check(inputs, gradients, causal=causal)


def test_length_1025():
    check(*tensors(queries=1025, dtype=HALF), causal=True)


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("head_dim", [8, 32, 64, 80, 96, 128, 256])
def test_widths(head_dim, dtype):
    check(*tensors(queries=65, keys=33, head_dim=head_dim, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("activation", POINTWISE)
def test_activations_where_some_keys_are_padding_and_some_lie_ahead(activation, dtype):
    padding = torch.ones(2, 70, dtype=torch.bool, device=DEVICE)
    padding[0, :9] = padding[1, 50:] = False
    inputs, gradients = tensors(batch=2, queries=40, keys=70, dtype=dtype)
    inputs[0][:, :, 3] *= 8  # beyond relu6's upper bound and softplus's linear end
    check(inputs, gradients, activation, padding=padding, causal=True, query_offset=30)


@pytest.mark.parametrize("statistics", ["none", "sum", "sum+entropy"])
def test_statistics_are_those_asked_for(statistics):
    (output, *row_statistics), _ = check(*tensors(heads=2), statistics=statistics)
    assert len(row_statistics) == ["none", "sum", "sum+entropy"].index(statistics)
    assert output.transpose(1, 2).is_contiguous()  # so that heads are joined without a copy


@pytest.mark.parametrize(
    ("queries", "keys", "offset"),
    [(1, 100, 99), (5, 100, 95), (100, 5, 0), (70, 140, 11), (140, 70, -75), (20, 20, -30), (20, 20, 300)],
)
def test_causal_offsets(queries, keys, offset):
    inputs, gradients = tensors(queries=queries, keys=keys, dtype=HALF)
    (output, *_), _ = check(inputs, gradients, causal=True, query_offset=offset)
    assert (output[:, :, : max(0, -offset)] == 0).all()
    tensor_offset = torch.tensor(offset, device=DEVICE)  # as with a static cache
    (again, *_), _ = check(inputs, gradients, causal=True, query_offset=tensor_offset)
    assert torch.equal(output, again)


@pytest.mark.parametrize("key_heads", [1, 2])
def test_grouped_keys(key_heads):
    check(*tensors(batch=2, heads=4, key_heads=key_heads, queries=33, keys=40), causal=True, query_offset=7)


def test_row_scale_may_be_missing_or_shared_by_the_heads():
    inputs, gradients = tensors(batch=2, heads=2, queries=20)
    check([*inputs[:3], None], gradients)
    check([*inputs[:3], inputs[3][:, :1]], gradients)
    check([*inputs[:3], inputs[3].transpose(1, 2).contiguous().transpose(1, 2)], gradients)


def test_any_strides():
    inputs, gradients = tensors(batch=2, heads=2, queries=35, head_dim=16)
    query = torch.randn(2, 35, 3, 2, 16, device=DEVICE)[:, :, 1].transpose(1, 2)  # one of three packed projections
    key = torch.randn(2, 2, 16, 70, device=DEVICE)[..., ::2].transpose(-1, -2)  # rows that are not contiguous
    value = torch.randn(35, 2, 2, 32, device=DEVICE).permute(1, 2, 0, 3)[..., :16]
    assert not query.is_contiguous() and key.stride(-1) != 1
    padding = (torch.rand(35, 2, device=DEVICE) < 0.7).T
    for grad_output in (gradients[0], torch.ones((), device=DEVICE).expand(2, 2, 35, 16)):
        check([query, key, value, inputs[3]], [grad_output, *gradients[1:]], padding=padding)
    expanded = torch.randn(2, 1, 35, 16, device=DEVICE).expand(-1, 2, -1, -1)
    check([expanded, key, value, inputs[3]], [gradients[0][:, :, :1].expand(2, 2, 35, 16), *gradients[1:]])


def test_dead_rows_give_zeros():
    inputs, gradients = tensors(queries=40)
    inputs[1].abs_()
    inputs[0][:, :, 5:20] = -inputs[0][:, :, 5:20].abs()
    (output, row_sum, row_sum_log), (grad_query, _, _) = check(inputs, gradients)
    for item in (output, row_sum, row_sum_log, grad_query):
        assert (item[:, :, 5:20] == 0).all() and (item[:, :, 20:] != 0).any()


def test_hidden_rubbish_changes_nothing():
    """What padding holds, NaN too, reaches neither results nor gradients; the gradients of padding itself are 0."""
    padding = torch.ones(1, 70, dtype=torch.bool, device=DEVICE)
    padding[:, 40:] = False
    for activation in POINTWISE:
        inputs, gradients = tensors(queries=30, keys=70)
        inputs[1][:, :, 40:] = inputs[2][:, :, 40:] = float("nan")
        statistics = "sum+entropy" if activation in NON_NEGATIVE else "none"
        options = {"activation": activation, "scale": 0.2, "statistics": statistics}
        found, grads = by_kernels(inputs, gradients, padding=padding, **options)
        short = [inputs[0], inputs[1][:, :, :40], inputs[2][:, :, :40], inputs[3]]
        expected, right = by_kernels(short, gradients, **options)
        for first, second in zip([*found, grads[0]], [*expected, right[0]], strict=True):
            torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)
        for first, second in zip(grads[1:], right[1:], strict=True):
            torch.testing.assert_close(first[:, :, :40], second, rtol=1e-5, atol=1e-5)
            assert (first[:, :, 40:] == 0).all()


@pytest.mark.parametrize("activation", POINTWISE)
@pytest.mark.parametrize("where", [0, 1, 2])
def test_nan_stays_nan(where, activation):
    statistics = "sum+entropy" if activation in NON_NEGATIVE else "none"
    inputs, gradients = tensors(queries=20, head_dim=16)
    inputs[where][:, :, 4, 2] = float("nan")
    options = {"activation": activation, "scale": 0.25, "statistics": statistics}
    expected = by_reference(inputs, gradients, None, **options)
    found = by_kernels(inputs, gradients, **options)
    for first, second in zip([*expected[0], *expected[1]], [*found[0], *found[1]], strict=True):
        assert (second.isnan() | ~first.isnan()).all()  # wherever the reference has NaN
        if where == 0 and first.shape[2] == 20 and first is not expected[1][1] and first is not expected[1][2]:
            assert not second[:, :, 5:].isnan().any()  # and not in the other rows
    assert found[0][0].isnan().any()


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_packed_sequences_see_only_themselves(activation, causal, holes):
    cu_q = torch.tensor([0, 30, 30, 95, 96, 96, 120], dtype=torch.int32, device=DEVICE)
    cu_k = torch.tensor(
        [0, 40, 57, 112, 112, 112, 136], dtype=torch.int32, device=DEVICE
    )  # no queries; no keys; neither
    inputs, gradients = tensors(heads=2, key_heads=1, queries=120, keys=136)
    padding = torch.rand(1, 136, device=DEVICE) < 0.7 if holes else None
    found, _ = check(inputs, gradients, activation, cu_q=cu_q, cu_k=cu_k, causal=causal, padding=padding)
    assert all((item[:, :, 95] == 0).all() for item in found)


def test_packed_rows_of_no_sequence_are_zero():
    ends = torch.tensor([0, 10, 25], dtype=torch.int32, device=DEVICE)
    inputs, gradients = tensors(queries=40)
    options = {"activation": "sigmoid", "scale": 0.2, "statistics": "sum+entropy", "cu_q": ends, "cu_k": ends}
    found, grads = by_kernels(inputs, gradients, **options)
    assert all((item[:, :, 25:] == 0).all() and (item[:, :, :25] != 0).any() for item in (*found, *grads))


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 5, 5), (2, 0, 5), (2, 5, 0), (2, 0, 0)])
def test_nothing_gives_zeros(batch, queries, keys):
    inputs, gradients = tensors(batch=batch, queries=queries, keys=keys)
    found, grads = by_kernels(inputs, gradients, activation="sigmoid", scale=0.2, statistics="sum+entropy")
    assert [item.shape for item in grads] == [item.shape for item in inputs[:3]]
    assert all((item == 0).all() for item in (*found, *grads))
    packed = torch.tensor([0], dtype=torch.int32, device=DEVICE)
    if batch == 2:
        inputs, gradients = tensors(queries=queries, keys=keys)
        options = {"activation": "relu", "scale": 0.2, "statistics": "none"}
        found, grads = by_kernels(inputs, gradients, cu_q=packed, cu_k=packed, **options)
        assert all((item == 0).all() for item in (*found, *grads))


def test_backward_repeats_to_the_bit():
    inputs, gradients = tensors(heads=4, key_heads=2, queries=70, dtype=HALF)
    options = {"activation": "relu", "scale": 0.2, "statistics": "sum+entropy", "dropout_p": 0.2}
    first, second = (by_kernels(inputs, gradients, **options) for _ in range(2))
    assert all(torch.equal(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True))


def dropout_mask(inputs, width=64, **options):
    """D read off the output: identity activation, ones for scores, unit vectors for values."""
    (batch, heads, queries, _), keys = inputs[0].shape, inputs[1].shape[2]
    query, key = (torch.full((batch, heads, rows, width), width**-0.5, device=DEVICE) for rows in (queries, keys))
    columns = []
    for start in range(0, keys, width):
        unit = torch.eye(keys, start + width, device=DEVICE)[:, start:].expand(batch, heads, keys, width)
        options = {
            "activation": "identity",
            "scale": 1.0,
            "causal": False,
            "query_offset": 0,
            "statistics": "none",
            **options,
        }
        columns.append(triton_forward(query, key, unit, None, None, None, None, **options)[0])
    return torch.cat(columns, -1)[..., :keys]


def test_dropout_is_one_mask_in_forward_and_backward(monkeypatch):
    inputs, gradients = tensors(batch=3, heads=3, queries=20, keys=60, dtype=HALF)
    drawn = dropout_mask(inputs, dropout_p=0.3, seed=5)
    kept = drawn > 0.5
    share = 1 - round(0.3 * 2**16) / 2**16  # of the weights that are kept
    torch.testing.assert_close(drawn, kept / share)
    deviations = (kept.double().mean() - 0.7) / (0.7 * 0.3 / kept.numel()) ** 0.5
    assert abs(deviations) < 4
    # neighbours along batch, heads, queries and keys are independent, 0.58 of them agree; keys 8 apart share a hash
    for axis, step in ((0, 1), (1, 1), (2, 1), (3, 1), (3, 8)):
        assert abs((kept == kept.roll(step, axis)).double().mean() - 0.58) < 0.03
    assert not torch.equal(dropout_mask(inputs, dropout_p=0.3, seed=6) > 0.5, kept)
    assert not torch.equal(dropout_mask(inputs, dropout_p=0.3, seed=5 + 2**40) > 0.5, kept)
    for activation in ("relu", "sigmoid"):
        check(inputs, gradients, activation, dropped=kept.double() / share, dropout_p=0.3, seed=5)
    monkeypatch.setattr(triton_launch, "tile_sizes", lambda *call: Tiles(16, 32, 4, 1))
    assert torch.equal(dropout_mask(inputs, dropout_p=0.3, seed=5) > 0.5, kept)
    check(inputs, gradients, dropped=kept.double() / share, dropout_p=0.3, seed=5, causal=False)


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, 2**64 - 1])
def test_every_64_bit_seed_draws(seed):
    drawn = dropout_mask(tensors(queries=32)[0], dropout_p=0.5, seed=seed) > 0.5
    assert 0.4 < drawn.double().mean() < 0.6


def test_heads_of_tensor_parallel_ranks_draw_as_one_device_would():
    inputs, _ = tensors(heads=4, queries=32)
    whole = dropout_mask(inputs, dropout_p=0.5, seed=3)
    halves = [
        dropout_mask([item[:, part] for item in inputs], dropout_p=0.5, seed=3, head_offset=part.start)
        for part in (slice(0, 2), slice(2, 4))
    ]
    assert torch.equal(torch.cat(halves, 1), whole)


@pytest.mark.parametrize("sizes", [(16, 128), (128, 16), (64, 64)])
def test_tile_sizes_change_nothing(sizes, monkeypatch):
    monkeypatch.setattr(triton_launch, "tile_sizes", lambda *call: Tiles(*sizes, 4, 1))
    ends = torch.tensor([0, 30, 95, 140], dtype=torch.int32, device=DEVICE)
    check(*tensors(queries=140), "softplus", cu_q=ends, cu_k=ends, causal=True)
    check(*tensors(queries=70, keys=140), causal=True, query_offset=40)


def test_large_scores_do_not_overflow_in_half_precision():
    inputs, gradients = tensors(queries=20, head_dim=64, dtype=torch.float16)
    inputs[0].fill_(100.0)
    inputs[1].fill_(15.0)  # q·k = 96,000 is beyond float16, c · q·k = 12,000 is not
    inputs[2] *= 0.01
    check([*inputs[:3], inputs[3] * 0.01], gradients, statistics="none")


@pytest.mark.parametrize("used", ["O", "OS", "OST", "T"])
def test_autograd_takes_what_the_loss_uses(used):
    """Outside of compiled graphs the kernels are launched without the operator; S and T may be there for the logs alone."""
    (query, key, value, row_scale), gradients = tensors(queries=40, heads=2, dtype=HALF)
    leaves = [item.detach().requires_grad_() for item in (query, key, value, row_scale)]
    outputs = _LaunchedAttention.apply(*leaves, *[None] * 5, "relu", 0.2, True, 0, 0.0, "sum+entropy")
    exact = [item.detach().double().requires_grad_() for item in leaves]
    options = {"activation": "relu", "mask": dense_mask((1, 40, 40), causal=True), "scale": 0.2}
    result = reference_attention(*exact[:3], row_scale=exact[3], statistics="sum+entropy", **options)
    losses = [
        sum(
            (dict(zip("OST", found, strict=True))[name] * gradients["OST".index(name)].to(found[0].dtype)).sum()
            for name in used
        )
        for found in (outputs, (result.output, result.row_sum, result.row_sum_log))
    ]
    for item, right in zip(
        torch.autograd.grad(losses[0], leaves), torch.autograd.grad(losses[1], exact, allow_unused=True), strict=True
    ):
        right = torch.zeros_like(item) if right is None else right
        assert rms(item - right) <= 2 * HALF_TOLERANCE * rms(right)
