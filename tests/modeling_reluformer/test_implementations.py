"""Every way to compute a model gives the same results; one that does not exist is refused."""

import pytest
import torch

from reluformer import ReLUFormerForConditionalGeneration
from reluformer.modeling_reluformer.configuration_reluformer import valid_attention_implementations

from ..conftest import random_tokens, skip_without_entmax, tiny_config, tiny_model
from .padded_batches import implementations, mask_of


def test_implementations_agree(variant):
    source, target = random_tokens(2, 7), random_tokens(2, 5, seed=1)
    mask = mask_of(source[:, :5], 2, "right")
    outputs = {}
    for implementation in implementations(variant):
        model = tiny_model(attn_implementation=implementation, **variant).double()
        output = model(input_ids=source, attention_mask=mask, labels=target)
        output.loss.backward()
        gradient = torch.cat(
            [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        )
        outputs[implementation] = (output.logits, output.loss, gradient)
    first, *others = outputs.values()
    for other in others:
        for expected, found in zip(first, other, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("fields", "implementation"),
    [
        ({}, "sdpa"),
        ({}, "flash_attention_2"),
        ({}, "flex_attention"),
        ({}, "paged|eager"),
        ({}, "kernels-community/flash-attn"),
        ({"attention_activation": "softplus"}, "sdpa"),
        ({"preset": "vanilla"}, "fused"),
        ({"preset": "vanilla"}, "flex_attention"),
        ({"preset": "sparsemax"}, "sdpa"),
        ({"preset": "entmax15"}, "fused"),
    ],
    ids=str,
)
def test_impossible_pair_is_refused_with_the_valid_ones(fields, implementation):
    skip_without_entmax(fields)
    config = tiny_config(**fields)
    valid = ", ".join(valid_attention_implementations(config.attention_activation))
    expected = f"is not supported by attention_activation='{config.attention_activation}'; choose one of {valid}"
    config._attn_implementation = implementation
    with pytest.raises(ValueError, match=expected):
        ReLUFormerForConditionalGeneration(config)
    model = tiny_model(**fields)
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match=expected):
        model.set_attn_implementation(implementation)
    assert model.config._attn_implementation == before


def test_default_implementation_follows_the_activation():
    assert tiny_model().config._attn_implementation == "fused"
    assert tiny_model(preset="vanilla").config._attn_implementation == "sdpa"


def test_output_attentions_returns_the_weights_or_raises():
    model = tiny_model()
    source, target = random_tokens(2, 7), random_tokens(2, 5, seed=1)
    with pytest.raises(ValueError, match="output_attentions=True needs attn_implementation='eager'; 'fused'"):
        model(input_ids=source, decoder_input_ids=target, output_attentions=True)
    model.set_attn_implementation("eager")
    output = model(input_ids=source, decoder_input_ids=target, output_attentions=True, output_hidden_states=True)
    assert [weights.shape for weights in output.encoder_attentions] == [(2, 4, 7, 7)] * 2
    assert [weights.shape for weights in output.decoder_attentions] == [(2, 2, 5, 5)] * 2
    assert [weights.shape for weights in output.cross_attentions] == [(2, 2, 5, 7)] * 2
    assert len(output.encoder_hidden_states) == len(output.decoder_hidden_states) == 3


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_gives_the_same_gradients(reentrant):
    source, target = random_tokens(2, 7), random_tokens(2, 5, seed=1)
    gradients = []
    for checkpointing in (False, True):
        model = tiny_model(dropout=0.0, attention_dropout=0.0, regularization_weight=1.0).double().train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model(input_ids=source, labels=target).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)
