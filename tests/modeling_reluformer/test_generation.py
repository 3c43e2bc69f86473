"""Generation: caches, and beams that share their source."""

import inspect

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, GenerationMixin, StaticCache

from reluformer import ReLUFormerForConditionalGeneration as Model
from reluformer.modeling_reluformer.configuration_reluformer import CACHE_NAME
from reluformer.modeling_reluformer.fused.model_attention import SharedSources
from reluformer.modeling_reluformer.layers_reluformer import ReLUFormerAttention

from ..conftest import demo_tokenizer, random_tokens, tiny_model
from .cases import PADDING, implementations, mask_of, padded


@pytest.mark.parametrize(("side", "beams"), [("left", 4), ("right", 1)])
def test_generation_cached_equals_uncached_and_batched_equals_single(variant, beams, side):
    model = tiny_model(**variant)
    sources = [random_tokens(1, length, seed=length) for length in (4, 9, 6)]
    longest = max(source.shape[1] for source in sources)
    batch = torch.cat([padded(source, longest - source.shape[1], side) for source in sources])
    mask = torch.cat([mask_of(source, longest - source.shape[1], side) for source in sources])
    options = {"num_beams": beams, "do_sample": False, "max_new_tokens": 12}
    cached = model.generate(batch, attention_mask=mask, **options)
    assert torch.equal(cached, model.generate(batch, attention_mask=mask, use_cache=False, **options))
    for row, source in zip(cached, sources, strict=True):
        single = model.generate(source, **options)[0]
        assert torch.equal(row[: len(single)], single)
        assert (row[len(single) :] == PADDING).all()


@pytest.mark.parametrize(
    ("static", "given"),
    [(True, "mask"), (True, "wide mask"), (True, "no mask"), (False, "mask"), (False, "no mask")],
    ids=["static-mask", "static-wide-mask", "static-no-mask", "dynamic-mask", "dynamic-no-mask"],
)
def test_logits_with_a_cache_in_steps_equal_those_without(variant, static, given):
    """Of a static cache, only what was written is visible, also in the prefill where it has more keys than queries.

    A mask may be as wide as a static cache; the positions are then those of the tokens that are given, not of its end.
    """
    for implementation in implementations(variant):
        model = tiny_model(attn_implementation=implementation, **variant).double()
        source, target = random_tokens(2, 7), random_tokens(2, 5, seed=1)
        mask = None if given == "no mask" else mask_of(target[:, :4], 1, "left")
        of_cache = padded(mask, 11, "right", 0) if given == "wide mask" else mask
        if static:
            caches = [StaticCache(config=model.config, max_cache_len=length) for length in (16, 7)]
        else:
            caches = [DynamicCache(config=model.config) for _ in range(2)]
        cache = EncoderDecoderCache(*caches)
        with torch.no_grad():
            plain = model(input_ids=source, decoder_input_ids=target, decoder_attention_mask=mask).logits
            steps = [
                model(
                    input_ids=source,
                    decoder_input_ids=target[:, piece],
                    decoder_attention_mask=of_cache[:, : piece.stop] if given == "mask" else of_cache,
                    past_key_values=cache,
                    use_cache=True,
                ).logits
                for piece in (slice(0, 3), slice(3, 4), slice(4, 5))
            ]
        torch.testing.assert_close(torch.cat(steps, dim=1)[:, 1:], plain[:, 1:])


@pytest.mark.parametrize("cache_class", [DynamicCache, StaticCache])
def test_a_cache_of_one_part_keeps_cross_attention_apart(cache_class):
    model, source, target = tiny_model().double(), random_tokens(2, 7), random_tokens(2, 5, seed=1)
    cache = DynamicCache() if cache_class is DynamicCache else StaticCache(config=model.config, max_cache_len=9)
    with torch.no_grad():
        plain = model(input_ids=source, decoder_input_ids=target).logits
        steps = [
            model(input_ids=source, decoder_input_ids=token, past_key_values=cache).logits
            for token in target.split(1, 1)
        ]
    torch.testing.assert_close(torch.cat(steps, dim=1), plain)
    assert cache.get_seq_length() == 5, "it holds the target alone"


BEAMS = {"num_beams": 4, "do_sample": False}
MODES = {
    "beams": BEAMS,
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


@pytest.mark.parametrize(
    ("mode", "side"), [("beams", "left"), ("without-cache", "right"), ("static", "left"), ("sampled-beams", "right")]
)
def test_generation_with_shared_sources_equals_that_with_copies(variant, mode, side, monkeypatch):
    models = [tiny_model(attn_implementation=name, **variant).double() for name in implementations(variant)]
    found = [generated(model, batch(side), **MODES[mode]) for model in models]
    copies_of_sources(monkeypatch)
    for shared, model in zip(found, models, strict=True):
        assert_same(shared, generated(model, batch(side), **MODES[mode]))


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


@pytest.mark.parametrize(
    "of_model", [{"max_new_tokens": 9}, {"max_length": 10}, {"max_new_tokens": 9, "max_length": 20}]
)
@pytest.mark.parametrize(
    ("of_call", "length"),
    [
        ({}, 10),
        ({"max_length": 5}, 5),
        ({"max_new_tokens": 5}, 6),
        ({"generation_config": GenerationConfig(max_length=5)}, 5),
        ({"generation_config": GenerationConfig(max_new_tokens=5)}, 6),
    ],
    ids=str,
)
def test_the_limit_of_a_call_takes_the_place_of_that_of_the_model(of_model, of_call, length, caplog):
    """The Trainer gives max_length for each batch of its evaluation, and the model may have been saved with the other
    limit."""
    model = tiny_model()
    model.generation_config.update(**{"eos_token_id": None, "max_length": None, "max_new_tokens": None, **of_model})
    assert model.generate(random_tokens(2, 5), **of_call).shape == (2, length)
    assert not caplog.text


def test_a_model_of_one_layer_decodes_behind_its_cache():
    """No layer but the first says how much a cache holds."""
    model = tiny_model(encoder_layers=1, decoder_layers=1).double()
    source, target = random_tokens(2, 7), random_tokens(2, 5, seed=1)
    with torch.no_grad():
        whole = model(input_ids=source, decoder_input_ids=target).logits
        first = model(input_ids=source, decoder_input_ids=target[:, :3], use_cache=True)
        cache = {CACHE_NAME: getattr(first, CACHE_NAME)}
        rest = model(input_ids=source, decoder_input_ids=target[:, 3:], **cache)
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], dim=1), whole)


def test_stop_strings_stop_without_a_warning(caplog):
    tokenizer = demo_tokenizer(50)
    model = tiny_model(vocab_size=len(tokenizer))
    source = tokenizer("zwölf", return_tensors="pt")
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    whole = tokenizer.convert_ids_to_tokens(model.generate(**source, **options)[0])
    stop = next(token for token in whole[1:] if token.isalpha())
    stopped = model.generate(**source, **options, stop_strings=[stop], tokenizer=tokenizer)[0]
    assert tokenizer.convert_ids_to_tokens(stopped) == whole[: whole.index(stop) + 1]
    assert not caplog.text
