"""The translation model where it meets its user and the library."""

import copy
import shutil
from contextlib import nullcontext

import pytest
import torch
from torch._dynamo.backends.registry import lookup_backend
from transformers import DynamicCache, EncoderDecoderCache

from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.modeling_reluformer.attention_reluformer import Visibility
from reluformer.modeling_reluformer.configuration_reluformer import valid_attention_implementations
from reluformer.modeling_reluformer.layers_reluformer import AttentionContext, GatedRMSNorm
from reluformer.modeling_reluformer.loss_reluformer import Measured
from reluformer.modeling_reluformer.modeling_reluformer import _OF_DECODER_LAYERS, ReLUFormerLayer

from ..conftest import random_tokens, skip_without_entmax, tiny_config, tiny_model
from .cases import decoder_model, needs_compiled_library, padded, pictures, python_loop, vision_model


def test_a_learnable_gamma_gets_a_gradient():
    model = tiny_model(attention_gamma_learnable=True, attention_gamma=5)
    model(input_ids=random_tokens(2, 7), labels=random_tokens(2, 5)).loss.backward()
    assert all((a.log_gamma.grad != 0).any() for a in model.modules() if hasattr(a, "log_gamma"))


def test_wrong_calls_say_what_is_wrong():
    model = tiny_model()
    source, target = random_tokens(2, 7), random_tokens(2, 5, seed=1)
    with pytest.raises(ValueError, match=r"\(batch, keys\) = \(2, 7\).*got \(2, 6\)"):
        model(input_ids=source, attention_mask=torch.ones(2, 6), labels=target)
    with pytest.raises(ValueError, match=r"must be boolean, .* torch\.float32"):
        model(input_ids=source, attention_mask=torch.zeros(2, 1, 7, 7), labels=target)
    with pytest.raises(ValueError, match="only segment_ids was given"):
        model(input_ids=source, decoder_input_ids=target, segment_ids=torch.ones_like(source))
    with pytest.raises(ValueError, match="padded on the left"):
        model(input_ids=source, labels=padded(target, 2, "left", -100))
    for labels in (target.int(), target[0], target[:, :, None]):
        with pytest.raises(ValueError, match=r"labels must be int64 of the shape \(batch, length\)"):
            model(input_ids=source, labels=labels)
    with pytest.raises(ValueError, match=r"labels must be int64 of the shape \(2, 7\), .* got torch.int64 \(2, 5\)"):
        model(input_ids=source, decoder_input_ids=source, labels=target)
    with pytest.raises(ValueError, match=r"config\.pad_token_id is None"):
        tiny_model(pad_token_id=None)(input_ids=source, labels=target)
    segments = {"segment_ids": torch.ones_like(source), "decoder_segment_ids": torch.tensor([[1, 1, 1, 2, 2]] * 2)}
    first_missing = target.masked_fill(torch.tensor([False, False, False, True, False]), -100)
    with pytest.raises(ValueError, match="padded on the left"):
        model(input_ids=source, labels=first_missing, **segments)
    with pytest.raises(ValueError, match="goes without segment ids"):
        model.model.encoder(source, torch.ones(2, 1, 7, 7).bool(), segment_ids=segments["segment_ids"])
    with pytest.raises(ValueError, match=r"\(2, 1, 7, 7\); got \(2, 4, 7, 7\)"):
        model.model.encoder(source, torch.ones(2, 4, 7, 7).bool())
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    model(input_ids=source, decoder_input_ids=target, past_key_values=cache)
    with pytest.raises(ValueError, match="do not go with a cache that holds earlier tokens"):
        model(input_ids=source, decoder_input_ids=target, past_key_values=cache, **segments)


def test_a_cache_counts_towards_the_positions():
    """64 positions: 60 tokens, and then 10 more."""
    model = tiny_model()
    source = random_tokens(1, 5)
    past = model(input_ids=source, decoder_input_ids=random_tokens(1, 60), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="70 tokens is longer than max_position_embeddings=64"):
        model(input_ids=source, decoder_input_ids=random_tokens(1, 10), past_key_values=past)


@pytest.mark.parametrize("size", [37, 45])
def test_a_resized_vocabulary_keeps_the_bias_of_its_tokens(size, tmp_path):
    model = tiny_model()
    bias = torch.randn(1, 40)
    model.final_logits_bias.copy_(bias)
    model.resize_token_embeddings(size)
    expected = torch.cat([bias, torch.zeros(1, 5)], dim=1)[:, :size]
    assert torch.equal(model.final_logits_bias, expected)
    model.save_pretrained(tmp_path)
    assert type(model).from_pretrained(tmp_path).config.decoder_vocab_size == size


@pytest.mark.parametrize("shared", [True, False])
def test_new_input_embeddings_are_those_of_the_decoder_too_where_both_share_them(shared):
    model, embeddings = tiny_model(share_encoder_decoder_embeddings=shared), torch.nn.Embedding(40, 16)
    model.set_input_embeddings(embeddings)
    assert model.model.encoder.embed_tokens is embeddings
    assert (model.model.decoder.embed_tokens is embeddings) == shared


@pytest.mark.parametrize("kind", [dict, tuple])
def test_what_the_encoder_returned_stands_for_the_source_with_its_states_and_weights(kind):
    model, source, target = tiny_model(attn_implementation="eager"), random_tokens(2, 6), random_tokens(2, 4, seed=1)
    wanted = {"decoder_input_ids": target, "output_hidden_states": True, "output_attentions": True}
    expected = model(input_ids=source, **wanted)
    encoded = model.get_encoder()(source, output_hidden_states=True, output_attentions=True)
    found = model(encoder_outputs=encoded if kind is dict else encoded.to_tuple(), **wanted)
    for name in ("logits", "encoder_last_hidden_state", "encoder_hidden_states", "encoder_attentions"):
        torch.testing.assert_close(found[name], expected[name])


def test_a_context_moves_all_its_tensors():
    """As accelerate's hooks ask for it between layers on two devices."""
    visibility = Visibility(key_padding_mask=torch.ones(2, 5, dtype=torch.bool), causal=True)
    measured, ones = Measured(torch.ones(2, 5), "sum", ffn_norms=False), torch.ones(2, 5)
    context = AttentionContext(print, visibility, None, ones, ones, measured, (ones, ones)).to("meta")
    assert (context.mask, context.measured.statistics, context.visibility.causal) == (None, "sum", True)
    moved = [context.visibility.key_padding_mask, context.measured.row_weight, context.visible_keys, *context.rotation]
    assert {tensor.device.type for tensor in [*moved, context.row_scale]} == {"meta"}


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
        (translation, "position_ids", "leave it out"),
        (language, "is_causal", "leave it out"),
        (vision, "output_hidden_state", "did you mean output_hidden_states?"),
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


@pytest.mark.parametrize(
    ("fields", "implementation"),
    [
        ({}, "sdpa"),
        ({}, "reluformer"),  # which Transformers knows
        ({}, "kernels-community/flash-attn"),
        ({"preset": "vanilla"}, "fused"),
        ({"preset": "vanilla"}, "flex_attention"),
        ({"preset": "sparsemax"}, "sdpa"),
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


def test_output_attentions_returns_the_weights_or_raises():
    source, target = random_tokens(2, 7), random_tokens(2, 5, seed=1)
    asking = ReLUFormerForConditionalGeneration(ReLUFormerConfig(vocab_size=40, d_model=32, output_attentions=True))
    assert asking(input_ids=source, decoder_input_ids=target).cross_attentions[0].shape == (2, 8, 5, 7)
    asking.set_attn_implementation("fused")
    for model, asked in ((asking, {}), (tiny_model(), {"output_attentions": True})):
        with pytest.raises(ValueError, match="output_attentions=True needs attn_implementation='eager'; 'fused'"):
            model(input_ids=source, decoder_input_ids=target, **asked)
    model.set_attn_implementation("eager")
    output = model(input_ids=source, decoder_input_ids=target, output_attentions=True, output_hidden_states=True)
    assert [weights.shape for weights in output.encoder_attentions] == [(2, 4, 7, 7)] * 2
    assert [weights.shape for weights in output.decoder_attentions] == [(2, 2, 5, 5)] * 2
    assert [weights.shape for weights in output.cross_attentions] == [(2, 2, 5, 7)] * 2
    assert len(output.encoder_hidden_states) == len(output.decoder_hidden_states) == 3


def test_lora_has_the_loss_of_the_model_and_merges_into_one(tmp_path):
    peft = pytest.importorskip("peft", reason="LoRA is peft's, which is not installed")
    model, source, target = tiny_model(), random_tokens(2, 7), random_tokens(2, 5, seed=1)
    plain = model(input_ids=source, labels=target)
    lora = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["q_proj", "v_proj"], r=4)
    adapted = peft.get_peft_model(model, lora).eval()
    found = adapted(input_ids=source, labels=target)
    torch.testing.assert_close((found.loss, found.regularization), (plain.loss, plain.regularization))
    found.loss.backward()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            assert (parameter.grad is not None) == ("lora_" in name), name
            if "lora_B" in name:  # 0 before the first update
                parameter += 0.1
        expected = adapted(input_ids=source, labels=target).logits
        adapted.merge_and_unload().save_pretrained(tmp_path)
        merged = ReLUFormerForConditionalGeneration.from_pretrained(tmp_path)
        torch.testing.assert_close(merged(input_ids=source, labels=target).logits, expected)
    assert (expected - plain.logits).abs().max() > 1e-3


# Longer than what runs as plain products beside the blockwise loop (`_is_small`).
LONG = 740
OPERATORS = {"compiled": "reluformer_cpu.attention", "python": "reluformer.pointwise_attention"}


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize(
    ("loop", "preset", "length", "backend"),
    [
        ("compiled", "reluformer", 7, "aot_eager"),
        pytest.param("compiled", "reluformer", LONG, "inductor", marks=pytest.mark.slow),
        pytest.param("python", "reluformer", LONG, "inductor", marks=pytest.mark.slow),
        pytest.param("compiled", "vanilla", 7, "inductor", marks=pytest.mark.slow),
    ],
)
def test_compiled_training_step_is_one_graph_and_equal(loop, preset, length, backend):
    """The compiled loop takes every length, that in Python long sequences alone."""
    if loop == "compiled":
        needs_compiled_library()
    with python_loop() if loop == "python" else nullcontext():
        assert_compiled_step_is_equal(loop, preset, length, backend)


def assert_compiled_step_is_equal(loop: str, preset: str, length: int, backend: str) -> None:
    fields = {"encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0, "attention_dropout": 0.0}
    model = tiny_model(preset=preset, max_position_embeddings=LONG, **fields).train()
    twin = copy.deepcopy(model)
    counts = []

    def counting(graph, inputs):
        counts.append(sum(str(node.target).startswith(OPERATORS[loop]) for node in graph.graph.nodes))
        return lookup_backend(backend)(graph, inputs)

    compiled = torch.compile(twin, fullgraph=True, backend=counting)
    batch = {"input_ids": random_tokens(2, length), "labels": random_tokens(2, length - 2)}
    batch["attention_mask"] = torch.ones(2, length)
    batch["attention_mask"][1, length // 2 :] = 0
    expected, found = model(**batch), compiled(**batch)
    assert counts == [3 if preset == "reluformer" else 0]  # of the encoder's layer, and two of the decoder's
    torch.testing.assert_close(found.loss, expected.loss)
    expected.loss.backward()
    found.loss.backward()
    for (name, first), second in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(second.grad, first.grad, rtol=1e-4, atol=1e-5, msg=name)


def replica_of(model):
    """As `DataParallel` makes them: a copy of each module whose weights are tensors, and no parameters."""
    modules = [*model.modules()]
    copies = dict(zip(modules, (module._replicate_for_data_parallel() for module in modules), strict=True))
    for module, copied in copies.items():
        for name, child in module.named_children():
            setattr(copied, name, copies[child])
        for name, weight in module._parameters.items():
            setattr(copied, name, None if weight is None else weight * 1)
    return copies[model]


@pytest.mark.parametrize("make", [tiny_model, decoder_model, vision_model])
def test_a_replica_without_parameters_has_the_loss_of_its_model(make):
    model = make().train()
    if make is vision_model:
        batch = {"pixel_values": pictures(2), "labels": torch.tensor([0, 1])}
    else:
        batch = {"input_ids": random_tokens(2, 7), "labels": random_tokens(2, 7, seed=1)}
    replica = replica_of(model)
    assert not [*replica.parameters()]
    found, expected = (each.eval()(**batch).loss for each in (replica, model))
    torch.testing.assert_close(found, expected)


@pytest.mark.skipif(
    _OF_DECODER_LAYERS is ReLUFormerLayer, reason="needs a newer Transformers, which keeps single states"
)
def test_the_last_state_of_a_stack_is_that_of_its_own_depth():
    model = tiny_model(encoder_layers=1, decoder_layers=3)
    inputs = {"input_ids": random_tokens(2, 6), "decoder_input_ids": random_tokens(2, 4, seed=1)}
    whole = model(**inputs, output_hidden_states=True)
    last = model(**inputs, output_hidden_states=[-1])
    for name in ("encoder_hidden_states", "decoder_hidden_states"):
        (found,) = [state for state in last[name] if state is not None]
        torch.testing.assert_close(found, whole[name][-1])
