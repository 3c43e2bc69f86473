"""The operator of the blockwise loop in torch's machinery: compiler, checkpoints, other copies of the package."""

import pytest
import torch

import reluformer.modeling_reluformer.fused.attention as fused
from reluformer import relu_attention
from reluformer.modeling_reluformer.fused.compiled.library import python_loop
from reluformer.modeling_reluformer.fused.operator import pointwise_attention

from .cases import (
    assert_checkpoint_draws_the_same_dropout,
    assert_compiles_without_a_break,
    attend,
    random_inputs,
)


@pytest.fixture(autouse=True)
def blocks(monkeypatch):
    monkeypatch.setattr(fused, "_is_small", lambda *call: False)
    with python_loop():
        yield


@pytest.mark.parametrize("statistics", ["none", "sum", "sum+entropy"])
def test_operator_keeps_torchs_rules(statistics):
    """Schema, fake tensors, autograd registration and strides, by torch's own check."""
    inputs = random_inputs(queries=20, keys=31, dtype=torch.float32).leaves()
    mask = torch.rand(2, 31) < 0.7
    options = ("relu", 0.25, True, 3, 0.0, statistics)
    torch.library.opcheck(pointwise_attention, (*inputs, mask, None, None, None, None, *options))
    offset, seed = torch.tensor(3), torch.tensor(5)
    torch.library.opcheck(
        pointwise_attention, (*inputs, mask, None, None, offset, seed, "relu", 0.25, True, 0, 0.2, statistics)
    )


@pytest.mark.parametrize("options", [{}, {"causal": True, "query_offset": torch.tensor(2)}], ids=["full", "offset"])
def test_compiles_without_a_break(options):
    assert_compiles_without_a_break(random_inputs(queries=40).leaves(), **options)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_draws_the_same_dropout(reentrant):
    assert_checkpoint_draws_the_same_dropout(random_inputs(queries=40).leaves(), reentrant)


def test_second_derivatives_are_refused():
    inputs = random_inputs(queries=20).leaves()
    (first,) = torch.autograd.grad(attend(*inputs)[0].square().sum(), inputs.query, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        first.square().sum().backward()


def test_autocast_outside_does_not_change_the_products():
    inputs = random_inputs(queries=60, dtype=torch.float32)
    expected = attend(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attend(*inputs)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_without_gradients(mode, threads, activation, dtype):
    inputs = random_inputs(heads=4, queries=70, dtype=dtype)
    options = {"activation": activation, "causal": True, "statistics": "sum" if activation == "relu" else "none"}
    outside = relu_attention(*inputs[:3], row_scale=inputs.row_scale, **options)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with mode():
            inside = relu_attention(*inputs[:3], row_scale=inputs.row_scale, **options)
    finally:
        torch.set_num_threads(before)
    for one, other in zip(
        *(found if isinstance(found, tuple) else (found,) for found in (inside, outside)), strict=True
    ):
        assert torch.equal(one, other)
