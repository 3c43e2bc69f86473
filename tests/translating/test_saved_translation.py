"""A folder is translated without Transformers as with it, and whatever it would read otherwise is left to
Transformers."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from reluformer import Translator
from reluformer.configuration.errors import UserError
from reluformer.modeling_reluformer.compiled.library import library
from reluformer.translating import saved_translation
from reluformer.translating.loading import load_model_config
from reluformer.translating.saved_translation import expected_shapes, quick_translator
from reluformer.translating.shipped import shipped_models

from ..conftest import demo_tokenizer, tiny_model
from .test_fast_translation import MODELS

pytestmark = pytest.mark.skipif(library(large=True) is None, reason="there is no compiled library")
TEXTS = ["eins", "zweiundzwanzig </s> Ä", " ", "drei  vier"]
WITHOUT = """
import sys
sys.argv[0], sys.modules["transformers"] = "reluformer", None
from reluformer.commands.main import main
sys.exit(main(["translate", "--model", {folder!r}, "eins"]))
"""


@pytest.fixture(scope="module")
def tokenizer():
    return demo_tokenizer(200)


def save(folder, tokenizer, **fields):
    model = tiny_model(**{"activation_function": "relu", "vocab_size": len(tokenizer), **fields})
    model.save_pretrained(folder)
    tokenizer(["a", "b c"], padding=True, truncation=True, max_length=4)  # which its file keeps
    tokenizer.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_translations_and_shapes_are_those_of_transformers(name, tmp_path, tokenizer):
    model = save(tmp_path, tokenizer, **{**MODELS[name], "vocab_size": len(tokenizer)})
    shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items() if "shared" not in name}
    assert expected_shapes(model.config) == shapes
    options = {"num_beams": 3, "max_new_tokens": 7}
    quick, whole = quick_translator(tmp_path, **options), Translator.from_pretrained(tmp_path, **options)
    assert quick is not None and quick(TEXTS) == whole(TEXTS)
    quick, whole = quick.tokenizer, AutoTokenizer.from_pretrained(tmp_path)
    assert quick(TEXTS, verbose=False)["input_ids"] == whole(TEXTS)["input_ids"]
    ids = torch.arange(len(tokenizer)).view(2, -1)
    assert quick.batch_decode(ids, True) == whole.batch_decode(ids, skip_special_tokens=True)
    assert (quick.eos_token_id, quick.pad_token_id) == (whole.eos_token_id, whole.pad_token_id)


def test_each_field_that_a_configuration_writes_has_a_rule(tmp_path):
    """A saved model with a field that has none would start slowly, without a word."""
    tiny_model().save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text()).keys()
    fields, optional = saved_translation._FIELDS.keys(), saved_translation._OPTIONAL_FIELDS.keys()
    assert written - fields - optional == set(), "add these to _OPTIONAL_FIELDS of translating/saved_translation.py"
    assert fields - written == set(), "no configuration writes these any more; take them from _FIELDS"


def test_what_was_loaded_and_saved_again_and_what_trainer_saves_is_still_read(tmp_path):
    tokenizer = demo_tokenizer(50)
    tokenizer.save_pretrained(tmp_path)
    model = tiny_model(activation_function="relu", vocab_size=len(tokenizer))
    AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    model.generation_config.eos_token_id = [model.generation_config.eos_token_id]
    model.save_pretrained(tmp_path)
    quick = quick_translator(tmp_path, num_beams=2)
    assert quick is not None and quick(TEXTS) == Translator.from_pretrained(tmp_path, device="cpu", num_beams=2)(TEXTS)


def test_weights_in_bfloat16_are_computed_in_float32(tmp_path, tokenizer):
    model = save(tmp_path, tokenizer).bfloat16()
    model.save_pretrained(tmp_path)
    quick, whole = quick_translator(tmp_path), Translator.from_pretrained(tmp_path, device="cpu")
    wanted = Translator(model.float(), tokenizer)(TEXTS)
    assert quick(TEXTS) == whole(TEXTS) == wanted
    assert whole._fast


def test_a_regulariser_of_one_module_alone_is_read(tmp_path, tokenizer):
    save(tmp_path, tokenizer, encoder_layers=3, decoder_layers=1, regularization_share=1 / 5)
    assert quick_translator(tmp_path) is not None


def test_a_token_just_beyond_the_vocabulary_is_left_to_transformers(tmp_path, tokenizer):
    save(tmp_path, tokenizer)
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text("utf-8"))
    for token, is_read in ((len(tokenizer) - 1, True), (len(tokenizer), False)):
        path.write_text(json.dumps(settings | {"bos_token_id": token}), "utf-8")
        assert (quick_translator(tmp_path) is not None) == is_read


def test_the_command_translates_without_transformers(tmp_path, tokenizer):
    save(tmp_path, tokenizer)
    done = subprocess.run([sys.executable, "-c", WITHOUT.format(folder=str(tmp_path))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1


CHANGED_WEIGHTS = {
    "without one": lambda weights: weights.pop("model.encoder.layers.0.fc1.weight"),
    "of another shape": lambda weights: weights.update(
        {"final_logits_bias": weights["final_logits_bias"][:, :-1].clone()}
    ),
    "not a number": lambda weights: weights["final_logits_bias"].fill_(torch.nan),
    "a copy of a tied one": lambda weights: weights.update(
        {"lm_head.weight": torch.randn_like(weights["model.shared.weight"])}
    ),
    "a copy of the embedding": lambda weights: weights.update(
        {"model.encoder.embed_tokens.weight": torch.randn_like(weights["model.shared.weight"])}
    ),
    "copies instead of it": lambda weights: weights.update(
        {
            "model.encoder.embed_tokens.weight": weights["model.shared.weight"].clone(),
            "model.decoder.embed_tokens.weight": weights.pop("model.shared.weight"),
        }
    ),
    "one too many": lambda weights: weights.update({"more": torch.zeros(1)}),
    "float16": lambda weights: weights.update({"final_logits_bias": weights["final_logits_bias"].half()}),
}


@pytest.mark.parametrize("change", CHANGED_WEIGHTS.values(), ids=CHANGED_WEIGHTS)
def test_other_weights_are_left_to_transformers(change, tmp_path, tokenizer):
    save(tmp_path, tokenizer)
    weights = load_file(tmp_path / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    assert quick_translator(tmp_path) is None


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("config.json", {"activation_function": "gelu"}),
        ("config.json", {"model_type": "marian"}),
        ("config.json", {"attention_gamma": None}),
        ("config.json", {"vocab_size": 7}),
        ("generation_config.json", {"no_repeat_ngram_size": 2}),
        ("generation_config.json", {"eos_token_id": [2, 3]}),
        ("tokenizer_config.json", {"tokenizer_class": "MarianTokenizer"}),
        ("tokenizer_config.json", {"clean_up_tokenization_spaces": True}),
        ("tokenizer_config.json", {"additional": 1}),
        ("tokenizer_config.json", {"eos_token": "<end>"}),
        ("tokenizer_config.json", {"model_max_length": "x"}),
        ("tokenizer_config.json", {"model_input_names": "x"}),
        ("generation_config.json", {"max_new_tokens": 0}),
        ("generation_config.json", {"max_new_tokens": "x"}),
        ("generation_config.json", {"pad_token_id": "a"}),
        ("generation_config.json", {"compile_config": {}}),
        ("config.json", {"pad_token_id": 10**6}),
        ("config.json", {"pad_token_id": -1}),
        ("config.json", {"dtype": "bogus"}),
        ("config.json", {"max_position_embeddings": 10**12}),
        ("config.json", {"quantization_config": {}}),
        ("config.json", {"transformers_weights": "other.safetensors"}),
        ("config.json", {"_attn_implementation": "bogus"}),
    ],
    ids=str,
)
def test_other_settings_are_left_to_transformers(file, changes, tmp_path, tokenizer):
    save(tmp_path, tokenizer)
    settings = json.loads((tmp_path / file).read_text("utf-8")) | changes
    kept = {name: value for name, value in settings.items() if value is not None or name not in changes}
    (tmp_path / file).write_text(json.dumps(kept), "utf-8")
    assert quick_translator(tmp_path) is None


@pytest.mark.parametrize("name", MODELS)
def test_a_value_that_the_configuration_refuses_is_left_to_transformers(name, tmp_path, tokenizer):
    save(tmp_path, tokenizer, **{**MODELS[name], "vocab_size": len(tokenizer)})
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text("utf-8"))
    values = [None, True, False, -1, 0, 1, 3, 0.25, 1.0, 1.5, 1e400, float("nan"), 10**30, "x", [], [0.5], {}]
    values.append(len(tokenizer))  # one more than the last token
    refused = 0
    for field in settings:
        for value in values:
            path.write_text(json.dumps(settings | {field: value}), "utf-8")
            try:
                load_model_config(tmp_path)
            except UserError:
                refused += 1
                assert quick_translator(tmp_path) is None, (field, value)
    assert refused > 200
    path.write_text(json.dumps(settings), "utf-8")
    assert quick_translator(tmp_path) is not None


@pytest.mark.parametrize("name", ["other.index.json", "adapter_config.json", "special_tokens_map.json"])
def test_a_folder_with_files_that_transformers_would_read_is_left_to_it(name, tmp_path, tokenizer):
    save(tmp_path, tokenizer)
    assert quick_translator(tmp_path) is not None
    (tmp_path / name).write_text("{}")
    assert quick_translator(tmp_path) is None


def test_a_damaged_tokenizer_is_left_to_transformers(tmp_path, tokenizer):
    save(tmp_path, tokenizer)
    path = tmp_path / "tokenizer.json"
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole.replace(b'"type": "BPE"', b'"type": "no"')):
        path.write_bytes(damaged)
        assert quick_translator(tmp_path) is None
    path.unlink()
    assert quick_translator(tmp_path) is None


def test_the_models_that_come_with_the_package_are_read():
    for name in shipped_models():
        assert quick_translator(name) is not None


@pytest.mark.parametrize("options", [{"device": "cuda"}, {"attn_implementation": "eager"}])
def test_other_ways_to_compute_are_left_to_transformers(options, tmp_path, tokenizer):
    save(tmp_path, tokenizer)
    assert quick_translator(tmp_path, **options) is None
    assert quick_translator("owner/on-the-hub") is None
