"""What a user of Transformers does with any model: other decoding modes, dtypes, vocabularies, registries, compilers."""

import copy
import shutil

import pytest
import torch
from torch._dynamo.backends.registry import lookup_backend
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from reluformer import ReLUFormerForConditionalGeneration, ReLUFormerModel
from reluformer.modeling_reluformer.fused.compiled import library

from ..conftest import VOCABULARY, random_tokens, tiny_config, tiny_model

PRESETS = ("reluformer", "rela", "vanilla")


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


@pytest.mark.filterwarnings("ignore")  # of torch, which moves quantisation to torchao
def test_dynamic_int8():
    model = tiny_model()
    small = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    kept = [name for name, module in small.named_modules() if isinstance(module, torch.nn.Linear)]
    assert len(linear) > 10 and kept == ["lm_head"]
    tokens = {"input_ids": random_tokens(2, 7), "decoder_input_ids": random_tokens(2, 5, seed=1)}
    with torch.no_grad():
        expected, found = model(**tokens).logits, small(**tokens).logits
    assert 0 < (found - expected).abs().max() < 0.1 * expected.abs().max()
    generated = small.generate(tokens["input_ids"], num_beams=2, max_new_tokens=4)
    assert generated.shape[0] == 2


def test_a_streamer_gets_every_token():
    class Collected(list):
        def put(self, tokens):
            self.append(tokens.flatten())

        def end(self):
            self.append(None)

    model, streamer = tiny_model(), Collected()
    found = model.generate(random_tokens(1, 7), streamer=streamer, num_beams=1, max_new_tokens=6)
    assert streamer.pop() is None
    assert torch.equal(torch.cat(list(streamer)), found[0])


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("beams", [1, 3])
def test_sampling_with_and_without_a_cache(preset, beams):
    model = tiny_model(preset=preset).double()
    results = []
    for use_cache in (True, False):
        torch.manual_seed(5)
        options = {"do_sample": True, "num_beams": beams, "max_new_tokens": 8, "use_cache": use_cache}
        results.append(model.generate(random_tokens(3, 7), **options))
    assert torch.equal(*results)


def test_a_long_source_under_inference_mode_with_two_threads():
    """Long enough to be shared out among threads, as `reluformer translate` calls the model."""
    model, source = tiny_model(max_position_embeddings=600), random_tokens(1, 520)
    before = torch.get_num_threads()
    try:
        expected = model.generate(source, max_new_tokens=4)
        torch.set_num_threads(2)
        with torch.inference_mode():
            assert torch.equal(model.generate(source, max_new_tokens=4), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("preset", PRESETS)
def test_assisted_generation_equals_greedy(preset):
    model, assistant = tiny_model(preset=preset), tiny_model(preset=preset, seed=3, decoder_layers=1)
    source = random_tokens(1, 7)
    options = {"do_sample": False, "max_new_tokens": 12}
    assert torch.equal(model.generate(source, assistant_model=assistant, **options), model.generate(source, **options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("preset", PRESETS)
def test_half_precision_load(preset, dtype, tmp_path):
    model = tiny_model(preset=preset)
    model.save_pretrained(tmp_path)
    half = ReLUFormerForConditionalGeneration.from_pretrained(tmp_path, dtype=dtype)
    assert {parameter.dtype for parameter in half.parameters()} == {dtype}
    source, labels = random_tokens(2, 7), random_tokens(2, 5)
    with torch.no_grad():
        expected, found = model(input_ids=source, labels=labels), half(input_ids=source, labels=labels)
    # logits of about 1 to 3, rounding of 2**-9 in each of a dozen operations
    assert (found.logits.float() - expected.logits).abs().max() < 0.15
    assert found.loss.dtype == torch.float32 and abs(float(found.loss - expected.loss)) < 0.05


def test_device_map(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    model = ReLUFormerForConditionalGeneration.from_pretrained(tmp_path, device_map="auto")
    expected = tiny_model()(input_ids=random_tokens(2, 7), labels=random_tokens(2, 5))
    found = model(input_ids=random_tokens(2, 7), labels=random_tokens(2, 5))
    torch.testing.assert_close(found.logits.cpu(), expected.logits)
    torch.testing.assert_close(found.loss.cpu(), expected.loss)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_class", [ReLUFormerModel, ReLUFormerForConditionalGeneration])
def test_resize_of_a_shared_vocabulary(model_class, tied, tmp_path):
    model = model_class(tiny_config(tie_word_embeddings=tied)).eval()
    source, target = random_tokens(2, 7), random_tokens(2, 5)
    before = model(input_ids=source, decoder_input_ids=target)[0]
    for size in (VOCABULARY + 7, VOCABULARY - 1 + 1):
        model.resize_token_embeddings(size)
        assert model.config.vocab_size == model.config.decoder_vocab_size == size
        after = model(input_ids=source, decoder_input_ids=target)[0]
        torch.testing.assert_close(after[..., : before.shape[-1]], before)
        if model_class is ReLUFormerForConditionalGeneration:
            assert after.shape[-1] == model.lm_head.out_features == size
            assert (model.lm_head.weight is model.model.shared.weight) == tied
    model.resize_token_embeddings(VOCABULARY + 3)
    model.save_pretrained(tmp_path)
    loaded = model_class.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(input_ids=source, decoder_input_ids=target)[0][..., : before.shape[-1]], before)


@pytest.mark.parametrize("tied", [True, False])
def test_resize_of_two_vocabularies(tied, tmp_path):
    config = tiny_config(share_encoder_decoder_embeddings=False, decoder_vocab_size=30, tie_word_embeddings=tied)
    model = ReLUFormerForConditionalGeneration(config).eval()
    source, target = random_tokens(2, 7), random_tokens(2, 5) % 30
    before = model(input_ids=source, decoder_input_ids=target).logits
    model.resize_token_embeddings(VOCABULARY + 5)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (VOCABULARY + 5, 30)
    torch.testing.assert_close(model(input_ids=source, decoder_input_ids=target).logits, before)
    model.resize_decoder_token_embeddings(33)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (VOCABULARY + 5, 33)
    after = model(input_ids=source, decoder_input_ids=target).logits
    assert after.shape[-1] == 33
    torch.testing.assert_close(after[..., :30], before)
    model.save_pretrained(tmp_path)
    loaded = ReLUFormerForConditionalGeneration.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(input_ids=source, decoder_input_ids=target).logits, after)


def test_resizing_the_decoder_of_a_shared_vocabulary_is_refused():
    with pytest.raises(ValueError, match="use resize_token_embeddings"):
        tiny_model().resize_decoder_token_embeddings(50)


def test_a_globally_registered_foreign_name_is_refused(monkeypatch):
    """It would run without a mask, or run softmax in a ReLU model, without a word."""
    monkeypatch.setitem(AttentionInterface._global_mapping, "foreign", lambda *args, **kwargs: None)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "foreign", lambda *args, **kwargs: None)
    model = tiny_model()
    with pytest.raises(ValueError, match='attn_implementation="foreign"` is not supported'):
        model.set_attn_implementation("foreign")
    config = tiny_config()
    config._attn_implementation = "foreign"
    with pytest.raises(ValueError, match='attn_implementation="foreign"` is not supported'):
        ReLUFormerForConditionalGeneration(config)


def test_importing_the_package_adds_no_generic_attention_name():
    assert {"eager", "fused"}.isdisjoint(AttentionInterface._global_mapping)
    assert "fused" not in AttentionMaskInterface._global_mapping


def test_set_attn_implementation_after_loading(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    model = ReLUFormerForConditionalGeneration.from_pretrained(tmp_path)
    source, target = random_tokens(2, 7), random_tokens(2, 5)
    fused = model(input_ids=source, decoder_input_ids=target).logits
    model.set_attn_implementation("eager")
    output = model(input_ids=source, decoder_input_ids=target, output_attentions=True)
    torch.testing.assert_close(output.logits, fused)
    assert len(output.cross_attentions) == 2
    assert (
        ReLUFormerForConditionalGeneration.from_pretrained(
            tmp_path, attn_implementation="eager"
        ).config._attn_implementation
        == "eager"
    )


def test_generate_with_output_attentions_raises_under_fused():
    with pytest.raises(ValueError, match="output_attentions=True needs attn_implementation='eager'"):
        tiny_model().generate(
            random_tokens(1, 5), output_attentions=True, return_dict_in_generate=True, max_new_tokens=3
        )


@pytest.mark.parametrize("preset", PRESETS)
def test_double_backward_of_the_loss(preset):
    """Gradient penalties work: every path is plain autograd."""
    model = tiny_model(preset=preset, attn_implementation="eager", dropout=0.0, attention_dropout=0.0).double()
    loss = model(input_ids=random_tokens(2, 7), labels=random_tokens(2, 5)).loss
    weight = model.model.encoder.layers[0].self_attn.q_proj.weight
    (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), weight)
    assert torch.isfinite(second).all() and (second != 0).any()


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")


# Longer than what runs as plain products beside the blockwise loop (`_is_small`).
LONG = 520
OPERATORS = {"compiled": "reluformer_cpu.attention", "python": "reluformer.pointwise_attention"}


@pytest.fixture(params=OPERATORS)
def loop(request):
    """Which loop computes: the compiled one takes every length, the other one long sequences alone."""
    if request.param == "python":
        with library.python_loop():
            yield request.param
    elif library.library(large=True) is None:
        pytest.skip("the compiled attention cannot be built here")
    else:
        yield request.param


def long_model(preset: str) -> ReLUFormerForConditionalGeneration:
    rates = {"dropout": 0.0, "attention_dropout": 0.0}
    return tiny_model(preset=preset, encoder_layers=1, decoder_layers=1, max_position_embeddings=LONG, **rates)


def operators(graph: torch.fx.GraphModule, loop: str) -> int:
    return sum(str(node.target).startswith(OPERATORS[loop]) for node in graph.graph.nodes)


@needs_compiler
@pytest.mark.parametrize(
    ("preset", "length", "backend"),
    [
        ("reluformer", 7, "aot_eager"),
        pytest.param("reluformer", LONG, "inductor", marks=pytest.mark.slow),
        pytest.param("vanilla", 7, "inductor", marks=pytest.mark.slow),
    ],
)
def test_compiled_training_step_is_one_graph_and_equal(loop, preset, length, backend):
    model = long_model(preset).train()
    twin = copy.deepcopy(model)
    counts = []

    def counting(graph, inputs):
        counts.append(operators(graph, loop))
        return lookup_backend(backend)(graph, inputs)

    compiled = torch.compile(twin, fullgraph=True, backend=counting)
    batch = {"input_ids": random_tokens(2, length), "labels": random_tokens(2, length - 2)}
    batch["attention_mask"] = torch.ones(2, length)
    batch["attention_mask"][1, length // 2 :] = 0
    expected, found = model(**batch), compiled(**batch)
    # of the encoder's layer, and two of the decoder's
    takes_part = preset == "reluformer" and (loop == "compiled" or length == LONG)
    assert counts == [3 if takes_part else 0]
    torch.testing.assert_close(found.loss, expected.loss)
    expected.loss.backward()
    found.loss.backward()
    for (name, first), second in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(second.grad, first.grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("preset", ["reluformer", "vanilla"])
def test_export_of_encoder_decoder_and_decoder_step(loop, preset):
    model = long_model(preset)
    source = random_tokens(2, LONG)
    encoder = torch.export.export(model.get_encoder(), (source,))
    hidden_states = encoder.module()(source).last_hidden_state
    torch.testing.assert_close(hidden_states, model.get_encoder()(source).last_hidden_state)
    counts = [operators(encoder.graph_module, loop)]
    for length in (LONG, 1):
        arguments = {
            "input_ids": random_tokens(2, length),
            "encoder_hidden_states": hidden_states,
            "use_cache": False,
        }
        decoder = torch.export.export(model.get_decoder(), (), arguments)
        torch.testing.assert_close(
            decoder.module()(**arguments).last_hidden_state, model.get_decoder()(**arguments).last_hidden_state
        )
        counts.append(operators(decoder.graph_module, loop))
    # beside the blockwise loop, a single query runs as plain products
    expected = {"compiled": [1, 2, 2], "python": [1, 2, 0]}[loop]
    assert counts == (expected if preset == "reluformer" else [0, 0, 0])
