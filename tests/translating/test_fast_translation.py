"""Translating by compiled steps gives the tokens of `generate`, in float32; int8 gives the same bits everywhere."""

import copy
import logging
import math
import pickle
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig

from reluformer import Translator
from reluformer.modeling_reluformer.compiled.library import library
from reluformer.training.run.divergence import DivergenceWatch
from reluformer.translating import fast_translation, translation
from reluformer.translating.fast_translation import COMPUTE, FastTranslationModel, Search, reason_against

from ..conftest import demo_tokenizer, tiny_model

pytestmark = pytest.mark.skipif(library(large=True) is None, reason="there is no compiled library")
MODELS = {
    "relu": {},
    "learnable gamma": {"attention_gamma_learnable": True},
    "relu2, length": {"attention_activation": "relu2", "attention_scaling": "length", "attention_alpha": 0.5},
    "unscaled": {"attention_scaling": "none", "scale_embedding": False},
    "softmax": {"preset": "vanilla"},
    "two vocabularies": {
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "decoder_vocab_size": 37,
    },
    "odd sizes": {"d_model": 36, "encoder_ffn_dim": 19, "decoder_ffn_dim": 21, "vocab_size": 41},
}
SOURCES = [[5, 9, 7, 2], [11, 4, 6, 12, 5, 8, 2], [2], [30, 31, 2], [6] * 12 + [2]]


@pytest.fixture(params=[1, 2])
def threads(request, set_threads):
    set_threads(request.param)


def sharp_model(**fields):
    """A model whose output layer decides clearly, so that rounding chooses no other token."""
    model = tiny_model(**{"activation_function": "relu", **fields})
    with torch.no_grad():
        model.lm_head.weight.mul_(3)
        model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(1))
    return model


def ending_model(**fields):
    """One whose translations end after different numbers of tokens, or at the limit."""
    model = sharp_model(**MODELS["relu2, length"], **fields)
    with torch.no_grad():
        model.lm_head.weight[2].mul_(10)
        model.final_logits_bias[0, 2] += 4
    return model


def generated(model, search: Search) -> list[list[int]]:
    """By Transformers, without what stands behind the end."""
    longest = max(map(len, SOURCES))
    ids = torch.tensor([source + [0] * (longest - len(source)) for source in SOURCES])
    mask = torch.tensor([[1] * len(source) + [0] * (longest - len(source)) for source in SOURCES])
    options = {name: getattr(search, name) for name in ("num_beams", "max_new_tokens")}
    if search.num_beams > 1:
        options["length_penalty"] = search.length_penalty
    rows = model.generate(ids, attention_mask=mask, do_sample=False, max_length=None, **options)[:, 1:].tolist()
    return [row[: row.index(2) + 1] if 2 in row else row for row in rows]


@pytest.mark.parametrize(
    "search",
    [Search(1, 12), Search(4, 12), Search(3, 9, length_penalty=0.0), Search(2, 9, length_penalty=2.0)],
    ids=str,
)
@pytest.mark.parametrize("name", [*MODELS, "some end"])
def test_the_tokens_are_those_of_generate(name, search, threads):
    model = sharp_model(**MODELS[name]) if name in MODELS else ending_model()
    assert reason_against(model, {}) is None
    hypotheses = FastTranslationModel(model, "float32").translate(SOURCES, search, scores=True)
    assert [each.ids for each in hypotheses] == generated(model, search)
    assert name in MODELS or len({len(each.ids) for each in hypotheses}) > 2
    for source, (ids, log_probability) in zip(SOURCES, hypotheses, strict=True):
        assert log_probability == pytest.approx(log_probability_of(model, source, ids), abs=2e-4)


@torch.no_grad()
def log_probability_of(model, source, ids):
    """By one forward pass over the whole translation."""
    start = model.generation_config.decoder_start_token_id
    inputs = torch.tensor([source]), torch.tensor([[start, *ids[:-1]]])
    logits = model(input_ids=inputs[0], decoder_input_ids=inputs[1]).logits[0].double()
    return logits.log_softmax(dim=-1)[range(len(ids)), ids].sum().item()


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("computed_by", ["compiled", "generate"])
def test_scores_are_the_mean_log_probabilities_of_the_tokens(computed_by, num_beams, monkeypatch):
    tokenizer = demo_tokenizer(200)
    model, lengths = ending_model(vocab_size=len(tokenizer)), set()
    if computed_by == "generate":
        monkeypatch.setattr(translation, "reason_against", lambda *_: "a test")
    texts = ["eins", " ", "zwei drei vier fünf sechs. Sieben acht!", "neun"]
    translator = Translator(model, tokenizer, max_new_tokens=9, num_beams=num_beams)
    plain, scored = translator(texts), translator(texts, scores=True)
    assert [each.text for each in scored] == plain and list(translator.stream(texts)) == plain
    assert math.isnan(scored[1].log_probability) and "scores" not in translator.decoding
    search = Search(num_beams, 9)
    for text, (_, score) in zip(texts[::3], scored[::3], strict=True):  # of one sentence each
        source = tokenizer(text)["input_ids"]
        ids = FastTranslationModel(model, "float32").translate([source], search)[0].ids
        assert score == pytest.approx(log_probability_of(model, source, ids) / len(ids), abs=1e-4)
        lengths.add(len(ids))
    assert len(lengths) == 2, "one ends before the other"
    parts = [tokenizer(text)["input_ids"] for text in ("zwei drei vier fünf sechs.", "Sieben acht!")]
    of_parts = [FastTranslationModel(model, "float32").translate([part], search, scores=True)[0] for part in parts]
    total, tokens = sum(each.log_probability for each in of_parts), sum(len(each.ids) for each in of_parts)
    assert scored[2].log_probability == pytest.approx(total / tokens, abs=1e-4)


def states_and_logits(model, compute, sources=SOURCES):
    """Keys and values of the sources' tokens, and the logits of two steps of each source."""
    fast = FastTranslationModel(model, compute)
    lengths = [len(source) for source in sources]
    cross = fast._model.encode(torch.tensor([token for source in sources for token in source]), lengths)
    state = torch.classes.reluformer_cpu.TranslationState(cross, lengths, 4, 1, model.config.decoder_attention_heads)
    steps = [fast._model.step(state, torch.full((len(sources),), token), None) for token in (fast.start, 7)]
    return torch.cat(cross, dim=1), torch.cat(steps, dim=1)


def test_rows_that_go_on_read_their_own_source_and_past():
    """Of three sources, the last and the first go on, in this order."""
    fast = FastTranslationModel(sharp_model(), "float32")

    def begun(sources):
        lengths = [len(source) for source in sources]
        cross = fast._model.encode(torch.tensor([token for source in sources for token in source]), lengths)
        state = torch.classes.reluformer_cpu.TranslationState(cross, lengths, 4, 1, 4)
        fast._model.step(state, torch.full((len(sources),), fast.start), None)
        return state

    sources = SOURCES[:3]
    chosen = fast._model.step(begun(sources), torch.tensor([7, 8]), torch.tensor([2, 0]))
    for logits, index, token in zip(chosen, (2, 0), (7, 8), strict=True):
        alone = fast._model.step(begun([sources[index]]), torch.tensor([token]), None)
        torch.testing.assert_close(logits, alone[0], rtol=0, atol=0)


def test_int8_stays_close():
    """Of the logits, in the spread of those of float32."""
    model = sharp_model(d_model=64, encoder_ffn_dim=128, decoder_ffn_dim=128)
    (_, exact), (_, logits) = (states_and_logits(model, kind) for kind in COMPUTE)
    error = (logits - exact).std() / exact.std()
    assert 0 < error < 0.03


@pytest.mark.parametrize("activation", ["relu", "relu2", "softmax"])
@pytest.mark.parametrize("length", [3, 150])
def test_the_states_of_the_encoder_are_those_of_the_model_in_float64(length, activation, threads):
    preset = {"softmax": "vanilla"}.get(activation, "reluformer")
    model = tiny_model(
        preset=preset, attention_activation=activation, max_position_embeddings=200, activation_function="relu"
    )
    sources = [[5, 7, 2], [4 + i % 20 for i in range(length)]]
    found, _ = states_and_logits(model, "float32", sources)
    exact = model.double()
    states = [exact.model.encoder(torch.tensor([source])).last_hidden_state[0] for source in sources]
    attentions = [layer.encoder_attn for layer in exact.model.decoder.layers]
    parts = [part(torch.cat(states)) for each in attentions for part in (each.k_proj, each.v_proj)]
    torch.testing.assert_close(found.double(), torch.cat(parts, dim=1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 7, 15, 130])
def test_products_of_many_inputs_are_those_of_the_model_in_float64(rows, choose_instruction_set):
    """Inputs are multiplied 256 at a time, and many rows 128 at a time: with every instruction set."""
    model = tiny_model(d_model=264, encoder_ffn_dim=530, max_position_embeddings=200, activation_function="relu")
    ids = [[4 + i % 20 for i in range(rows)]]
    exact = copy.deepcopy(model).double()
    states = exact.model.encoder(torch.tensor(ids)).last_hidden_state[0]
    attentions = [layer.encoder_attn for layer in exact.model.decoder.layers]
    wanted = torch.cat([part(states) for each in attentions for part in (each.k_proj, each.v_proj)], dim=1)
    for name in torch.ops.reluformer_cpu.instruction_sets():
        choose_instruction_set(name)
        found, _ = states_and_logits(model, "float32", ids)
        torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("compute", "preset"), [("float32", "reluformer"), ("int8", "reluformer"), ("float32", "vanilla")]
)
def test_the_bits_are_those_of_every_instruction_set_batch_and_number_of_threads(
    compute, preset, set_threads, choose_instruction_set
):
    """Of whole models: states and logits."""
    model = sharp_model(
        preset=preset, d_model=264, encoder_ffn_dim=70, decoder_ffn_dim=300, max_position_embeddings=160
    )
    sources = [[4 + (i * k) % 23 for i in range(140 if k == 18 else 5 + k % 9)] for k in range(20)]
    names = torch.ops.reluformer_cpu.instruction_sets()
    results = []
    for name in names:
        choose_instruction_set(name)
        for threads in (1, 2):
            set_threads(threads)
            states, logits = states_and_logits(model, compute, sources)
            best = torch.ops.reluformer_cpu.continuations(logits, torch.zeros(20), 1, 8)
            results.append((states, logits, *best))
        alone = [states_and_logits(model, compute, [source]) for source in sources[:3] + sources[-3:]]
        count = sum(map(len, sources[:3]))
        for index, whole in enumerate(results[-1][:2]):
            first = torch.cat([each[index] for each in alone[:3]])
            assert torch.equal(first, whole[: (count if index == 0 else 3)])
    assert "avx2" in names
    for result in results[1:]:
        assert all(torch.equal(first, other) for first, other in zip(results[0], result, strict=True))


@pytest.fixture
def continuations(choose_instruction_set):
    """The operator by each instruction set in turn."""
    operators = torch.ops.reluformer_cpu

    def by_every_set(logits, number):
        results = []
        for name in operators.instruction_sets():
            choose_instruction_set(name)
            results.append(operators.continuations(logits, torch.zeros(len(logits)), 1, number))
        return results

    return by_every_set


def test_the_largest_logit_may_be_the_last_of_an_odd_vocabulary(continuations):
    logits = torch.zeros(1, 45)
    logits[0, 44] = 200.0  # of which the logarithm of the sum is 200, too
    for log_probability, index in continuations(logits, 1):
        assert log_probability.item() == 0.0 and index.tolist() == [[44]]


def test_of_equal_logits_the_first_comes_first(continuations):
    logits = torch.zeros(1, 40)
    logits[0, [5, 9, 30]] = 1.0
    assert all(index.tolist() == [[5, 9, 30]] for _, index in continuations(logits, 3))


def test_a_weight_that_is_not_a_number_is_seen_in_the_states():
    model = tiny_model(activation_function="relu")
    with torch.no_grad():
        model.model.encoder.layers[0].self_attn.q_proj.weight.fill_(math.nan)
    assert states_and_logits(model, "float32")[0].isnan().all()


@pytest.fixture
def translator():
    tokenizer = demo_tokenizer(200)
    return Translator(tiny_model(vocab_size=len(tokenizer), activation_function="relu"), tokenizer, max_new_tokens=8)


def test_a_translator_takes_the_steps_and_notices_new_weights(translator, monkeypatch):
    texts = ["eins", "zwei", "dreiundzwanzig", "vier"] * 3
    monkeypatch.setattr(translator.model, "generate", None)  # nobody may call it
    first = translator(texts, num_beams=2)
    with torch.no_grad():
        for layer in translator.model.model.decoder.layers:  # of whose weights there are packed copies
            layer.fc2.weight.mul_(-30)
    assert translator(texts, num_beams=2) != first
    packed = translator._fast["float32"][1]
    for weight in translator.model.parameters():
        weight.data.mul_(2)  # which torch counts as little as a step of a fused optimizer
    assert translator(texts, num_beams=2) and translator._fast["float32"][1] is not packed
    assert translator(texts, compute="int8")


def test_weights_that_were_made_in_inference_mode_translate():
    tokenizer = demo_tokenizer(200)
    with torch.inference_mode():
        model = tiny_model(vocab_size=len(tokenizer), activation_function="relu")
    first, second = (Translator(model, tokenizer, max_new_tokens=3)(["eins"]) for _ in range(2))
    assert first == second


def test_a_call_with_options_makes_no_second_translator_and_looks_at_the_weights_once(translator, monkeypatch):
    asked = []
    monkeypatch.setattr(translation, "reason_against", lambda *given: asked.append(given))
    monkeypatch.setattr(Translator, "__init__", None)
    before = translator.options
    assert len(translator(["eins", "zwei drei", "vier"] * 5, num_beams=3, batch_tokens=6, split="none")) == 15
    assert len(asked) == 1 and translator.options is before
    other = translator.with_options(num_beams=2, top_k=7)
    assert (other.decoding["num_beams"], other.decoding["top_k"]) == (2, 7) and "top_k" not in translator.decoding


def test_weights_are_packed_once_for_each_type_that_calls_ask_for(translator):
    for _ in range(2):
        for compute in ("int8", "float32"):
            translator(["eins"], compute=compute)
            packed = translator._fast[compute][1]
            translator(["eins"], compute=compute)
            assert translator._fast[compute][1] is packed
    assert translator._fast.keys() == {"int8", "float32"}


@pytest.mark.parametrize(
    ("fields", "options", "words"),
    [
        ({"attention_qk_norm": True}, {}, "attention_qk_norm=True"),
        ({"eos_token_id": [2, 3]}, {}, "eos_token_id=[2, 3] and decoder_start_token_id=1, of which each must be one "
                                       "token"),
        ({}, {"no_repeat_ngram_size": 2}, "no_repeat_ngram_size of GenerationConfig"),
        ({}, {"forced_eos_token_id": 0}, "forced_eos_token_id of GenerationConfig"),
        ({}, {"eos_token_id": 19}, "eos_token_id is not that of the model"),
    ],
)  # fmt: skip
def test_what_is_not_computed_here_goes_to_generate_and_is_said(fields, options, words, caplog):
    tokenizer = demo_tokenizer(200)
    model = tiny_model(**{"activation_function": "relu", **fields}, vocab_size=len(tokenizer))
    translator = Translator(model, tokenizer, max_new_tokens=6, compute="int8", **options)
    with caplog.at_level(logging.INFO, logger=translation.__name__):
        assert translator(["eins"] * 9) == Translator(model, tokenizer, max_new_tokens=6, **options)(["eins"] * 9)
    lines = [record.message for record in caplog.records if "translated by" in record.message]
    assert lines == [f"translated by `generate`{how}: {words}." for how in (" in float32, not int8", "")]


def test_calls_with_options_say_once_what_is_not_computed_here(caplog):
    tokenizer = demo_tokenizer(200)
    translator = Translator(tiny_model(attention_qk_norm=True, vocab_size=len(tokenizer)), tokenizer, max_new_tokens=2)
    for num_beams in (1, 2):
        translator("eins", num_beams=num_beams)
    assert caplog.text.count("translated by `generate`") == 1


def test_a_model_that_the_trainer_of_transformers_has_saved_is_computed_here():
    """It names every option of `generate`, at the value that changes nothing."""
    model = tiny_model(activation_function="relu")
    usual = GenerationConfig._get_default_generation_params()
    model.generation_config.update(**usual, defaults_only=True)
    assert reason_against(model, model.generation_config.to_diff_dict()) is None
    for name, value in {"repetition_penalty": 1.2, "num_return_sequences": 2, "temperature": 0.5}.items():
        assert reason_against(model, {**usual, name: value}) == f"{name} of GenerationConfig"


def test_int8_that_nothing_computes_is_told_of_an_exported_model_too(caplog):
    tokenizer = demo_tokenizer(200)
    model = tiny_model(attention_qk_norm=True, vocab_size=len(tokenizer))
    model.is_exported = True
    for compute, lines in (("float32", []), ("int8", ["translated by `generate` in float32, not int8"])):
        Translator(model, tokenizer, max_new_tokens=2, compute=compute)("eins")
        told = [record.message for record in caplog.records if "translated by" in record.message]
        assert [message.partition(": ")[0] for message in told] == lines


def test_a_hook_that_acts_in_training_alone_leaves_the_compiled_path():
    model = tiny_model(activation_function="relu")
    watch = DivergenceWatch(SimpleNamespace(model=model), "record")
    model.base_model.register_forward_hook(watch._count_dead_rows)
    assert fast_translation._reason_against_modules(model) is None


@pytest.mark.parametrize("changed", ["hook", "norm", "bias", "matrix", "start", "gamma", "scaling"])
def test_what_was_changed_in_the_model_is_translated_as_generate_does(changed):
    tokenizer = demo_tokenizer(200)
    model = tiny_model(activation_function="relu", vocab_size=len(tokenizer))
    translator = Translator(model, tokenizer, max_new_tokens=6, num_beams=1)
    translator(["eins"] * 9)
    if changed == "hook":
        model.lm_head.register_forward_hook(lambda module, inputs, output: -output)
    elif changed == "norm":
        model.model.encoder.layers[0].final_layer_norm = torch.nn.Identity()
    elif changed == "bias":
        model.lm_head.bias = torch.nn.Parameter(10 * torch.randn(len(tokenizer)))
    elif changed == "matrix":  # as PEFT merges an adapter: neither the tensor nor its version changes
        model.model.decoder.layers[0].fc2.weight.data.mul_(-30)
    elif changed == "start":
        model.generation_config.decoder_start_token_id = 7
    else:
        setattr(model.config, f"attention_{changed}", "length" if changed == "scaling" else 0.01)
    with torch.no_grad():
        wanted = model.generate(**tokenizer("eins", return_tensors="pt"), max_new_tokens=6, num_beams=1)
    assert translator(["eins"] * 9) == tokenizer.batch_decode(wanted, skip_special_tokens=True) * 9


def test_a_translator_that_was_used_is_copied_and_pickled():
    tokenizer = demo_tokenizer(200)
    model = tiny_model(activation_function="relu", vocab_size=len(tokenizer))
    translator = Translator(model, tokenizer, max_new_tokens=6, num_beams=1)
    expected = translator("eins")
    for other in (copy.deepcopy(translator), pickle.loads(pickle.dumps(translator))):
        assert other("eins") == expected


def test_an_id_without_an_embedding_is_refused():
    model = FastTranslationModel(tiny_model(activation_function="relu"), "float32")
    with pytest.raises(IndexError, match="source ids 2 to 40; the model has 0 to 39"):
        model.translate([[5, 40, 2]], Search(1, 4))
