"""The operators in torch's machinery: schema, compiler, checkpoints, autocast, derivatives."""

import functools
from dataclasses import fields

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from reluformer import relu_attention
from reluformer.modeling_reluformer.attention_reluformer import POINTWISE
from reluformer.modeling_reluformer.compiled import library
from reluformer.modeling_reluformer.fused import compiled_operator
from reluformer.modeling_reluformer.fused.activations import ACTIVATIONS
from reluformer.modeling_reluformer.fused.operator import pointwise_attention
from reluformer.modeling_reluformer.fused.specification import SCHEMA, Specification

from ..cases import needs_compiled_library
from .cases import SCALE, forced_path, random_inputs, results


@pytest.fixture(params=["blocks", "avx2"])
def path(request, monkeypatch):
    yield from forced_path(request.param, monkeypatch)


def attend(query, key, value, row_scale, **options):
    return relu_attention(query, key, value, row_scale=row_scale, statistics="sum+entropy", **options)


def test_it_keeps_torchs_rules(path):
    """Schema, fake tensors, autograd registration and strides, by torch's own check."""
    inputs = random_inputs(queries=20, keys=31, dtype=torch.float32).leaves()
    attend(*inputs[:4])  # the compiled library is loaded, and tells torch its rules, at the first call
    is_compiled = path.name.startswith("avx")
    operator = torch.ops.reluformer_cpu.attention.default if is_compiled else pointwise_attention
    options = {"key_padding_mask": torch.rand(2, 31) < 0.7, "scale": SCALE, "causal": True, "statistics": "sum+entropy"}
    options["window"] = 9
    tensors = {"offset": torch.tensor(3), "seed": torch.tensor(5)}
    specification = Specification(row_scale=inputs.row_scale, dropout_p=0.2, **options, **tensors)
    torch.library.opcheck(operator, (*inputs[:3], *specification.arguments()))


def test_python_and_cpp_take_the_same_arguments():
    needs_compiled_library()
    ours, theirs = (
        [(argument.name, str(argument.type)) for argument in operator._schema.arguments]
        for operator in (pointwise_attention._opoverload, torch.ops.reluformer_cpu.attention.default)
    )
    assert ours == theirs and [name for name, _ in ours[3:]] == [part.split()[1] for part in SCHEMA.split(", ")]


def test_cpp_knows_of_each_activation_what_python_knows():
    needs_compiled_library()
    operators = library.library(large=True)
    assert set(operators.activations()) == set(POINTWISE)
    for name in operators.activations():
        assert operators.closed_at_zero(name) == ACTIVATIONS[name].closed_at_zero
        assert ACTIVATIONS[name].has_kernels, f"on CUDA, blocks in PyTorch would compute {name}"


def test_the_arguments_of_the_operators_are_the_fields_in_their_order():
    distinct = {field.name: object() for field in fields(Specification)}
    assert Specification(**distinct).arguments() == tuple(distinct.values())


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True, "query_offset": torch.tensor(2)}, {"causal": True, "window": 7}],
    ids=["full", "offset", "window"],
)
def test_compiles_without_a_break(path, options):
    """To what it computes uncompiled, forward and backward, bit by bit."""
    inputs = random_inputs(queries=40, dtype=path.dtype)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    found = (results(lambda *tensors, of=of: of(*tensors, **options), inputs.leaves()) for of in (attend, compiled))
    assert all(map(torch.equal, *found))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mask",
    [
        {"causal": True},
        {"causal": True, "query_offset": torch.tensor(3)},
        {"causal": True, "query_offset": torch.tensor(3), "window": 5},
    ],
    ids=str,
)
def test_counted_scales_compile(mask):
    query, key, value = random_inputs(queries=24, keys=30, dtype=torch.float32)[:3]
    padding = torch.rand(2, 30) < 0.7

    def attention(query, key, value, padding):
        return relu_attention(query, key, value, gamma=8.0, key_padding_mask=padding, **mask)

    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(compiled(query, key, value, padding), attention(query, key, value, padding))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_draws_the_same_dropout(path, reentrant):
    gradients, inputs = [], random_inputs(queries=40, dtype=path.dtype)
    dropping = functools.partial(attend, dropout_p=0.5)
    for recompute in (False, True):
        leaves = inputs.leaves()
        torch.manual_seed(7)
        found = checkpoint(dropping, *leaves, use_reentrant=reentrant) if recompute else dropping(*leaves)
        sum(item.sum() for item in found).backward()
        gradients.append([leaf.grad for leaf in leaves])
    assert all(map(torch.equal, *gradients))


def test_second_and_forward_mode_derivatives_are_refused(path):
    inputs = random_inputs(queries=20, dtype=path.dtype).leaves()
    (first,) = torch.autograd.grad(attend(*inputs)[0].square().sum(), inputs.query, create_graph=True)
    with pytest.raises(RuntimeError, match=r"can be differentiated once|no autograd formula"):
        first.square().sum().backward()
    query, key, value, row_scale = random_inputs(dtype=path.dtype)
    with pytest.raises(NotImplementedError, match="was given a dual tensor"), forward_ad.dual_level():
        relu_attention(query, key, value, row_scale=forward_ad.make_dual(row_scale, row_scale))


def test_autocast_outside_does_not_change_the_products(path):
    inputs = random_inputs(queries=60, dtype=torch.float32)
    expected = attend(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(map(torch.equal, attend(*inputs), expected))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_without_gradients(path, mode):
    inputs = random_inputs(heads=4, queries=70, dtype=path.dtype)
    outside = attend(*inputs.leaves(), causal=True)
    with mode():
        inside = attend(*inputs, causal=True)
    assert all(map(torch.equal, inside, outside)) and not inside[0].requires_grad


def test_transforms_of_torch_func_take_the_python_loop():
    query, key, value, row_scale = random_inputs(dtype=torch.float32)

    def total(query):
        return relu_attention(query, key, value, row_scale=row_scale, scale=SCALE).square().sum()

    leaf = query.clone().requires_grad_()
    (expected,) = torch.autograd.grad(total(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(total)(query), expected)


def test_while_onednn_is_off_the_python_loop_computes():
    library.library(large=True)
    *inputs, row_scale = random_inputs(dtype=torch.float32)
    expected, served = (
        relu_attention(*inputs, row_scale=row_scale),
        compiled_operator.compiled_operator(*inputs[:2], Specification()),
    )
    compiled_operator._served_dtypes.cache_clear()
    with torch.backends.mkldnn.flags(enabled=False):
        torch.testing.assert_close(relu_attention(*inputs, row_scale=row_scale), expected)
    assert compiled_operator.compiled_operator(*inputs[:2], Specification()) is served


def test_only_a_large_call_builds(monkeypatch):
    """Never one of a `generate` of ten tokens."""
    asked = []
    monkeypatch.setattr(compiled_operator, "library", lambda large: asked.append(large))
    monkeypatch.setattr(library, "_stage", library._BEGINNING)
    short, long = (torch.empty(1, 8, length, 1).requires_grad_() for length in (100, 1024))
    for tensor in (short, long):
        compiled_operator.compiled_operator(tensor, tensor, Specification())
    with torch.no_grad():
        compiled_operator.compiled_operator(long, long, Specification())
    assert asked == [False, True, False]


UNFIT = {
    "of three dimensions": {"value": torch.randn(4, 7, 8)},
    "of another dtype": {"key": torch.randn(2, 4, 7, 8, dtype=torch.float64)},
    "of a dtype without code": {
        name: torch.randn(2, 4, length, 8, dtype=torch.float64)
        for name, length in (("query", 5), ("key", 7), ("value", 7))
    },
    "of another batch": {"key": torch.randn(1, 4, 7, 8), "value": torch.randn(1, 4, 7, 8)},
    "of heads that do not divide": {"key": torch.randn(2, 3, 7, 8), "value": torch.randn(2, 3, 7, 8)},
    "of another width": {"key": torch.randn(2, 4, 7, 9)},
    "of no width": {"value": torch.randn(2, 4, 7, 0)},
    "of other keys": {"value": torch.randn(2, 4, 6, 8)},
    "scales of other rows": {"row_scale": torch.ones(2, 1, 6)},
    "scales of another dtype": {"row_scale": torch.ones(2, 1, 5, dtype=torch.float64)},
    "scales of other heads": {"row_scale": torch.ones(2, 3, 5)},
    "a mask of other keys": {"key_padding_mask": torch.ones(2, 6, dtype=torch.bool)},
    "a mask of numbers": {"key_padding_mask": torch.ones(2, 7)},
}


@pytest.mark.parametrize("changed", UNFIT.values(), ids=UNFIT)
def test_the_compiled_operator_reads_no_tensor_that_does_not_fit(changed):
    """It could read what belongs to others; `relu_attention` refuses most of these before, in more words."""
    operators = library.library(large=True)
    if operators is None:
        pytest.skip("the compiled library cannot be built here")
    tensors = {"query": torch.randn(2, 4, 5, 8), "key": torch.randn(2, 4, 7, 8), "value": torch.randn(2, 4, 7, 8)}
    tensors |= {"row_scale": torch.ones(2, 1, 5), "key_padding_mask": torch.ones(2, 7, dtype=torch.bool)}

    def call(query, key, value, **options):
        return operators.attention(query, key, value, *Specification(**options).arguments())

    call(**tensors)
    with pytest.raises(ValueError, match="the tensors do not fit each other"):
        call(**tensors | changed)
