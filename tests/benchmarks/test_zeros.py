"""Models with zeros beside torch and the dense loop: zeros as asked for, and the same results."""

import pytest
import torch

from benchmarks import zeros
from benchmarks.zeros import contender

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.mark.parametrize("shape", zeros.SHAPES)
@torch.no_grad()
def test_models_have_the_zeros_asked_for(shape):
    torch.manual_seed(0)
    sizes = zeros.SHAPES[shape] | {"num_hidden_layers": 1, "vocab_size": 64}
    model = zeros.with_zeros(zeros.MODELS[shape](sizes), 90)
    ids, given = torch.tensor([[5, 6]]), {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    found = [contender(model, f"float32 {name}").generate(ids, **given) for name in ("torch", "zeros")]
    assert torch.equal(*found)
    dense, sparse = (contender(model, f"float32 {name}") for name in ("dense", "zeros"))
    loops = [[vars(part)["forward"] for part in each.modules() if "forward" in vars(part)] for each in (dense, sparse)]
    assert all(loop.all_active for loop in loops[0]) and loops[1] and not any(loop.all_active for loop in loops[1])
    step = lambda: model.generate(ids, **given)  # noqa: E731
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
