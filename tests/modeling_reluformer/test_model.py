"""The model's own parts: what it takes, refuses and returns, its dropout, parameters and embeddings."""

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import EncoderDecoderCache

from reluformer import ReLUFormerForConditionalGeneration
from reluformer.modeling_reluformer.attention_reluformer import NON_NEGATIVE
from reluformer.modeling_reluformer.layers_reluformer import GatedRMSNorm

from ..conftest import VARIANTS, VOCABULARY, random_tokens, tiny_config, tiny_model
from .padded_batches import padded


def test_learnable_gamma_starts_at_gamma_and_gets_a_gradient():
    model = tiny_model(attention_gamma_learnable=True, attention_gamma=5)
    fresh = ReLUFormerForConditionalGeneration(model.config)
    attention = fresh.model.encoder.layers[0].self_attn
    torch.testing.assert_close(attention.log_gamma.exp(), torch.full((4,), 5.0))
    model(input_ids=random_tokens(2, 7), labels=random_tokens(2, 5)).loss.backward()
    assert all((a.log_gamma.grad != 0).any() for a in model.modules() if hasattr(a, "log_gamma"))


def test_wrong_calls_say_what_is_wrong():
    model = tiny_model()
    source, target = random_tokens(2, 7), random_tokens(2, 5, seed=1)
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model.model.encoder()
    with pytest.raises(ValueError, match="70 tokens is longer than max_position_embeddings=64"):
        model(input_ids=random_tokens(1, 70), labels=target[:1])
    with pytest.raises(ValueError, match=r"\(batch, keys\) = \(2, 7\).*got \(2, 6\)"):
        model(input_ids=source, attention_mask=torch.ones(2, 6), labels=target)
    with pytest.raises(ValueError, match="this one has other values"):
        model(input_ids=source, attention_mask=(torch.ones_like(source) - 1) * 10000 - 3, labels=target)
    with pytest.raises(ValueError, match="must be boolean"):
        model(input_ids=source, attention_mask=torch.zeros(2, 1, 7, 7), labels=target)
    with pytest.raises(ValueError, match="only segment_ids was given"):
        model(input_ids=source, decoder_input_ids=target, segment_ids=torch.ones_like(source))
    with pytest.raises(ValueError, match="padded on the left"):
        model(input_ids=source, labels=padded(target, 2, "left", -100))
    segments = {"segment_ids": torch.ones_like(source), "decoder_segment_ids": torch.tensor([[1, 1, 1, 2, 2]] * 2)}
    first_missing = target.masked_fill(torch.tensor([False, False, False, True, False]), -100)
    with pytest.raises(ValueError, match="begins with -100"):
        model(input_ids=source, labels=first_missing, **segments)
    with pytest.raises(ValueError, match=r"shape of the labels, \(2, 4\); got \(2, 5\)"):
        model(input_ids=source, labels=target[:, :4], **segments)
    with pytest.raises(ValueError, match=r"\(batch, queries\) = \(2, 4\); got \(2, 5\)"):
        model(input_ids=source, decoder_input_ids=target[:, :4], **segments)
    with pytest.raises(ValueError, match=r"four-dimensional attention mask .* and segment ids were given"):
        model.model.encoder(source, torch.ones(2, 1, 7, 7).bool(), segment_ids=segments["segment_ids"])
    with pytest.raises(ValueError, match=r"\(2, 1, 7, 7\); got \(2, 4, 7, 7\)"):
        model.model.encoder(source, torch.ones(2, 4, 7, 7).bool())
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    model(input_ids=source, decoder_input_ids=target, past_key_values=cache)
    with pytest.raises(ValueError, match="do not go with a cache that holds earlier tokens"):
        model(input_ids=source, decoder_input_ids=target, past_key_values=cache, **segments)


def test_every_non_negative_activation_reports_its_figures():
    for fields in VARIANTS.values():
        config = tiny_config(**fields)
        if config.attention_activation in NON_NEGATIVE:
            output = tiny_model(**fields)(input_ids=random_tokens(2, 7), labels=random_tokens(2, 5))
            assert 0 <= output.dead_row_fraction < 1 and output.attention_entropy > 0 and output.attention_sum > 0


def test_form_of_the_outputs():
    """By the configuration: the same numbers as a tuple, or with hidden states beside them."""
    batch = {"input_ids": random_tokens(2, 7), "labels": random_tokens(2, 5)}
    expected = tiny_model()(**batch)
    as_tuple = tiny_model(return_dict=False)(**batch)
    assert isinstance(as_tuple, tuple)
    assert all(torch.equal(one, two) for one, two in zip(as_tuple, expected.to_tuple(), strict=True))
    assert expected.encoder_hidden_states is None
    assert len(tiny_model(output_hidden_states=True)(**batch).encoder_hidden_states) == 3


def test_attention_modules_have_the_attributes_of_the_librarys():
    model = tiny_model().model
    for index, layer in enumerate(model.encoder.layers):
        module = layer.self_attn
        assert (module.layer_idx, module.num_heads, module.head_dim) == (index, 4, 4)
        assert (module.is_decoder, module.is_causal) == (False, False)
    for index, layer in enumerate(model.decoder.layers):
        for module, causal in ((layer.self_attn, True), (layer.encoder_attn, False)):
            assert (module.layer_idx, module.num_heads, module.head_dim) == (index, 2, 8)
            assert (module.is_decoder, module.is_causal) == (True, causal)


def test_the_gated_norm_of_narrow_numbers_is_torchs_of_one_dtype():
    """Torch has no fused kernel for two dtypes, and warns."""
    norm = GatedRMSNorm(8)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.gate.zero_()  # half of everything passes
    states = torch.randn(64, 8, dtype=torch.bfloat16)
    expected = torch.nn.functional.rms_norm(states, (8,), norm.weight.bfloat16(), norm.eps) / 2
    torch.testing.assert_close(norm(states).bfloat16(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("preset", ["reluformer", "vanilla"])
def test_each_dropout_acts_while_training_and_only_then(preset, name):
    rates = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    plain, model = tiny_model(preset=preset, **rates), tiny_model(preset=preset, **{**rates, name: 0.5})
    batch = {"input_ids": random_tokens(2, 9), "decoder_input_ids": random_tokens(2, 7, seed=1)}
    expected = plain(**batch).logits
    torch.testing.assert_close(model(**batch).logits, expected)
    torch.testing.assert_close(plain.train()(**batch).logits, expected)
    model.train()
    first, second = model(**batch).logits, model(**batch).logits
    assert not torch.allclose(first, expected) and not torch.allclose(first, second)


def test_every_parameter_takes_part(variant):
    model = tiny_model(**variant).train()
    model(input_ids=random_tokens(2, 9), labels=random_tokens(2, 7, seed=1)).loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("shared", [True, False])
def test_embeddings_that_are_set_are_those_that_are_used(shared):
    model = tiny_model(share_encoder_decoder_embeddings=shared, tie_word_embeddings=shared)
    embeddings = torch.nn.Embedding(model.config.vocab_size, model.config.d_model, model.config.pad_token_id)
    before = model.get_encoder()(random_tokens(1, 4)).last_hidden_state
    model.set_input_embeddings(embeddings)
    assert model.get_input_embeddings() is embeddings
    assert not torch.equal(model.get_encoder()(random_tokens(1, 4)).last_hidden_state, before)


def test_the_library_s_loss_function_of_the_model_shifts_no_labels():
    model, logits, labels = tiny_model(), torch.randn(2, 5, VOCABULARY), random_tokens(2, 5)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(model.loss_function(logits=logits, labels=labels, vocab_size=VOCABULARY), expected)
