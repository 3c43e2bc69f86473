"""Networks and models with zeros beside torch and the dense loop: zeros as asked for, and the same results."""

import pytest
import torch

from benchmarks import zeros
from benchmarks.zeros import contender, network_model, shifted_rows

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.mark.parametrize("kind", ["MLP", "GLU"])
@torch.no_grad()
def test_zeros_are_those_asked_for_and_every_contender_computes_the_network(kind):
    torch.manual_seed(0)
    cell = {"width": 96, "kind": kind, "rows": 5}
    model = network_model(cell, 1, "float32")
    for share in zeros.ZEROS:
        rows = shifted_rows(cell, share)
        found = zeros.zeros_of(model, rows)
        assert found["zeros"] == pytest.approx(share / 100, abs=0.05)
        assert found["active"] == pytest.approx(1 - (share / 100) ** 5, abs=0.08), "rows are independent"
        expected = model.model.layers[0].mlp(rows)
        for name in ("torch", "dense", "zeros"):
            torch.testing.assert_close(contender(model, f"float32 {name}").model.layers[0].mlp(rows), expected)
    dense, sparse = (contender(model, f"float32 {name}").model.layers[0].mlp for name in ("dense", "zeros"))
    assert dense.forward.all_active and not sparse.forward.all_active


@torch.no_grad()
def test_calls_take_the_networks_in_turn():
    model = network_model({"width": 32, "kind": "GLU", "rows": 1}, 3, "bfloat16")
    rows = torch.ones(1, 32, dtype=torch.bfloat16)
    step = zeros.cycle(model, rows)
    found = [step() for _ in range(4)]
    assert torch.equal(found[0], found[3]) and not torch.equal(found[0], found[1])
    size = sum(part.numel() * part.element_size() for part in model.model.layers[0].mlp.parameters())
    assert size == zeros.bytes_read({"width": 32, "kind": "GLU"}, "bfloat16", 1.0)


@pytest.mark.parametrize("shape", zeros.SHAPES)
@torch.no_grad()
def test_models_have_the_zeros_asked_for(shape):
    torch.manual_seed(0)
    sizes = zeros.SHAPES[shape] | {"num_hidden_layers": 1, "vocab_size": 64}
    model = zeros.with_zeros(zeros.MODELS[shape](sizes), 90)
    given = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    found = [
        contender(model, f"float32 {name}").generate(torch.tensor([[5, 6]]), **given) for name in ("torch", "zeros")
    ]
    assert torch.equal(*found)
    step = lambda: model.generate(torch.tensor([[5, 6]]), **given)  # noqa: E731
    assert zeros.zeros_while(model, step) == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize("how", ["torch", "both"])
@torch.no_grad()
def test_int8_of_torch_takes_the_networks_that_skip_zeros_only_where_nothing_else_does(how):
    model = zeros.with_zeros(zeros.MODELS[zeros.OURS](zeros.QUICK), 90)
    found = contender(model, f"int8 {how}")
    own = [name for name, part in found.named_modules() if type(part) is torch.nn.Linear]
    assert [name.rpartition(".")[2] for name in own] == (["gate_proj", "up_proj", "down_proj"] if how == "both" else [])
    assert ("forward" in vars(found.model.layers[0].mlp)) == (how == "both")
    assert "quantized" in type(found.lm_head).__module__ and "forward" not in vars(model.model.layers[0].mlp)


def test_the_bound_is_that_of_the_weights_that_are_read():
    for kind, most in (("MLP", 1.90), ("GLU", 2.73)):
        cell = {"width": 512, "kind": kind}
        ratio = zeros.bytes_read(cell, "float32", 1.0) / zeros.bytes_read(cell, "float32", 0.05)
        assert ratio == pytest.approx(most, abs=0.005)
    assert zeros.measured_bandwidth(2**16) > 0
