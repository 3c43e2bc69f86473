"""Beams and samples that share their source are generated as if each had a copy of it, as the library makes them."""

import inspect

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin

from reluformer import ReLUFormerForConditionalGeneration as Model
from reluformer.modeling_reluformer.layers_reluformer import ReLUFormerAttention
from reluformer.modeling_reluformer.modeling_reluformer import SharedSources

from ..conftest import random_tokens, tiny_model
from .padded_batches import implementations, mask_of, padded

BEAMS = {"num_beams": 4, "do_sample": False}
MODES = {
    "beams": BEAMS,
    "two-best": {**BEAMS, "num_return_sequences": 2},
    "without-cache": {**BEAMS, "use_cache": False},
    "static": {**BEAMS, "cache_implementation": "static", "disable_compile": True},
    "samples": {"do_sample": True, "num_return_sequences": 3},
    "sampled-beams": {"do_sample": True, "num_beams": 3, "num_return_sequences": 2},
}


def copies_of_sources(monkeypatch) -> None:
    """From here on the model generates as any other of the library."""
    method = inspect.getattr_static(GenerationMixin, "_expand_inputs_for_generation")  # which 5.17 has as a static one
    monkeypatch.setattr(Model, "_expand_inputs_for_generation", method)
    monkeypatch.delattr(SharedSources, "_reorder_cache")


def batch(side: str = "left") -> dict[str, torch.Tensor]:
    short, long = random_tokens(2, 4), random_tokens(1, 7, seed=1)
    return {
        "input_ids": torch.cat([padded(short, 3, side), long]),
        "attention_mask": torch.cat([mask_of(short, 3, side), torch.ones_like(long)]),
    }


def generated(model, inputs, **options):
    torch.manual_seed(3)
    options = {"max_new_tokens": 9, "output_scores": True, "return_dict_in_generate": True, **options}
    return model.generate(**inputs, **options)


def assert_same(found, expected) -> None:
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(found.scores, expected.scores)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_generation_with_shared_sources_equals_that_with_copies(variant, mode, side, monkeypatch):
    models = [tiny_model(attn_implementation=name, **variant).double() for name in implementations(variant)]
    found = [generated(model, batch(side), **MODES[mode]) for model in models]
    copies_of_sources(monkeypatch)
    for shared, model in zip(found, models, strict=True):
        assert_same(shared, generated(model, batch(side), **MODES[mode]))


@pytest.mark.parametrize("given", ["encoder-outputs", "no-mask"])
def test_a_source_that_is_given_in_another_way(given, monkeypatch):
    """A caller's own output of the encoder is left as it was given."""
    model, inputs = tiny_model().double(), batch()
    if given == "no-mask":
        del inputs["attention_mask"]
    else:
        with torch.no_grad():
            output = model.get_encoder()(**inputs)
        inputs = {"encoder_outputs": output, "attention_mask": inputs["attention_mask"]}
    found = generated(model, inputs, **BEAMS)
    if given == "encoder-outputs":
        assert output.last_hidden_state.shape[0] == 3
    copies_of_sources(monkeypatch)
    assert_same(found, generated(model, inputs, **BEAMS))


def test_cross_attention_weights_come_back_for_each_beam(monkeypatch):
    model = tiny_model(attn_implementation="eager").double()
    options = {**BEAMS, "output_attentions": True}
    found = generated(model, batch(), **options)
    copies_of_sources(monkeypatch)
    expected = generated(model, batch(), **options)
    torch.testing.assert_close(found.cross_attentions, expected.cross_attentions)
    torch.testing.assert_close(found.decoder_attentions, expected.decoder_attentions)


@pytest.mark.parametrize("mode", ["beams", "samples"])
def test_keys_of_a_source_are_computed_and_held_once(mode, monkeypatch):
    rows = []
    keys_and_values = ReLUFormerAttention._keys_and_values

    def counted(self, hidden_states, key_value_states, *arguments):
        key, value = keys_and_values(self, hidden_states, key_value_states, *arguments)
        rows.extend([] if key_value_states is None else [key.shape[0], value.shape[0]])
        return key, value

    monkeypatch.setattr(ReLUFormerAttention, "_keys_and_values", counted)
    result = generated(tiny_model(), batch(), **MODES[mode])
    assert set(rows) == {3}
    assert {layer.keys.shape[0] for layer in result.past_key_values.cross_attention_cache.layers} == {3}


def test_several_targets_of_a_source_have_the_logits_of_copies():
    model, target = tiny_model().double(), random_tokens(6, 5)
    with torch.no_grad():
        found = model(**batch(), decoder_input_ids=target, targets_per_source=2).logits
        copies = {name: tensor.repeat_interleave(2, 0) for name, tensor in batch().items()}
        expected = model(**copies, decoder_input_ids=target).logits
        with pytest.raises(ValueError, match=r"must have 3 targets \(targets_per_source=3\); got 3 sources and 6"):
            model(**batch(), decoder_input_ids=target, targets_per_source=3)
    torch.testing.assert_close(found, expected)


def test_beams_go_on_with_a_callers_cache_of_copies(monkeypatch):
    model, inputs, target = tiny_model().double(), batch(), random_tokens(3, 3)
    target[:, 0] = model.config.decoder_start_token_id
    copies = {name: tensor.repeat_interleave(2, 0) for name, tensor in inputs.items()}
    caches = [
        EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config)) for _ in range(2)
    ]
    with torch.no_grad():
        for cache in caches:
            model(**copies, decoder_input_ids=target[:, :2].repeat_interleave(2, 0), past_key_values=cache)
    options = {"num_beams": 2, "do_sample": False, "decoder_input_ids": target, "max_new_tokens": 4}
    found = generated(model, inputs, past_key_values=caches[0], **options)
    copies_of_sources(monkeypatch)
    assert_same(found, generated(model, inputs, past_key_values=caches[1], **options))


def test_a_cache_of_generate_says_how_it_goes_on_with_copies():
    """Sampling returns a cache with each source once. With the encoder's output in copies, the error says what to do."""
    model, inputs = tiny_model().double(), batch()
    result = generated(model, inputs, do_sample=True, num_return_sequences=2)
    copies = {name: tensor.repeat_interleave(2, 0) for name, tensor in inputs.items()}
    cache, last = result.past_key_values, result.sequences[:, -1:]
    with torch.no_grad():
        with pytest.raises(ValueError, match="holds the keys of 3 sources, and the encoder's output has 6 rows"):
            model(**copies, decoder_input_ids=last, past_key_values=cache)
        cache.cross_attention_cache.batch_repeat_interleave(2)
        found = model(**copies, decoder_input_ids=last, past_key_values=cache).logits
        expected = model(**copies, decoder_input_ids=result.sequences).logits[:, -1:]
    torch.testing.assert_close(found, expected)
