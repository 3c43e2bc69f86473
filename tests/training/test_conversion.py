"""A converted Marian computes what Marian does, to rounding; what cannot be converted is refused in one line."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianForCausalLM, MarianMTModel
from transformers.generation import utils as generation_utils

from reluformer import ReLUFormerForConditionalGeneration, use_relu_attention
from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError
from reluformer.training import conversion
from reluformer.training.conversion import convert, converted_config, marian_config

from ..conftest import skip_beams_of_two_vocabularies
from .tiny_marian import VOCABULARY, marian_model, save_marian, train_sentencepiece, without

SHAPES = {
    "shared-untied": {"tie_word_embeddings": False},
    "two-vocabularies-tied": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 45},
    "two-vocabularies-untied": {
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 62,
        "tie_word_embeddings": False,
    },
    "scaled-relu-deep": {
        "scale_embedding": True,
        "activation_function": "relu",
        "encoder_layers": 1,
        "decoder_layers": 3,
    },
    "odd-width": {
        "d_model": 21,
        "encoder_attention_heads": 3,
        "decoder_attention_heads": 7,
        "activation_function": "swish",
    },
    "free-ending": {"forced_eos_token_id": None, "bos_token_id": 3, "eos_token_id": [0, 7]},
}


def batch(config) -> dict[str, torch.Tensor]:
    """Sources of unequal lengths, padded on the right, and target prefixes."""
    generator = torch.Generator().manual_seed(0)
    smallest = min(config.vocab_size, config.decoder_vocab_size) - 1
    input_ids = torch.randint(1, smallest, (4, 9), generator=generator)
    mask = torch.ones_like(input_ids)
    for row, length in enumerate((9, 4, 1, 7)):
        input_ids[row, length:] = config.pad_token_id
        mask[row, length:] = 0
    prefix = torch.randint(1, smallest, (4, 6), generator=generator)
    return {"input_ids": input_ids, "attention_mask": mask, "decoder_input_ids": prefix}


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_loss_and_beams_are_marians(shape, tmp_path):
    save_marian(tmp_path / "marian", **SHAPES[shape])
    convert(tmp_path / "marian", tmp_path / "reluformer")
    marian = MarianMTModel.from_pretrained(tmp_path / "marian").eval()
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "reluformer").eval()
    assert isinstance(model, ReLUFormerForConditionalGeneration)
    inputs = batch(marian.config)
    for implementation in ("sdpa", "eager"):
        marian.set_attn_implementation(implementation)
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            torch.testing.assert_close(model(**inputs).logits, marian(**inputs).logits, atol=1e-5, rtol=0)
    labels = inputs.pop("decoder_input_ids")
    with torch.no_grad():
        losses = [m(**inputs, labels=labels.index_fill(1, torch.tensor([4, 5]), -100)).loss for m in (model, marian)]
    torch.testing.assert_close(*losses, atol=1e-5, rtol=0)

    if "decoder_vocab_size" in SHAPES[shape]:
        skip_beams_of_two_vocabularies()
    settings = {"num_beams": 5, "num_return_sequences": 5, "max_new_tokens": 20}
    scores = {"return_dict_in_generate": True, "output_scores": True}
    ours, theirs = (m.generate(**inputs, **settings, **scores) for m in (model, marian))
    assert torch.equal(ours.sequences, theirs.sequences)
    torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, atol=1e-5, rtol=0)
    assert len({tuple(row) for row in ours.sequences.tolist()}) > 4, "beams of one constant would show nothing"


def test_every_field_of_marian_arrives():
    fields = {
        **{"dropout": 0.2, "attention_dropout": 0.05, "activation_dropout": 0.01, "init_std": 0.03},
        **{"max_position_embeddings": 33, "scale_embedding": True, "activation_function": "gelu", "bos_token_id": 5},
        **dict.fromkeys(("use_cache", "share_encoder_decoder_embeddings", "tie_word_embeddings"), False),
        "decoder_vocab_size": 44,
    }
    config = marian_model(**fields).config
    converted = marian_config(config)
    ours_alone = {"encoder_layerdrop", "decoder_layerdrop", "forced_eos_token_id", "is_decoder"}
    for name in config.to_dict().keys() - ours_alone - {"model_type", "architectures"}:
        assert getattr(converted, name) == getattr(config, name), name
    assert (converted.attention_activation, converted.label_smoothing) == ("softmax", 0.0)


def test_generation_settings_of_an_old_checkpoint_arrive(tmp_path):
    """Helsinki-NLP's: beams, bad words and the forced end stand in config.json; the bias may be missing."""
    save_marian(tmp_path / "old")
    (tmp_path / "old" / "generation_config.json").unlink()
    path = tmp_path / "old" / "config.json"
    old = {"num_beams": 4, "bad_words_ids": [[7], [VOCABULARY - 1]], "max_length": 12, "normalize_before": False}
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **old}), encoding="utf-8")
    without(tmp_path / "old", "final_logits_bias")

    convert(tmp_path / "old", tmp_path / "new")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "new")
    settings = model.generation_config
    assert (settings.num_beams, settings.max_length, settings.forced_eos_token_id) == (4, 12, 0)
    assert settings.bad_words_ids == old["bad_words_ids"]
    assert (tmp_path / "new" / "model.safetensors").is_file()
    inputs = batch(model.config)
    inputs.pop("decoder_input_ids")
    ours, theirs = (m.generate(**inputs) for m in (model, MarianMTModel.from_pretrained(tmp_path / "old")))
    assert torch.equal(ours, theirs)


def test_half_precision_stays_as_it_is(tmp_path):
    marian_model().to(torch.bfloat16).save_pretrained(tmp_path / "marian")
    convert(tmp_path / "marian", tmp_path / "reluformer")
    marian, model = (load_file(tmp_path / name / "model.safetensors") for name in ("marian", "reluformer"))
    assert all(tensor.dtype == torch.bfloat16 and torch.equal(tensor, marian[name]) for name, tensor in model.items())
    converted, _ = convert(tmp_path / "reluformer", tmp_path / "relu", attention="relu")
    assert converted.dtype == torch.bfloat16


@pytest.mark.parametrize("attention", ["relu", "rela", "relu_vit", "sigmoid"])
def test_another_attention_keeps_the_weights(attention, tmp_path):
    save_marian(tmp_path / "marian")
    _, notes = convert(tmp_path / "marian", tmp_path / "swapped", attention=attention)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "swapped")
    expected = {"relu": ("relu", "variance", 0.01), "rela": ("relu", "none", 0.0)}
    expected |= {"relu_vit": ("relu", "length", 0.0), "sigmoid": ("sigmoid", "variance", 0.0)}
    config = model.config
    found = (config.attention_activation, config.attention_scaling, config.regularization_weight)
    assert found == expected[attention]
    marian = MarianMTModel.from_pretrained(tmp_path / "marian").state_dict()
    weights = model.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in marian.items() if "positions" not in name)
    new = sorted(weights.keys() - marian.keys())
    assert all("norm" in name for name in new)
    assert bool(new) == (attention in ("rela", "relu_vit"))
    assert any(f"{len(new)} parameters are new" in note for note in notes) == bool(new)
    if not new:  # what a swapped model has learned since is kept when it is swapped back
        convert(tmp_path / "swapped", tmp_path / "back", attention="vanilla")
        back = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back")
        inputs = batch(back.config)
        with torch.no_grad():
            theirs = MarianMTModel.from_pretrained(tmp_path / "marian")(**inputs).logits
            torch.testing.assert_close(back(**inputs).logits, theirs, atol=1e-5, rtol=0)


def test_what_cannot_be_represented_is_refused(tmp_path):
    def refusal(folder, **options) -> str:
        with pytest.raises(UserError) as caught:
            convert(folder, tmp_path / "target", **options)
        assert not (tmp_path / "target").exists()
        return str(caught.value)

    save_marian(tmp_path / "marian")
    assert "'tanh' is unknown; choose one of reluformer" in refusal(tmp_path / "marian", attention="tanh")
    odd = marian_model().config
    odd.decoder_vocab_size = VOCABULARY + 1
    with pytest.raises(UserError, match="decoder_vocab_size=51 differs"):
        converted_config(odd)
    with pytest.raises(UserError, match="this Marian was trained with ReLU attention"):
        converted_config(use_relu_attention(marian_model()).config)
    decoder = MarianConfig(**{**marian_model().config.to_dict(), "is_decoder": True})
    MarianForCausalLM(decoder).save_pretrained(tmp_path / "decoder")
    assert "decoder" in refusal(tmp_path / "decoder")
    convert(tmp_path / "marian", tmp_path / "ours")
    assert "ReLUFormer already" in refusal(tmp_path / "ours")
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    assert "'bert'" in refusal(tmp_path / "bert")
    without(tmp_path / "marian", "model.decoder.layers.0.fc1.weight")
    assert re.search(r"lack 1 tensors of a Marian.*decoder\.layers\.0\.fc1\.weight", refusal(tmp_path / "marian"))


def test_a_folder_is_written_to_only_when_asked_and_other_files_stay(tmp_path):
    save_marian(tmp_path / "marian")
    target = tmp_path / "target"
    convert(tmp_path / "marian", target)
    (target / "notes.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(UserError, match="--overwrite"):
        convert(tmp_path / "marian", target, attention="relu")
    model, _ = convert(tmp_path / "marian", target, attention="relu", overwrite=True)
    assert model.config.attention_activation == "relu" and (target / "notes.txt").is_file()
    with pytest.raises(UserError, match="holds the source"):
        convert(tmp_path / "marian", tmp_path / "marian", overwrite=True)
    with pytest.raises(UserError, match="is not empty"):
        convert(tmp_path / "marian", tmp_path, overwrite=True)


def test_the_tokenizer_is_copied_without_its_library(tmp_path, monkeypatch):
    (tmp_path / "tokenizer").mkdir()
    files = {"source.spm": b"\x00spm", "target.spm": b"\x01spm", "vocab.json": b"{}", "target_vocab.json": b"{}"}
    for name, content in files.items():
        (tmp_path / "tokenizer" / name).write_bytes(content)
    save_marian(tmp_path / "marian", tokenizer=tmp_path / "tokenizer")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    assert convert(tmp_path / "marian", tmp_path / "target")[1] == []
    assert all((tmp_path / "target" / name).read_bytes() == content for name, content in files.items())
    settings = json.loads((tmp_path / "target" / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings == {"tokenizer_class": "MarianTokenizer"}
    (tmp_path / "marian" / "source.spm").unlink()
    assert "none was copied" in convert(tmp_path / "marian", tmp_path / "bare")[1][0]


def test_of_a_model_on_the_hub_the_files_of_its_tokenizer_are_fetched_and_not_its_weights(tmp_path, monkeypatch):
    hub, fetched = tmp_path / "hub", tmp_path / "fetched"
    save_marian(hub)
    expected = {"source.spm", "target.spm", "vocab.json", "tokenizer_config.json", "preprocessor_config.json"}
    for name in expected:
        (hub / name).write_text("{}")

    def fetch(source, allow_patterns):
        ignored = shutil.ignore_patterns(*allow_patterns)
        shutil.copytree(hub, fetched, ignore=lambda folder, names: set(names) - ignored(folder, names))
        return fetched

    monkeypatch.setattr(conversion, "snapshot_download", fetch)
    (tmp_path / "target").mkdir()
    assert conversion._copy_preprocessor("owner/model", tmp_path / "target", "marian") == []
    assert {path.name for path in (tmp_path / "target").iterdir()} == expected
    assert {path.name for path in fetched.iterdir()} == expected


def test_marians_sentencepiece_tokenizer_loads_unchanged(tmp_path, monkeypatch):
    pytest.importorskip("sentencepiece", reason="Marian's tokenizer needs sentencepiece, of the dev extra")
    size = train_sentencepiece(tmp_path / "tokenizer")
    save_marian(tmp_path / "marian", tokenizer=tmp_path / "tokenizer", vocab_size=size)
    convert(tmp_path / "marian", tmp_path / "target")
    theirs, ours = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("marian", "target"))
    assert type(ours).__name__ == type(theirs).__name__ == "MarianTokenizer"
    texts, targets = ["zwölf", "einundzwanzig", "dreitausend und x", ""], ["twelve", "twenty-one"]
    assert ours(texts)["input_ids"] == theirs(texts)["input_ids"]
    ids = ours(text_target=targets)["input_ids"]
    assert ids == theirs(text_target=targets)["input_ids"] and ids[0][-1] == 0
    assert ours.decode(ids[1], skip_special_tokens=True) == "twenty-one"

    from reluformer.translating.translation import Translator

    translations = Translator(MarianMTModel.from_pretrained(tmp_path / "marian"), theirs, max_new_tokens=20)(texts)
    translator = Translator.from_pretrained(tmp_path / "target", max_new_tokens=20, device="cpu")
    translator.model.generation_config.max_length = 30  # Helsinki-NLP's models have such a limit; ours goes before it
    warnings = []
    monkeypatch.setattr(generation_utils.logger, "warning", lambda message, *rest: warnings.append(message))
    assert translator(texts) == translations and any(translations)
    assert not [message for message in warnings if "max_length" in message]


@pytest.mark.slow
def test_a_model_of_the_hub_is_converted_by_its_id(tmp_path):
    """From the Hub's cache, as it lies on a machine without a network; the whole command, in a process of its own."""
    commit = "a" * 40
    repository = tmp_path / "hub" / "models--Helsinki-NLP--opus-mt-xx-yy"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit, encoding="utf-8")
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "source.spm").write_bytes(b"pieces")
    save_marian(repository / "snapshots" / commit, tokenizer=tmp_path / "tokenizer")
    command = ["-m", "reluformer", "convert", "--from", "Helsinki-NLP/opus-mt-xx-yy", "--to", tmp_path / "out"]
    offline = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=tmp_path, env=offline)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("softmax attention\n")
    assert {"source.spm", "model.safetensors"} <= {path.name for path in (tmp_path / "out").iterdir()}
    convert("tatoeba-de-en", tmp_path / "shipped", attention="softmax")  # a model that comes with the package
    assert (tmp_path / "shipped" / "tokenizer.json").is_file()


def test_the_command(tmp_path, capsys):
    save_marian(tmp_path / "marian")

    def run(*arguments):
        capsys.readouterr()
        return cli.main(["convert", *map(str, arguments)]), capsys.readouterr()

    status, printed = run("--from", tmp_path / "marian", "--to", tmp_path / "out", "--attention", "relu")
    assert status == 0 and printed.out.endswith(" parameters, relu attention\n")
    assert "note: no tokenizer or image processor is in" in printed.err
    status, printed = run("--from", tmp_path / "marian", "--to", tmp_path / "out")
    assert status == 2
    assert printed.err.startswith("reluformer: error: ") and printed.err.count("\n") == 1
