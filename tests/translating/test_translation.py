"""Translator: order, batches, limits, Moses, errors. Models are random: nothing may change a result."""

import copy
import inspect
import io
import json
import logging
from types import SimpleNamespace

import datasets
import pytest
import torch
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoTokenizer, MarianConfig, MarianMTModel

from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.configuration.errors import UserError
from reluformer.training.data.tokenization import train_tokenizer
from reluformer.translating.loading import load_model_config
from reluformer.translating.translation import Translator

TEXTS = [
    "zwei hunde",
    "ein mann fährt ein rotes rad",
    "schnee",
    "die kinder spielen im schnee und lachen laut",
    "ein hund",
]
POSITIONS = 64
FIELDS = {
    **dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 16),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    "max_position_embeddings": POSITIONS,
}


def make_tokenizer(moses=False):
    pairs = datasets.Dataset.from_dict({"source": TEXTS * 4, "target": TEXTS * 4})
    languages = {"source_language": "de", "target_language": "en"}
    return train_tokenizer(pairs, vocab_size=330, lowercase=True, moses=moses, max_length=POSITIONS, **languages)


def make_model(kind, tokenizer):
    torch.manual_seed(0)
    if kind == "marian":
        config = MarianConfig(vocab_size=len(tokenizer), forced_eos_token_id=None, **FIELDS)
        model = MarianMTModel(config)
    else:
        config = ReLUFormerConfig(vocab_size=len(tokenizer), attention_gamma=8.0, **FIELDS)
        model = ReLUFormerForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed_positions" not in name:  # those are never saved
                parameter.add_(torch.randn_like(parameter) * 0.3)  # far from the start, so that translations differ
        # No single bytes: they would all be shown as "�". And some translations end.
        model.final_logits_bias[0, :260] = -1e4
        model.final_logits_bias[0, tokenizer.eos_token_id] = 1.0
    return model


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="module", params=["marian", "reluformer"])
def model(request, tokenizer):
    return make_model(request.param, tokenizer)


@pytest.fixture
def calls(model, monkeypatch):
    """Shapes of the source ids of each call of generate."""
    shapes = []
    generate = model.generate

    def recording(*args, **kwargs):
        shapes.append(tuple(kwargs["input_ids"].shape))
        return generate(*args, **kwargs)

    monkeypatch.setattr(model, "generate", recording)
    monkeypatch.setattr("reluformer.translating.translation.reason_against", lambda *_: "a test looks at generate")
    return shapes


@pytest.mark.parametrize("num_beams", [1, 4])
def test_together_or_alone_the_translations_are_the_same(model, tokenizer, num_beams):
    translator = Translator(model, tokenizer, num_beams=num_beams)
    together = translator(TEXTS)
    assert together == [translator(text) for text in TEXTS]
    assert together[::-1] == translator(TEXTS[::-1])
    assert len(set(together)) >= 4  # else the order could not be seen


def test_a_translation_is_what_generate_gives(model, tokenizer):
    translator = Translator(model, tokenizer, num_beams=3, length_penalty=0.6, max_new_tokens=20)
    inputs = {k: v for k, v in tokenizer(TEXTS[1], return_tensors="pt").items() if k != "token_type_ids"}
    model.eval()
    ids = model.generate(**inputs, num_beams=3, length_penalty=0.6, max_new_tokens=20)
    assert translator(TEXTS[1]) == tokenizer.decode(ids[0], skip_special_tokens=True)


def test_batches_hold_the_token_budget_and_every_text_once(model, tokenizer, calls):
    translator = Translator(model, tokenizer, batch_tokens=24, num_beams=1, max_new_tokens=3)
    texts = [*TEXTS, *TEXTS]
    lengths = [len(tokenizer(text)["input_ids"]) for text in texts]
    assert len(translator(texts)) == len(texts)
    assert all(rows == 1 or rows * longest <= 24 for rows, longest in calls)
    assert sum(rows for rows, _ in calls) == len(texts)
    assert len(calls) < len(texts)
    assert calls[0][1] == max(lengths)


def test_texts_with_different_limits_are_not_batched_together(model, tokenizer):
    translator = Translator(model, tokenizer)
    batches = list(translator._batches({0: [5] * 3, 1: [5] * 16, 2: [5] * 17, 3: [5] * 4}, translator.options))
    assert batches == [[2], [1, 3, 0]]
    assert [translator.limit(n) for n in (1, 16, 17)] == [48, 48, POSITIONS]


def test_the_model_is_given_back_as_it_was_and_can_go_on_training(model, tokenizer, monkeypatch):
    """Nothing that was made in inference mode may stay in it, and no dropout changes a translation."""
    translator = Translator(model.eval(), tokenizer, num_beams=1)
    first = translator(TEXTS[0])
    assert not model.training
    model.train()
    assert translator(TEXTS[0]) == first and model.training

    def failing(*args):
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(translator, "_generate", failing)
        translator(TEXTS[0])
    assert model.training
    ids = torch.tensor([tokenizer(TEXTS[0])["input_ids"]])
    model(input_ids=ids, labels=ids).loss.backward()
    model.zero_grad()


def test_sources_that_are_too_long_are_refused_by_name_before_any_is_translated(model, tokenizer, calls):
    long = "hund " * POSITIONS
    more = rf"more tokens than the {POSITIONS} positions of the model: number 3 \(\d+ tokens\), 4 "
    found = rf"7 of 9 sources hold a .* {more}"
    for call in (Translator.__call__, Translator.stream):
        with pytest.raises(UserError, match=rf"{found}.*, 7 \(\d+ tokens\) and 2 more, counted from 1; .*split"):
            call(Translator(model, tokenizer), ["", TEXTS[0], *[long] * 7])
    assert calls == []


def test_a_source_that_is_too_long_is_split_at_the_ends_of_sentences(model, tokenizer, caplog, calls):
    translator = Translator(model, tokenizer, num_beams=1, split="none", long_sources="split")
    sentences = ["Ein hund. ", 'Die kinder lachen!" ', f"Der {'schnee ' * POSITIONS}. ", "Zwei hunde"]
    with caplog.at_level(logging.WARNING):
        translations = translator([TEXTS[0], "".join(sentences), TEXTS[1]])
    assert "1 of 3 sources have more" in caplog.text and "; they are split" in caplog.text
    assert translator.shortened == [2]
    whole = tokenizer(sentences[2])["input_ids"]
    windows = [[*whole[:-1][start : start + POSITIONS - 1], 2] for start in range(0, len(whole) - 1, POSITIONS - 1)]
    assert len(windows) > 1 and max(width for _, width in calls) == POSITIONS
    ids = [tokenizer("".join(sentences[:2]))["input_ids"], *windows, tokenizer(sentences[3])["input_ids"]]
    model.eval()
    parts = [
        tokenizer.decode(translator._generate([piece], translator.options, None)[0][0], skip_special_tokens=True)
        for piece in ids
    ]
    assert translations == [translator(TEXTS[0]), " ".join(parts), translator(TEXTS[1])]


def test_a_text_is_translated_sentence_by_sentence_and_its_white_space_stays(model, tokenizer):
    translator = Translator(model, tokenizer, num_beams=1)
    sentences = ["Ein hund lacht.", "Z. B. im schnee!", "Die kinder?!", "Schnee"]
    ein, zum, die, schnee = (translator(sentence) for sentence in sentences)
    assert len({ein, zum, die, schnee}) == 4
    a, b, c, d = sentences
    texts = [f" {a}  {b}\r\n\r\n- {c}\n---\n{d}\n", f"{d}\n{a}", " \n\t", "", f"{c}{a}"]
    assert translator(texts) == [
        # a list's dash belongs to its sentence
        f" {ein}  {zum}\r\n\r\n{translator('- ' + c)}\n---\n{schnee}\n",
        f"{schnee}\n{ein}",
        " \n\t",
        "",
        f"{die} {ein}",
    ]
    assert list(translator.stream(texts)) == translator(texts)
    assert translator.decoding["split"] == "sentences"
    assert translator(texts[0], split="none") != translator(texts[0])


def test_the_whole_text_is_a_source_for_a_model_of_documents(model, tokenizer, calls, tmp_path):
    tokenizer.init_kwargs["text_unit"] = "document"
    tokenizer.save_pretrained(tmp_path)
    del tokenizer.init_kwargs["text_unit"]
    translator = Translator(model, AutoTokenizer.from_pretrained(tmp_path), num_beams=1)
    text = "Ein hund lacht.\nDie kinder lachen."
    translator(text)
    assert calls == [(1, len(tokenizer(text)["input_ids"]))]
    assert translator(" ") == "" and "split" not in translator.decoding
    assert translator(text, split="sentences") == Translator(model, tokenizer, num_beams=1)(text)


def test_the_language_of_the_sentences_is_that_of_the_tokenizer(model, tokenizer, calls):
    text = "Ein hund bzw. Zwei hunde."  # an abbreviation in German alone
    Translator(model, tokenizer, num_beams=1)(text)
    other = copy.deepcopy(tokenizer)
    other.init_kwargs |= {"source_language": "en"}
    Translator(model, other, num_beams=1)(text)
    assert [rows for rows, _ in calls] == [1, 2]
    del other.init_kwargs["source_language"]
    other.init_kwargs["source_lang"] = "de"  # as Marian's
    Translator(model, other, num_beams=1)(text)
    assert calls[2] == calls[0]


@pytest.mark.parametrize(("split", "unit", "count"), [("sentences", "sentences", 4), ("none", "texts", 2)])
def test_the_bar_counts_what_it_says(model, tokenizer, split, unit, count, monkeypatch):
    bars = []

    class Bar(tqdm):
        def __init__(self, **options):
            super().__init__(**{**options, "disable": False, "file": io.StringIO()})
            self.wanted = not options["disable"]
            bars.append(self)

    monkeypatch.setattr("reluformer.translating.translation.tqdm", Bar)
    texts = [f"Ein hund. Zwei {'hunde ' * POSITIONS}. Schnee.", "\n", "Schnee"]
    translator = Translator(model, tokenizer, num_beams=1, batch_tokens=8, split=split, long_sources="split")
    translator(texts, progress=True)
    assert translator.shortened == [1]
    assert (bars[0].n, bars[0].total, bars[0].unit.strip()) == (count, count, unit)
    list(translator.stream(texts)), translator(texts), list(translator.stream(texts, progress=True))
    assert [bar.wanted for bar in bars] == [True, False, False, True], "a bar is shown where it is asked for"


def test_translations_come_in_order_as_soon_as_they_are_done(model, tokenizer, calls, monkeypatch):
    monkeypatch.setattr("reluformer.translating.translation._BATCHES_AT_ONCE", 1)
    texts = ["hund", "", *TEXTS, *TEXTS[::-1]]  # the shortest first, which sorted by length comes last
    expected = Translator(model, tokenizer, num_beams=1)(texts)
    translator = Translator(model, tokenizer, num_beams=1, batch_tokens=8)
    assert list(translator.stream(texts)) == expected
    assert list(translator.stream([])) == []
    calls.clear()
    stream, generate = translator.stream(texts), model.generate
    done = [next(stream)]
    assert len(calls) <= 2
    assert not torch.is_inference_mode_enabled()
    left = 1

    def failing(*args, **kwargs):
        nonlocal left
        left -= 1
        if left < 0:
            raise MemoryError
        return generate(*args, **kwargs)

    monkeypatch.setattr(model, "generate", failing)
    with pytest.raises(MemoryError):
        done += stream
    assert 1 < len(done) < len(texts) and done == expected[: len(done)]


def test_a_stream_fills_its_batches_to_the_end(model, tokenizer, calls, monkeypatch):
    monkeypatch.setattr("reluformer.translating.translation._BATCHES_AT_ONCE", 1)
    length = len(tokenizer("hund")["input_ids"])
    translator = Translator(model, tokenizer, num_beams=1, batch_tokens=4 * length)
    assert len(list(translator.stream(["hund"] * 10))) == 10
    assert calls == [(4, length), (4, length), (2, length)]


def test_translations_cut_at_the_limit_are_reported_and_others_are_not(tokenizer, caplog):
    model = make_model("marian", tokenizer)
    with caplog.at_level(logging.WARNING):
        Translator(model, tokenizer, num_beams=1, max_new_tokens=1)(TEXTS)
        assert "5 of 5 translations were cut" in caplog.text
        caplog.clear()
        model.final_logits_bias[0, 2] += 1000.0
        assert Translator(model, tokenizer, max_new_tokens=1)(TEXTS) == [""] * len(TEXTS)
    assert "cut" not in caplog.text


def test_the_moses_step_is_applied_and_undone(tmp_path):
    pytest.importorskip("sacremoses")
    make_tokenizer(moses=True).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = make_model("marian", tokenizer)
    seen = {}

    def generate(input_ids, **kwargs):
        seen["source"] = tokenizer.decode(input_ids[0], skip_special_tokens=True)
        return SimpleNamespace(sequences=torch.tensor([[1, *tokenizer("well , yes .")["input_ids"]]]))

    model.generate = generate
    assert Translator(model, tokenizer)("schnee, hund.") == "well, yes."
    assert seen["source"] == "schnee , hund ."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_tokens": 0}, "batch_tokens: 0"),
        ({"num_beams": None}, "num_beams: None"),
        ({"max_new_tokens": POSITIONS + 1}, f"more than the {POSITIONS} positions"),
        ({"long_sources": "drop"}, "choose one of error, split"),
        ({"split": "words"}, "split: 'words' is unknown; choose one of sentences, none"),
        ({"num_beam": 2}, "num_beam: not an option of translating; give options of GenerationConfig"),
        ({"max_length": 9}, r"max_length: .* \(max_new_tokens in place of max_length\)"),
        ({"stop_strings": ["a"]}, "stop_strings: not an option of translating"),
        ({"length_penalty": 50.5}, "length_penalty: 50.5 must be a number from -50 to 50"),
    ],
)
def test_bad_options_are_refused(model, tokenizer, options, message):
    with pytest.raises(UserError, match=message):
        Translator(model, tokenizer, **options)
    with pytest.raises(UserError, match=message):
        Translator(model, tokenizer)("ein hund", **options)


def test_the_ends_of_a_range_are_allowed(model, tokenizer):
    translator = Translator(model, tokenizer, max_new_tokens=POSITIONS, length_penalty=-50)
    assert translator.limit(1) == POSITIONS


def test_options_at_the_call_are_for_that_call(model, tokenizer):
    options = {"num_beams": 2, "max_new_tokens": 12, "no_repeat_ngram_size": 1}
    translator = Translator(model, tokenizer, max_new_tokens=12)
    before, there = translator(TEXTS[:2]), translator(TEXTS[:2], num_beams=2, no_repeat_ngram_size=1)
    other = Translator(model, tokenizer, **options)
    assert there == other(TEXTS[:2]) and other.decoding["no_repeat_ngram_size"] == 1
    assert translator(TEXTS[:2]) == before != there
    kept = Translator(model, tokenizer, max_new_tokens=12, no_repeat_ngram_size=1)
    assert kept(TEXTS[:2], num_beams=2) == there


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", 3], r"texts\[1\]: expected a text, got int"),
        (["a", "b\ud800"], r"texts\[1\]: 'b\\ud800' has a lone surrogate"),
        ({"source": "a"}, "texts: expected a text or several, got dict; give its values"),
    ],
)
def test_something_that_is_no_text_is_refused(model, tokenizer, texts, message):
    with pytest.raises(UserError, match=message):
        Translator(model, tokenizer)(texts)


def test_saved_and_loaded_it_translates_the_same(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = Translator.from_pretrained(tmp_path, attn_implementation="eager", device="cpu")
    assert loaded.model.config._attn_implementation == "eager" != model.config._attn_implementation
    assert loaded(TEXTS) == Translator(model, tokenizer)(TEXTS)


@pytest.mark.parametrize("name", ["./mistyped", "runs/mistyped", "a/b/c"])
def test_a_folder_that_is_not_there_is_told_before_the_hub_is_asked(name, monkeypatch):
    """Offline, huggingface_hub tries five times over half a minute; `owner/name` may well be on the Hub."""
    asked = []
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda name, **options: asked.append(name))
    with pytest.raises(UserError, match=f"'{name}': no such folder"):
        load_model_config(name)
    load_model_config("nobody/nothing")
    assert asked == ["nobody/nothing"]


def test_a_model_that_cannot_be_loaded_is_refused_in_one_line(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(UserError, match="a bert model is no encoder-decoder"):
        Translator.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))
    with pytest.raises(UserError, match="its model cannot be loaded") as caught:  # the library says several lines
        Translator.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="its model cannot be loaded: no such folder here, and from the Hub: "):
        Translator.from_pretrained("nobody/nothing-of-that-name")  # there is no network in tests


def test_a_translator_decodes_with_these_options_unless_told():
    parameters = inspect.signature(Translator).parameters
    defaults = {name: parameters[name].default for name in ("num_beams", "length_penalty", "batch_tokens")}
    assert defaults == {"num_beams": 5, "length_penalty": 1.0, "batch_tokens": 4096}
