"""What happens to a model after `use_sparse_ffn`: its parts are changed, watched or trained, and threads share it."""

import pytest
import torch
from torch import nn

from reluformer import use_sparse_ffn
from reluformer.modeling_reluformer.sparse_ffn.blocks import sparse_blocks
from reluformer.modeling_reluformer.sparse_ffn.weights import PreparedWeights

from ...conftest import random_tokens
from .sparse_cases import build


def logits(model) -> torch.Tensor:
    ids = random_tokens(2, 4)
    arguments = {"input_ids": ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})}
    torch.manual_seed(1)
    with torch.no_grad():
        return model(**arguments).logits


@pytest.mark.parametrize("name", ["t5", "t5-gated"])
def test_dropout_that_draws_samples_in_evaluation_mode_is_not_left_out(name):
    model = build(name)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.5
            part.train()
    expected = logits(model)
    assert torch.equal(logits(use_sparse_ffn(model)), expected)


def test_the_activation_of_the_second_factor_is_watched():
    model = build("decoder-dglu")
    factor, seen = model.model.layers[0].mlp.up_fn, []
    factor.register_forward_hook(lambda *_: seen.append(1))
    logits(use_sparse_ffn(model))
    seen.clear()  # that of the comparison with the forward of the class
    logits(model)
    assert len(seen) == 1


def test_another_activation_of_the_second_factor_is_an_error_not_another_result():
    model = use_sparse_ffn(build("decoder-dglu"))
    model.model.layers[0].mlp.up_fn = nn.SiLU()
    with pytest.raises(ValueError, match="up_fn was replaced by a SiLU after use_sparse_ffn"):
        logits(model)


@pytest.mark.parametrize("name", ["opt", "llama"])
def test_weights_of_inference_mode_are_multiplied_densely(name):
    model, other = use_sparse_ffn(build(name)), build(name, seed=4)
    with torch.inference_mode():
        model.load_state_dict({key: value.clone() for key, value in other.state_dict().items()}, assign=True)
    assert torch.equal(logits(model), logits(other))


def test_biases_of_inference_mode_are_refused():
    model = build("opt")
    with torch.inference_mode():
        sparse_blocks(model)[0].module.fc1.bias = nn.Parameter(torch.zeros(40))
    with pytest.raises(ValueError, match=r"fc1 was made in torch\.inference_mode"):
        use_sparse_ffn(model)


def test_a_thread_that_decodes_while_another_prepares_new_weights_does_not_read_the_old_ones(monkeypatch):
    linear = nn.Linear(5, 3)
    weights, make, found = PreparedWeights(linear, transposed=True, int8=False), PreparedWeights._make, []
    weights.current()
    with torch.no_grad():
        linear.weight.add_(1)

    def interrupted(self, *seen):
        monkeypatch.setattr(PreparedWeights, "_make", make)
        found.append(self.current().weight)  # the other thread
        return make(self, *seen)

    monkeypatch.setattr(PreparedWeights, "_make", interrupted)
    found.append(weights.current().weight)
    assert len(found) == 2 and all(torch.equal(each, linear.weight.t()) for each in found)


def test_a_thread_that_trains_takes_no_weights_from_one_that_decodes(monkeypatch):
    weights, changed = PreparedWeights(nn.Linear(5, 3), transposed=False, int8=False), PreparedWeights._changed
    kept = weights.current()

    def interrupted(self, place, tensor):
        found = changed(self, place, tensor)
        if place == 1:
            self.forget()  # the other thread
        return found

    monkeypatch.setattr(PreparedWeights, "_changed", interrupted)
    assert weights.current() is kept
