"""What only the Triton kernels do, against the float64 reference; `test_triton.py` runs this file and the table of all paths.

By hand: TRITON_INTERPRET=1 python -m pytest tests/modeling_reluformer/fused/triton_numerics.py, or without the variable on a GPU.
"""

import pytest
import torch

pytest.importorskip("triton", reason="the CUDA kernels need Triton")
import triton

from reluformer.modeling_reluformer.attention_reluformer import NON_NEGATIVE, POINTWISE
from reluformer.modeling_reluformer.fused import triton_launch
from reluformer.modeling_reluformer.fused.operator import _LaunchedAttention
from reluformer.modeling_reluformer.fused.specification import Specification
from reluformer.modeling_reluformer.fused.triton_launch import Tiles, triton_backward, triton_forward

from .cases import NAMES, reference, relative_error, visible_pairs

DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"
HALF = torch.float16 if DEVICE == "cpu" else torch.bfloat16  # the interpreter has no bfloat16 product
HALF_TOLERANCE = 0.005 if DEVICE == "cpu" else 0.01


@pytest.fixture(autouse=True)
def _poisoned_memory(monkeypatch):
    """What a kernel forgets to write is NaN."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: empty(*shape, **options).fill_(float("nan")))
    torch.manual_seed(0)


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


def ends(*places):
    return torch.tensor(places, dtype=torch.int32, device=DEVICE)


def by_reference(inputs, gradients, seen, dropped=None, *, dtype=torch.float64, **options):
    """O, S and T, and the gradients of query, key and value, by autograd; `dropped` is the explicit D."""
    leaves = [None if item is None else item.detach().to(dtype).requires_grad_() for item in inputs]
    found = reference(*leaves, seen=seen, **options)
    if dropped is not None:  # the output is linear in the values: D joins them
        query, key, value, row_scale = leaves
        eye = torch.eye(key.shape[2], dtype=dtype, device=DEVICE).expand(*key.shape[:2], -1, -1)
        weights = reference(query, key, eye, row_scale, seen=seen, **options)[0]
        group = query.shape[1] // key.shape[1]
        found = ((weights * dropped.to(dtype)) @ value.repeat_interleave(group, 1), *found[1:])
    loss = sum((item * gradient.to(item.dtype)).sum() for item, gradient in zip(found, gradients, strict=False))
    return [item.detach() for item in found], torch.autograd.grad(loss, leaves[:3])


def by_kernels(inputs, gradients, seed=7, **options):
    """The same from the kernels."""
    options = {"row_scale": inputs[3], **options}
    if isinstance(options.get("query_offset"), torch.Tensor):
        options["offset"] = options.pop("query_offset")
    specification = Specification(**options, seed=torch.tensor(seed))
    found = [item for item in triton_forward(*inputs[:3], specification) if item is not None]
    gains = [gradient if level < specification.level else None for level, gradient in enumerate(gradients[1:])]
    return found, triton_backward(gradients[0], *gains, *inputs[:3], specification)


def check(inputs, gradients, activation="relu", statistics=None, dropped=None, **options):
    """Kernels against the float64 reference, within 1e-5 or twice what the same-precision reference makes of it."""
    if statistics is None:
        statistics = "sum+entropy" if activation in NON_NEGATIVE else "none"
    query, key = inputs[:2]
    common = {"activation": activation, "statistics": statistics, "scale": query.shape[-1] ** -0.5}
    mask = {name: given for name, given in options.items() if name not in ("dropout_p", "seed")}
    with torch.device(DEVICE):
        seen = visible_pairs((query.shape[0], query.shape[2], key.shape[2]), **mask)
    expected = by_reference(inputs, gradients, seen, dropped, **common)
    found = by_kernels(inputs, gradients, **common, **options)
    plain = by_reference(inputs, gradients, seen, dropped, dtype=query.dtype, **common)
    columns = zip(*([*group[0], *group[1]] for group in (expected, found, plain)), strict=True)
    for name, (right, item, rounded) in zip(NAMES[: len(found[0])] + NAMES[3:6], columns, strict=True):
        error, usual = relative_error(item, right), relative_error(rounded, right)
        assert error <= 1e-5 or (error <= 2 * usual and name not in "ST"), f"{name}: {error:.2g} against {usual:.2g}"
        assert error <= (1e-3 if query.dtype == torch.float32 else HALF_TOLERANCE), f"{name}: {error:.2g}"
    return found


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("head_dim", [8, 32, 64, 80, 96, 128, 256])
def test_widths(head_dim, dtype):
    check(*tensors(queries=65, keys=33, head_dim=head_dim, dtype=dtype))


@pytest.mark.parametrize("activation", POINTWISE)
def test_activations_where_some_keys_are_padding_and_some_lie_ahead(activation):
    padding = torch.ones(2, 70, dtype=torch.bool, device=DEVICE)
    padding[0, :9] = padding[1, 50:] = False
    inputs, gradients = tensors(batch=2, queries=40, keys=70, dtype=HALF)
    inputs[0][:, :, 3] *= 8  # beyond relu6's upper bound and softplus's linear end
    check(inputs, gradients, activation, key_padding_mask=padding, causal=True, query_offset=30)


def test_any_strides():
    inputs, gradients = tensors(batch=2, heads=2, queries=35, head_dim=16)
    query = torch.randn(2, 35, 3, 2, 16, device=DEVICE)[:, :, 1].transpose(1, 2)  # one of three packed projections
    key = torch.randn(2, 2, 16, 70, device=DEVICE)[..., ::2].transpose(-1, -2)  # rows that are not contiguous
    value = torch.randn(35, 2, 2, 32, device=DEVICE).permute(1, 2, 0, 3)[..., :16]
    padding = (torch.rand(35, 2, device=DEVICE) < 0.7).T
    for grad_output in (gradients[0], torch.ones((), device=DEVICE).expand(2, 2, 35, 16)):
        check([query, key, value, inputs[3]], [grad_output, *gradients[1:]], key_padding_mask=padding)
    expanded = torch.randn(2, 1, 35, 16, device=DEVICE).expand(-1, 2, -1, -1)
    check([expanded, key, value, inputs[3]], gradients)


@pytest.mark.parametrize("activation", POINTWISE)
@pytest.mark.parametrize("where", [0, 1, 2])
def test_nan_stays_nan(where, activation):
    inputs, gradients = tensors(queries=20, head_dim=16)
    inputs[where][:, :, 4, 2] = float("nan")
    options = {"activation": activation, "scale": 0.25}
    options["statistics"] = "sum+entropy" if activation in NON_NEGATIVE else "none"
    (expected, right), (found, grads) = (
        by_reference(inputs, gradients, None, **options),
        by_kernels(inputs, gradients, **options),
    )
    for first, second in zip([*expected, *right], [*found, *grads], strict=True):
        assert (second.isnan() | ~first.isnan()).all()  # wherever the reference has NaN
    assert found[0].isnan().any()
    if where == 0:  # and not in the other rows
        assert not any(item[:, :, 5:].isnan().any() for item in (*found, grads[0]))


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 5, 5), (1, 5, 5)])
def test_nothing_gives_zeros(batch, queries, keys):
    """batch 1: rows of no sequence."""
    packed = {"cu_seqlens_q": ends(0), "cu_seqlens_k": ends(0)} if batch == 1 else {}
    inputs, gradients = tensors(batch=batch, queries=queries, keys=keys)
    options = {"activation": "sigmoid", "scale": 0.2, "statistics": "sum+entropy"}
    found, grads = by_kernels(inputs, gradients, **options, **packed)
    assert [item.shape for item in grads] == [item.shape for item in inputs[:3]]
    assert all((item == 0).all() for item in (*found, *grads))


def test_backward_repeats_to_the_bit():
    inputs, gradients = tensors(heads=4, key_heads=2, queries=70, dtype=HALF)
    options = {"activation": "relu", "scale": 0.2, "statistics": "sum+entropy", "dropout_p": 0.2}
    first, second = (by_kernels(inputs, gradients, **options) for _ in range(2))
    assert all(map(torch.equal, [*first[0], *first[1]], [*second[0], *second[1]]))


def dropout_mask(inputs, seed, dropout_p, width=64):
    """D read off the output: identity activation, ones for scores, unit vectors for values."""
    (batch, heads, queries, _), keys = inputs[0].shape, inputs[1].shape[2]
    query, key = (torch.full((batch, heads, rows, width), width**-0.5, device=DEVICE) for rows in (queries, keys))
    specification = Specification(activation="identity", dropout_p=dropout_p, seed=torch.tensor(seed))
    columns = []
    for start in range(0, keys, width):
        unit = torch.eye(keys, start + width, device=DEVICE)[:, start:].expand(batch, heads, keys, width)
        columns.append(triton_forward(query, key, unit, specification)[0])
    return torch.cat(columns, -1)[..., :keys]


def test_dropout_is_one_mask_in_forward_and_backward(monkeypatch):
    inputs, gradients = tensors(batch=3, heads=3, queries=20, keys=60, dtype=HALF)
    drawn = dropout_mask(inputs, 5, 0.3)
    kept = drawn > 0.5
    share = 1 - round(0.3 * 2**16) / 2**16  # of the weights that are kept
    torch.testing.assert_close(drawn, kept / share)
    deviations = (kept.double().mean() - 0.7) / (0.7 * 0.3 / kept.numel()) ** 0.5
    assert abs(deviations) < 4
    # neighbours along batch, heads, queries and keys are independent, 0.58 of them agree; keys 8 apart share a hash
    for axis, step in ((0, 1), (1, 1), (2, 1), (3, 1), (3, 8)):
        assert abs((kept == kept.roll(step, axis)).double().mean() - 0.58) < 0.03
    for seed in (6, 5 + 2**40, 0, 2**63 - 1):
        other = dropout_mask(inputs, seed, 0.3) > 0.5
        assert not torch.equal(other, kept) and 0.6 < other.double().mean() < 0.8
    for activation in ("relu", "sigmoid"):
        check(inputs, gradients, activation, dropped=kept.double() / share, dropout_p=0.3, seed=5)
    monkeypatch.setattr(triton_launch, "tile_sizes", lambda *call: Tiles(16, 32, 4, 1))
    assert torch.equal(dropout_mask(inputs, 5, 0.3) > 0.5, kept)
    check(inputs, gradients, dropped=kept.double() / share, dropout_p=0.3, seed=5)


@pytest.mark.parametrize("sizes", [(16, 128), (128, 16), (64, 64)])
def test_tile_sizes_change_nothing(sizes, monkeypatch):
    monkeypatch.setattr(triton_launch, "tile_sizes", lambda *call: Tiles(*sizes, 4, 1))
    places = ends(0, 30, 95, 140)
    check(*tensors(queries=140), "softplus", cu_seqlens_q=places, cu_seqlens_k=places, causal=True)
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
    inputs, gradients = tensors(queries=40, heads=2, dtype=HALF)
    options = {"activation": "relu", "scale": 0.2, "statistics": "sum+entropy"}
    slopes = []
    for dtype in (None, torch.float64):
        leaves = [item.detach().to(dtype or item.dtype).requires_grad_() for item in inputs]
        if dtype is None:
            specification = Specification(row_scale=leaves[3], causal=True, **options)
            outputs = _LaunchedAttention.apply(*leaves[:3], *specification.arguments())
        else:
            outputs = reference(*leaves, seen=visible_pairs((1, 40, 40), causal=True), **options)
        named = zip("OST", outputs, gradients, strict=True)
        loss = sum((item * gradient.to(item.dtype)).sum() for name, item, gradient in named if name in used)
        slopes.append(torch.autograd.grad(loss, leaves, allow_unused=True))
    for found, right in zip(*slopes, strict=True):
        right = torch.zeros_like(found) if right is None else right
        assert (found - right).norm() <= 2 * HALF_TOLERANCE * right.norm()
