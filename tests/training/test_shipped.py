"""A model that comes with the package is called by its name, and whoever mistypes it reads which there are."""

import pytest

from reluformer import Translator
from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError
from reluformer.training import shipped
from reluformer.training.shipped import DEFAULT_MODEL, located

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


def test_an_unknown_name_is_answered_with_those_that_are_there(models, monkeypatch, capsys):
    with pytest.raises(
        UserError, match=rf"a-c: .*: no such folder here, no model of the package \(a-b, {DEFAULT_MODEL}\)"
    ):
        Translator.from_pretrained("a-c")
    monkeypatch.setattr(shipped, "MODELS", models / "none")
    assert cli.main(["translate", "eins"]) == 2
    assert "no such folder here, no model of the package (none), and from the Hub: " in capsys.readouterr().err


def test_without_a_model_the_one_from_german_to_english_translates(models, capsys):
    wanted = Translator.from_pretrained(models / DEFAULT_MODEL)(["eins"])
    assert Translator.from_pretrained(DEFAULT_MODEL)(["eins"]) == wanted
    assert cli.main(["translate", "eins"]) == 0
    assert capsys.readouterr().out.splitlines() == wanted
