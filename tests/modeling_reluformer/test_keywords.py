"""Keywords of the forward passes: what the library may add goes through, what must be a mistake does not."""

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

from ..conftest import random_tokens, tiny_model
from .decoder_cases import decoder_model
from .vision_cases import pictures, vision_model

IDS = random_tokens(2, 6)


def translation(**keywords):
    return tiny_model()(input_ids=IDS, decoder_input_ids=IDS[:, :4], **keywords)


def language(**keywords):
    return decoder_model()(IDS, **keywords)


def vision(**keywords):
    return vision_model()(pictures(), **keywords)


@pytest.mark.parametrize("call", [translation, language, vision])
def test_a_keyword_of_a_later_library_goes_through(call):
    assert torch.equal(call(step_of_generation=3, head_mask=None).logits, call().logits)


@pytest.mark.parametrize(
    ("call", "keyword", "says"),
    [
        (translation, "target_per_source", "did you mean targets_per_source?"),
        (translation, "past_key_value", "did you mean past_key_values?"),
        (translation, "output_hidden_state", "did you mean output_hidden_states?"),
        (translation, "head_mask", "leave it out"),
        (translation, "source_embeds", "leave it out"),
        (translation, "position_ids", "leave it out"),
        (language, "is_causal", "leave it out"),
        (language, "logit_to_keep", "did you mean logits_to_keep?"),
        (vision, "interpolate_pos_encodings", "did you mean interpolate_pos_encoding?"),
        (vision, "input_ids", "leave it out"),
    ],
)
def test_a_slip_and_an_input_without_effect_are_refused(call, keyword, says):
    with pytest.raises(TypeError, match=rf"^ReLUFormerFor\w+ takes no {keyword}; {says}"):
        call(**{keyword: IDS})


@pytest.mark.parametrize("call", [translation, language])
def test_the_cache_has_two_names_and_is_given_by_one(call):
    caches = [
        EncoderDecoderCache(DynamicCache(), DynamicCache()) if call is translation else DynamicCache() for _ in range(2)
    ]
    found = [call(**{name: cache}) for name, cache in zip(("cache", "past_key_values"), caches, strict=True)]
    assert torch.equal(found[0].logits, found[1].logits) and {cache.get_seq_length() for cache in caches} == {
        found[0].logits.shape[1]
    }
    with pytest.raises(TypeError, match="two names of one argument"):
        call(cache=caches[0], past_key_values=caches[1])


@pytest.mark.parametrize("make", [tiny_model, decoder_model])
def test_layers_that_are_computed_again_write_to_no_cache(make):
    model = make().train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    cache = DynamicCache()
    model(input_ids=IDS, labels=IDS, cache=cache).loss.backward()
    assert cache.get_seq_length() == 0
