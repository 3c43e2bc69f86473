"""A model that comes with the package is called by its name, and whoever mistypes it reads which there are."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from reluformer import Translator
from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError
from reluformer.training.conversion import convert
from reluformer.translating import shipped
from reluformer.translating.shipped import DEFAULT_MODEL, located

from ..conftest import demo_tokenizer, tiny_model


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A folder with two models, of which the default one is tiny and the other empty; the current folder is another."""
    tokenizer = demo_tokenizer(50)
    tiny_model(vocab_size=len(tokenizer)).bfloat16().save_pretrained(tmp_path / DEFAULT_MODEL)
    tokenizer.save_pretrained(tmp_path / DEFAULT_MODEL)
    (tmp_path / "a-b").mkdir()
    (tmp_path / "a-b" / "config.json").touch()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(shipped, "MODELS", tmp_path)
    return tmp_path


def test_a_name_is_that_of_a_folder_here_or_of_a_model_of_the_package(models):
    assert located("a-b") == models / "a-b"
    assert (located("owner/a-b"), located(models)) == ("owner/a-b", models)
    (models / "here" / "a-b").mkdir()
    assert located("a-b") == "a-b"
    (models / "here" / "a-c").touch()
    with pytest.raises(UserError, match="'a-c': is a file; give the folder of a model"):
        located("a-c")


def test_an_unknown_name_is_answered_with_those_that_are_there(models, monkeypatch, capsys):
    """At once: whether a network is there is not tried."""
    asked = []
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda name, **options: asked.append(name))
    for refused in (lambda: Translator.from_pretrained("a-c"), lambda: convert("a-c", models / "to")):
        with pytest.raises(UserError, match=rf"'a-c': no such folder here, and .* package \(a-b, {DEFAULT_MODEL}\)"):
            refused()
    monkeypatch.setattr("reluformer.commands.translate.read_lines", lambda path: asked.append(path))
    assert cli.main(["translate", "--model", "a-c"]) == 2
    assert "with its owner, such as openai-community/gpt2" in capsys.readouterr().err
    monkeypatch.setattr(shipped, "MODELS", models / "none")
    assert cli.main(["translate", "eins"]) == 2
    assert "no such folder here, and no model of the package (none)" in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize("name", shipped.shipped_models())
def test_what_ships_is_float32_to_the_auto_classes_and_says_that_it_is_for_sentences(name):
    folder = located(name)
    assert AutoModelForSeq2SeqLM.from_pretrained(folder).dtype == torch.float32
    assert {weight.dtype for weight in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    for tokenizer in (folder, folder / "onnx"):
        assert AutoTokenizer.from_pretrained(tokenizer).init_kwargs["text_unit"] == "sentence"


def test_without_a_model_the_one_from_german_to_english_translates(models, capsys):
    wanted = Translator.from_pretrained(models / DEFAULT_MODEL)(["eins"])
    assert Translator.from_pretrained(DEFAULT_MODEL)(["eins"]) == wanted
    assert cli.main(["translate", "eins"]) == 0
    assert capsys.readouterr().out.splitlines() == wanted
