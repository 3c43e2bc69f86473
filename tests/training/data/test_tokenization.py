"""The tokenizer: complete in itself, exact both ways, with the agreed ids."""

import json
import logging
import subprocess
import sys
import unicodedata

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import parse_recipe
from reluformer.training.data.encoding import encode_pairs
from reluformer.training.data.tokenization import MosesStep, train_tokenizer
from reluformer.training.run.model_building import build_config

GERMAN = ["Ein Mann fährt (schnell) Fahrrad.", "Zwei Hunde, drei Katzen!", "Das kostet 12,50 €.", "Sie sagt: „Ja“."]
ENGLISH = ["A man rides (fast) a bike.", "Two dogs, three cats!", "That's 12.50 €.", 'She says "yes".']
HARD = "Don't \"quote\" (me), it's 3.5% — e-mail: a@b.de … 漢字 🙂 </s> <0x41> <pad> x²  y"


def pairs(copies):
    return datasets.Dataset.from_dict({"source": GERMAN * copies, "target": ENGLISH * copies})


def train(copies=30, **kwargs):
    arguments = {"vocab_size": 400, "lowercase": False, "moses": False, "max_length": 99}
    return train_tokenizer(pairs(copies), source_language="de", target_language="en", **{**arguments, **kwargs})


@pytest.fixture(scope="module")
def tokenizer():
    return train()


def round_trip(tokenizer, text):
    return tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)


def test_a_tokenizer_that_begins_no_sentence_has_the_start_of_t5_and_marian():
    recipe, other = parse_recipe(["--config", "demo", "--training.use_cpu", "true"]), train()
    assert build_config(recipe, other).decoder_start_token_id == other.bos_token_id == 1
    other.bos_token = None
    assert build_config(recipe, other).decoder_start_token_id == other.pad_token_id == 0
    other.pad_token = None
    with pytest.raises(UserError, match=r"the tokenizer has no pad_token, .*; give it one"):
        build_config(recipe, other)


def test_special_tokens_and_inputs(tokenizer):
    assert tokenizer.convert_tokens_to_ids(["<pad>", "<s>", "</s>", "<unk>"]) == [0, 1, 2, 3]
    ids = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    assert ids == (0, 1, 2, 3)
    encoded = tokenizer(GERMAN[0])
    assert set(encoded) == {"input_ids", "attention_mask"}
    assert encoded["input_ids"].count(2) == 1 and encoded["input_ids"][-1] == 2
    assert tokenizer.model_max_length == 99 and tokenizer.vocab_size == len(tokenizer) <= 400


def test_round_trip_of_corpus_and_of_unseen_characters(tokenizer):
    for text in [*GERMAN, *ENGLISH]:
        assert round_trip(tokenizer, text) == text
    assert round_trip(tokenizer, HARD) == HARD.replace("  ", " ")
    assert 3 not in tokenizer(HARD)["input_ids"]


@settings(max_examples=150, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=40))
def test_round_trip_of_any_text_is_its_normal_form(tokenizer, text):
    normal = tokenizer.backend_tokenizer.normalizer.normalize_str(text)
    assert round_trip(tokenizer, text) == normal
    assert round_trip(tokenizer, normal) == normal


def test_normalisation(tokenizer):
    assert round_trip(tokenizer, unicodedata.normalize("NFD", "fährt")) == "fährt"
    assert round_trip(tokenizer, "\ta\u00a0 b\u2028c▁d\n") == "a b c d"
    assert round_trip(train(lowercase=True), "ÄRGER İ Straße") == "ärger i̇ straße"
    # only the small letter has a code of its own
    assert round_trip(train(lowercase=True), "J\u030c") == "\u01f0"


def test_marks_and_digits_stand_alone(tokenizer):
    for token in tokenizer.convert_ids_to_tokens(range(260, len(tokenizer))):
        marks = [c for c in token.removeprefix("▁") if unicodedata.category(c)[0] in "PSN"]
        assert not marks or len(token.removeprefix("▁")) == 1, token


def test_vocabulary_too_small_or_out_of_reach(caplog):
    with pytest.raises(UserError, match=r"vocab_size: 280 holds no merge after the \d+ special"):
        train(vocab_size=280)
    with caplog.at_level(logging.WARNING):
        size = len(train(vocab_size=5_000))
    assert f"{size} reached" in caplog.text and "5,000 asked for" in caplog.text


LOAD = """
import sys, json
for name in ("reluformer", "sacremoses"):
    sys.modules[name] = None
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
ids = tokenizer(sys.argv[2])["input_ids"]
print(json.dumps([ids, tokenizer.decode(ids, skip_special_tokens=True), tokenizer.model_max_length]))
"""


def test_loads_in_a_fresh_process_without_the_package(tmp_path):
    trained = train(lowercase=True, moses=True)
    trained.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "reluformer"}))
    result = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path), HARD], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    ids, text, limit = json.loads(result.stdout.splitlines()[-1])
    assert ids == trained(HARD)["input_ids"] and limit == 99
    assert text == HARD.replace("  ", " ").lower()


def test_the_moses_step_is_recorded_and_applied(tmp_path, tokenizer):
    assert MosesStep.from_tokenizer(tokenizer) is None
    train(moses=True).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.init_kwargs["source_language"] == "de" and loaded.init_kwargs["target_language"] == "en"
    step = MosesStep.from_tokenizer(loaded)
    assert step == MosesStep("de", "en")
    assert step.apply(["Sie sagt: „Ja“."], side="source") == ["Sie sagt : „ Ja “ ."]
    assert step.apply(["That's (fast) at&t."], side="target") == ["That 's ( fast ) at & t ."]
    assert step.undo(step.apply(ENGLISH[:2], side="target")) == ENGLISH[:2]
    raw = datasets.Dataset.from_dict({"source": ["Sie sagt: Ja."], "target": ["That's fast."]})
    encoded, _ = encode_pairs(raw, loaded, max_length=99, name="train")
    assert loaded.decode(encoded[0]["labels"], skip_special_tokens=True) == "That 's fast ."


def test_each_side_is_tokenised_by_the_rules_of_its_language():
    """English alone keeps the apostrophe with what follows it: `x` begins a word, `y` does not."""
    texts = datasets.Dataset.from_dict({"source": ["geht'x es"] * 30, "target": ["that'y it"] * 30})
    options = {"vocab_size": 300, "lowercase": False, "moses": True, "max_length": 99}
    pieces = train_tokenizer(texts, source_language="de", target_language="en", **options).get_vocab()
    assert "▁x" in pieces and "y" in pieces and "▁y" not in pieces


def test_a_language_without_rules_is_refused():
    with pytest.raises(UserError, match="no rules for language 'xx'; there are: as, bn"):
        MosesStep("xx", "en")
