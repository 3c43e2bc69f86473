"""What must not change a result does not change it: padding, caches, batching, saving, the implementation."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSeq2SeqLM, DynamicCache, StaticCache
from transformers.cache_utils import EncoderDecoderCache

from reluformer import ReLUFormerForConditionalGeneration, ReLUFormerModel
from reluformer.configuration_reluformer import NON_NEGATIVE_ACTIVATIONS, valid_attention_implementations
from reluformer.layers_reluformer import GatedRMSNorm

from ..conftest import VARIANTS, VOCABULARY, random_tokens, skip_without_entmax, tiny_config, tiny_model

PADDING = 0


def implementations(fields: dict) -> list[str]:
    names = valid_attention_implementations(tiny_config(**fields).attention_activation)
    return [name for name in names if not name.startswith("flash")]


def padded(tokens: torch.Tensor, count: int, side: str, value: int = PADDING) -> torch.Tensor:
    padding = tokens.new_full((tokens.shape[0], count), value)
    return torch.cat([padding, tokens] if side == "left" else [tokens, padding], dim=1)


def mask_of(tokens: torch.Tensor, count: int, side: str) -> torch.Tensor:
    return padded(torch.ones_like(tokens), count, side, 0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(variant, side):
    """Source and target, logits and every term of the loss, in float64."""
    for implementation in implementations(variant):
        model = tiny_model(attn_implementation=implementation, **variant).double()
        source, target, labels = random_tokens(2, 7), random_tokens(2, 5, seed=1), random_tokens(2, 5, seed=2)
        plain = model(input_ids=source, decoder_input_ids=target, labels=labels)
        with_padding = model(
            input_ids=padded(source, 3, side),
            attention_mask=mask_of(source, 3, side),
            decoder_input_ids=padded(target, 4, side),
            decoder_attention_mask=mask_of(target, 4, side),
            labels=padded(labels, 4, side, -100),
        )
        real = slice(4, None) if side == "left" else slice(None, 5)
        torch.testing.assert_close(with_padding.logits[:, real], plain.logits)
        for name in (
            "loss",
            "cross_entropy",
            "regularization",
            "attention_sum",
            "attention_entropy",
            "dead_row_fraction",
        ):
            expected, found = getattr(plain, name), getattr(with_padding, name)
            if expected is None:
                assert found is None
            else:
                torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, msg=name)


def test_masked_source_tokens_are_invisible_to_the_decoder(variant):
    """The mixins of the library pass without a cross-attention mask; this does not."""
    model = tiny_model(**variant)
    source, target = random_tokens(2, 7), random_tokens(2, 5, seed=1)
    mask = torch.ones_like(source)
    mask[0, 4:] = 0
    changed = source.clone()
    changed[0, 4:] = random_tokens(3, seed=9)
    with torch.no_grad():
        first = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        second = model(input_ids=changed, attention_mask=mask, decoder_input_ids=target).logits
        unmasked = model(input_ids=source, decoder_input_ids=target).logits
    torch.testing.assert_close(first, second)
    assert (unmasked[0] - first[0]).abs().max() > 1e-4
    torch.testing.assert_close(unmasked[1], first[1])


def test_the_future_is_invisible(variant):
    model = tiny_model(**variant)
    source, target = random_tokens(2, 7), random_tokens(2, 5, seed=1)
    changed = target.clone()
    changed[:, 3:] = random_tokens(2, 2, seed=9)
    with torch.no_grad():
        first = model(input_ids=source, decoder_input_ids=target).logits
        second = model(input_ids=source, decoder_input_ids=changed).logits
    torch.testing.assert_close(first[:, :3], second[:, :3])
    assert (first[:, 3:] - second[:, 3:]).abs().max() > 1e-4


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


def test_packed_sequences_equal_separate_ones(variant):
    """Two sentences in one row give each sentence's logits, and the batch's loss."""
    for implementation in implementations(variant):
        model = tiny_model(attn_implementation=implementation, **variant).double()
        sources, targets = (
            [random_tokens(1, 4), random_tokens(1, 6, seed=1)],
            [random_tokens(1, 5, seed=2), random_tokens(1, 3, seed=3)],
        )
        starts = [torch.cat([torch.ones(1, 1, dtype=torch.long), target[:, :-1]], dim=1) for target in targets]
        singles = [
            model(input_ids=s, decoder_input_ids=d, labels=t) for s, d, t in zip(sources, starts, targets, strict=True)
        ]
        packed = model(
            input_ids=padded(torch.cat(sources, dim=1), 2, "right"),
            attention_mask=mask_of(torch.cat(sources, dim=1), 2, "right"),
            decoder_input_ids=torch.cat(starts, dim=1),
            labels=torch.cat(targets, dim=1),
            segment_ids=torch.tensor([[1] * 4 + [2] * 6 + [0] * 2]),
            decoder_segment_ids=torch.tensor([[1] * 5 + [2] * 3]),
        )
        torch.testing.assert_close(packed.logits, torch.cat([single.logits for single in singles], dim=1))
        loss = (5 * singles[0].loss + 3 * singles[1].loss) / 8
        torch.testing.assert_close(packed.loss, loss, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
def test_packed_labels_are_shifted_by_sequence(side):
    """Labels alone, as one trains: each sequence begins with the start token, not with the last label of the one before."""
    model = tiny_model().double()
    sources = [random_tokens(1, 4), random_tokens(1, 6, seed=1)]
    labels = [random_tokens(1, 5, seed=2), random_tokens(1, 3, seed=3)]
    singles = [model(input_ids=source, labels=target) for source, target in zip(sources, labels, strict=True)]
    packed = model(
        input_ids=torch.cat(sources, dim=1),
        labels=padded(torch.cat(labels, dim=1), 2, side, -100),
        segment_ids=torch.tensor([[1] * 4 + [2] * 6]),
        decoder_segment_ids=padded(torch.tensor([[1] * 5 + [2] * 3]), 2, side, 0),
    )
    found = packed.logits[:, 2:] if side == "left" else packed.logits[:, :-2]
    torch.testing.assert_close(found, torch.cat([single.logits for single in singles], dim=1))
    torch.testing.assert_close(packed.loss, (5 * singles[0].loss + 3 * singles[1].loss) / 8, rtol=1e-6, atol=1e-6)


def test_hidden_tokens_of_packed_sequences_are_invisible(variant):
    """attention_mask and segment_ids together: the logits are those of the sequences without the hidden tokens' keys."""
    source, target = random_tokens(1, 10), random_tokens(1, 7, seed=1)
    segments = {
        "segment_ids": torch.tensor([[1] * 4 + [2] * 6]),
        "decoder_segment_ids": torch.tensor([[1] * 4 + [2] * 3]),
    }
    mask = torch.tensor([[1, 1, 0, 1, 1, 0, 0, 1, 1, 1]])
    target_mask = torch.tensor([[1, 0, 1, 1, 1, 1, 0]])
    results = []
    for implementation in implementations(variant):
        model = tiny_model(attn_implementation=implementation, **variant).double()
        masks = {"attention_mask": mask, "decoder_attention_mask": target_mask}
        with torch.no_grad():
            logits = model(input_ids=source, decoder_input_ids=target, **masks, **segments).logits
            other = source.clone()
            other[mask == 0] = 5
            same = model(input_ids=other, decoder_input_ids=target, **masks, **segments).logits
        torch.testing.assert_close(same, logits)
        results.append(logits)
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])


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


def test_saved_equals_loaded(variant, tmp_path):
    model = tiny_model(**variant)
    model.save_pretrained(tmp_path)
    source, target = random_tokens(2, 7), random_tokens(2, 5, seed=1)
    for loader in (ReLUFormerForConditionalGeneration, AutoModelForSeq2SeqLM):
        loaded, info = loader.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(info.values()), info
        with torch.no_grad():
            torch.testing.assert_close(
                loaded(input_ids=source, labels=target).logits,
                model(input_ids=source, labels=target).logits,
                rtol=0,
                atol=0,
            )
        torch.testing.assert_close(
            loaded.model.encoder.embed_positions.weight, model.model.encoder.embed_positions.weight, rtol=0, atol=0
        )
    assert isinstance(AutoModel.from_pretrained(tmp_path), ReLUFormerModel)


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


def test_every_non_negative_activation_reports_its_figures():
    for fields in VARIANTS.values():
        config = tiny_config(**fields)
        if config.attention_activation in NON_NEGATIVE_ACTIVATIONS:
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


def test_a_checkpoint_without_a_bias_of_the_logits_has_none(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["final_logits_bias"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert not ReLUFormerForConditionalGeneration.from_pretrained(tmp_path).final_logits_bias.any()
