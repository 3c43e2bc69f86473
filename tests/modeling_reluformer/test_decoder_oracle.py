"""With shared weights, the decoder computes what GPT-2, a GPT-2 without norms and Llama of Transformers compute."""

import pytest
import torch
from torch import nn

import reluformer  # noqa: F401  (makes attn_implementation="reluformer" known)
from reluformer import ReLUFormerForCausalLM, use_relu_attention
from reluformer.training.foreign_models import FOREIGN_MODELS, convert_model, gpt2_config, gpt2_weights
from reluformer.training.run.initialization import model_with_weights

from .decoder_cases import gpt2_model, llama_model, token_ids
from .padded_batches import mask_of, padded

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MODELS = {
    "gpt2": gpt2_model,
    "gpt2-relu-untied": lambda: gpt2_model(activation_function="relu", tie_word_embeddings=False),
    "gpt2-free": lambda: without_norms(gpt2_model(activation_function="relu")),
    "llama": llama_model,
    "llama-one-key-head": lambda: llama_model(num_key_value_heads=1, tie_word_embeddings=True),
    "llama-biases-wide-heads": lambda: llama_model(attention_bias=True, mlp_bias=True, head_dim=10),
    "llama-rope": lambda: llama_model(rope_parameters=LLAMA3_ROPE),
}
ATTENTIONS = {
    "softmax": None,
    "relu": {"activation": "relu", "scaling": "variance", "gamma": 2.0},
    "relu2-length": {"activation": "relu2", "scaling": "length", "alpha": 0.5},
}


def without_norms(gpt2):
    for block in gpt2.transformer.h:
        block.ln_1 = block.ln_2 = nn.Identity()
    return gpt2


def converted(foreign, changes=None) -> ReLUFormerForCausalLM:
    """As `convert_model`, also of a GPT-2 whose norms have been taken out, which its configuration cannot say."""
    if foreign.config.model_type == "llama" or not isinstance(foreign.transformer.h[0].ln_1, nn.Identity):
        model, new = convert_model(foreign, changes)
    else:
        config = gpt2_config(foreign.config)
        fields = {**config.to_dict(), "normalization": "none", "attention_scaling": None, **(changes or {})}
        weights = gpt2_weights(foreign.state_dict())
        del weights["lm_head.weight"]
        model, new = model_with_weights(type(config)(**fields), weights, dtype=foreign.dtype)
    assert new == []
    return model


def pair_of_models(name: str, attention: str = "softmax"):
    """The library's model, and ours with the same weights."""
    foreign, settings = MODELS[name](), ATTENTIONS[attention]
    changes = None
    if settings is not None:
        changes = {f"attention_{field}": value for field, value in settings.items()} | {"regularization_weight": 0.0}
    model = converted(foreign, changes)
    if settings is not None:
        use_relu_attention(foreign, **settings)
    return foreign, model


def their_gradients(foreign) -> dict[str, torch.Tensor]:
    source = FOREIGN_MODELS[foreign.config.model_type]
    gradients = {name: parameter.grad for name, parameter in foreign.named_parameters()}
    return source.weights(gradients)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_loss_and_gradients(name, attention):
    foreign, model = pair_of_models(name, attention)
    assert model.config._attn_implementation == ("sdpa" if attention == "softmax" else "fused")
    ids = token_ids()
    labels = ids.clone()
    labels[0, 3:5] = -100
    expected, found = (each(ids, labels=labels) for each in (foreign, model))
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.loss, expected.loss, atol=1e-5, rtol=0)
    expected.loss.backward()
    found.loss.backward()
    theirs, ours = their_gradients(foreign), {name: parameter.grad for name, parameter in model.named_parameters()}
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["gpt2", "gpt2-free", "llama", "llama-rope"])
def test_padding_changes_nothing(name, side, implementation):
    foreign, model = pair_of_models(name)
    model.set_attn_implementation(implementation)
    ids = token_ids()
    expected = foreign(ids).logits
    mask = mask_of(ids, 4, side)
    found = model(padded(ids, 4, side), attention_mask=mask)
    torch.testing.assert_close(found.logits[mask.bool()], expected.flatten(0, 1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("attention", ["softmax", "relu"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_padded_batch_of_the_library_with_its_own_positions(name, side, attention):
    foreign, model = pair_of_models(name, attention)
    ids = token_ids()
    mask = mask_of(ids, 3, side)
    inputs = {"input_ids": padded(ids, 3, side), "attention_mask": mask}
    inputs["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)
    expected, found = (each(**inputs).logits[mask.bool()] for each in (foreign, model))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("attention", ["softmax", "relu"])
@pytest.mark.parametrize("name", ["gpt2", "gpt2-free", "llama", "llama-rope"])
def test_steps_with_a_cache(name, attention):
    foreign, model = pair_of_models(name, attention)
    ids = token_ids()
    expected = foreign(ids).logits
    first = model(ids[:, :4], use_cache=True)
    second = model(ids[:, 4:7], past_key_values=first.past_key_values)
    last = model(ids[:, 7:8], past_key_values=second.past_key_values)
    final = model(ids[:, 8:], past_key_values=last.past_key_values)
    found = torch.cat([output.logits for output in (first, second, last, final)], dim=1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    if name.startswith("llama"):
        assert final.past_key_values.layers[0].keys.shape[1] == 2, "the keys of a group are held once"


@pytest.mark.parametrize("attention", ["softmax", "relu"])
@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"cache_implementation": "static"}], ids=str)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generation_from_prompts_padded_on_the_left(name, settings, attention):
    foreign, model = pair_of_models(name, attention)
    ids = token_ids(2, 6)
    mask = torch.ones_like(ids)
    ids[0, :3], mask[0, :3] = 0, 0
    settings = {
        "max_new_tokens": 8,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
        **settings,
    }
    if "cache_implementation" in settings:
        settings["disable_compile"] = True
    expected, found = (each.generate(ids, attention_mask=mask, **settings) for each in (foreign, model))
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(expected.logits), atol=1e-5, rtol=0)


def test_weights_and_hidden_states_are_those_of_llama():
    foreign, model = pair_of_models("llama")
    for each in (foreign, model):
        each.set_attn_implementation("eager")
    expected, found = (
        each(token_ids(), output_attentions=True, output_hidden_states=True) for each in (foreign, model)
    )
    for name in ("hidden_states", "attentions"):
        theirs, ours = getattr(expected, name), getattr(found, name)
        assert len(theirs) == len(ours) == (3 if name == "hidden_states" else 2)
        for one, two in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, two, atol=1e-5, rtol=0)
