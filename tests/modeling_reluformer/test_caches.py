"""With any cache, generation and logits are those without one."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import EncoderDecoderCache

from ..conftest import random_tokens, tiny_model
from .padded_batches import PADDING, implementations, mask_of, padded


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("side", ["left", "right"])
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


def test_static_cache_generates_the_same(variant):
    model = tiny_model(**variant)
    source, mask = random_tokens(2, 7), mask_of(random_tokens(2, 5), 2, "right")
    options = {"do_sample": False, "max_new_tokens": 10}
    growing = model.generate(source, attention_mask=mask, **options)
    model.generation_config.disable_compile = True
    static = model.generate(source, attention_mask=mask, cache_implementation="static", **options)
    assert torch.equal(growing, static)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("preset", ["reluformer", "vanilla"])
def test_a_compiled_step_with_a_static_cache_generates_the_same(preset, beams):
    """Compiled twice, for the first step and for all others, each without a break."""
    model, counter = tiny_model(preset=preset).double(), CompileCounter()
    source, mask = random_tokens(2, 7), mask_of(random_tokens(2, 5), 2, "right")
    options = {"do_sample": False, "num_beams": beams, "min_new_tokens": 9, "max_new_tokens": 9}
    expected = model.generate(source, attention_mask=mask, **options)
    model.forward = torch.compile(model.forward, fullgraph=True, dynamic=False, backend=counter)
    for _ in range(2):
        assert torch.equal(
            model.generate(source, attention_mask=mask, cache_implementation="static", **options), expected
        )
    assert counter.frame_count == 2


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("with_mask", [True, False], ids=["mask", "no-mask"])
def test_logits_with_a_cache_in_steps_equal_those_without(variant, static, with_mask):
    """Of a static cache, only what was written is visible, also in the prefill where it has more keys than queries."""
    for implementation in implementations(variant):
        model = tiny_model(attn_implementation=implementation, **variant).double()
        source, target = random_tokens(2, 7), random_tokens(2, 5, seed=1)
        mask = mask_of(target[:, :4], 1, "left") if with_mask else None
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
                    decoder_attention_mask=mask[:, : piece.stop] if with_mask else None,
                    past_key_values=cache,
                    use_cache=True,
                ).logits
                for piece in (slice(0, 3), slice(3, 4), slice(4, 5))
            ]
        torch.testing.assert_close(torch.cat(steps, dim=1)[:, 1:], plain[:, 1:])


@pytest.mark.parametrize("cache_class", [DynamicCache, StaticCache])
def test_a_cache_of_one_part_keeps_cross_attention_apart(variant, cache_class):
    for implementation in implementations(variant):
        model = tiny_model(attn_implementation=implementation, **variant).double()
        source, target = random_tokens(2, 7), random_tokens(2, 5, seed=1)
        cache = DynamicCache() if cache_class is DynamicCache else StaticCache(config=model.config, max_cache_len=9)
        with torch.no_grad():
            plain = model(input_ids=source, decoder_input_ids=target).logits
            steps = [
                model(input_ids=source, decoder_input_ids=target[:, i : i + 1], past_key_values=cache).logits
                for i in range(5)
            ]
        torch.testing.assert_close(torch.cat(steps, dim=1), plain)
        assert cache.get_seq_length() == 5, "it holds the target alone"
