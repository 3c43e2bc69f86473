"""Where the model meets the library, and what is refused there."""

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import is_flash_attn_2_available

from reluformer import ReLUFormerForConditionalGeneration
from reluformer.modeling_reluformer.attention_reluformer import Visibility
from reluformer.modeling_reluformer.fused.model_attention import fused_attention_forward
from reluformer.modeling_reluformer.layers_reluformer import AttentionContext, GatedRMSNorm

from ..conftest import random_tokens, tiny_config, tiny_model


def test_embeddings_may_be_given_instead_of_tokens():
    model, tokens, target = tiny_model(), random_tokens(2, 7), random_tokens(2, 5, seed=1)
    expected = model(input_ids=tokens, decoder_input_ids=target).logits
    embedded = model.get_input_embeddings()(tokens)  # the model scales both
    torch.testing.assert_close(model(inputs_embeds=embedded, decoder_input_ids=target).logits, expected)


@pytest.mark.parametrize("shape", [(2, 7, 15), (7, 16), (2, 16, 7)])
def test_embeddings_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"inputs_embeds must have the shape \(batch, length, 16\)"):
        tiny_model()(inputs_embeds=torch.zeros(*shape), decoder_input_ids=random_tokens(2, 5))


def test_a_cache_counts_towards_the_positions():
    """64 positions: 60 tokens, and then 10 more."""
    model = tiny_model()
    source = random_tokens(1, 5)
    past = model(input_ids=source, decoder_input_ids=random_tokens(1, 60), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="70 tokens is longer than max_position_embeddings=64"):
        model(input_ids=source, decoder_input_ids=random_tokens(1, 10), past_key_values=past)


def test_encoder_states_of_another_batch_are_refused():
    encoded = BaseModelOutput(last_hidden_state=torch.zeros(3, 7, 16))
    with pytest.raises(ValueError, match="3"):
        tiny_model()(encoder_outputs=encoded, decoder_input_ids=random_tokens(2, 5))


def test_a_decoder_alone_refuses_them_too():
    with pytest.raises(ValueError, match="got 3 sources and 2 targets"):
        tiny_model().get_decoder()(input_ids=random_tokens(2, 5), encoder_hidden_states=torch.zeros(3, 7, 16))


@pytest.mark.parametrize("size", [37, 45])
def test_a_resized_vocabulary_keeps_the_bias_of_its_tokens(size):
    model = tiny_model()
    bias = torch.randn(1, 40)
    model.final_logits_bias.copy_(bias)
    model.resize_token_embeddings(size)
    expected = torch.cat([bias, torch.zeros(1, 5)], dim=1)[:, :size]
    assert torch.equal(model.final_logits_bias, expected)


def test_fused_attention_takes_no_whole_mask():
    """A hook or a call of its own may bring one to it, past the model."""
    model = tiny_model()
    module, states = model.get_encoder().layers[0].self_attn, torch.randn(1, 4, 5, 4)
    visibility = Visibility(given_mask=torch.ones(1, 1, 5, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match="takes no four-dimensional mask"):
        fused_attention_forward(module, states, states, states, None, visibility=visibility)


def test_a_context_moves_all_its_tensors():
    """As accelerate's hooks ask for it between layers on two devices."""
    visibility = Visibility(key_padding_mask=torch.ones(2, 5, dtype=torch.bool), causal=True)
    tensors = {"visible_keys": torch.ones(2, 5), "row_scale": torch.ones(2, 1, 5), "row_weight": torch.ones(2, 5)}
    context = AttentionContext(print, visibility, mask=None, statistics="sum", **tensors).to("meta")
    assert (context.mask, context.statistics, context.visibility.causal) == (None, "sum", True)
    moved = [context.visibility.key_padding_mask, *(getattr(context, name) for name in tensors)]
    assert [tensor.device.type for tensor in moved] == ["meta"] * 4


def test_what_a_checkpoint_lacks_has_its_initial_value(tmp_path):
    """A softmax model is loaded as ReLA, whose gates it does not have, with a gamma that is learned."""
    tiny_model(preset="vanilla").save_pretrained(tmp_path)
    fields = {"attention_output_norm": "gated_rms", "attention_gamma_learnable": True, "attention_gamma": 3.0}
    config = tiny_config(**fields, regularization_weight=0.0)
    model = ReLUFormerForConditionalGeneration.from_pretrained(tmp_path, config=config)
    norms = [module for module in model.modules() if isinstance(module, GatedRMSNorm)]
    assert norms and all(bool((norm.gate == 1).all()) for norm in norms)
    gammas = [parameter for name, parameter in model.named_parameters() if name.endswith("log_gamma")]
    assert gammas and all(torch.allclose(gamma.exp(), torch.tensor(3.0)) for gamma in gammas)


def test_the_library_checks_its_own_implementations():
    """Flash attention where its package is missing."""
    if is_flash_attn_2_available():
        pytest.skip("flash_attn is installed")
    model = tiny_model(preset="vanilla")
    with pytest.raises((ImportError, ValueError), match=r"(?i)flash"):
        model.set_attn_implementation("flash_attention_2")
