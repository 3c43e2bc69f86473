"""What `reluformer translate` writes: one line for each text, as soon as it is done, whatever the model gives."""

import io
import os

import pytest

from reluformer.commands import main as cli
from reluformer.commands import parsing
from reluformer.commands.translate import one_line_each, read_lines, write_lines
from reluformer.configuration.recipe import EvaluationConfig
from reluformer.translating.fast_translation import COMPUTE
from reluformer.translating.options import Options
from reluformer.translating.translation import Translator

from ..conftest import demo_tokenizer, tiny_model


def test_line_breaks_of_a_translation_do_not_break_the_lines(capsys):
    stream = io.StringIO()
    write_lines(one_line_each(["one", "two\n2", "\r\nthree\r", "\u2028four"]), stream)
    assert stream.getvalue() == "one\ntwo 2\n three \n\u2028four\n"
    noted = [line.split(": ")[2] for line in capsys.readouterr().err.splitlines()]
    assert noted == [f"translation {number} held line breaks, written as spaces" for number in (2, 3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("model"), demo_tokenizer(200)
    tiny_model(vocab_size=len(tokenizer), encoder_layers=1, decoder_layers=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_a_failure_keeps_the_lines_that_are_done(model, tmp_path, monkeypatch):
    (tmp_path / "in").write_text("eins\nzwei\ndrei\n", encoding="utf-8")
    seen = {}

    def stream(self, texts, progress):
        yield "one"
        seen["while translating"] = (tmp_path / "out").read_text(encoding="utf-8")
        raise KeyboardInterrupt

    monkeypatch.setattr(Translator, "stream", stream)
    command = ["translate", "--model", model, "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    assert cli.main(command) == 130
    assert seen["while translating"] == (tmp_path / "out").read_text(encoding="utf-8") == "one\n"


def test_a_pipe_is_read():
    reading, writing = os.pipe()
    os.write(writing, b"eins\nzwei\n")
    os.close(writing)
    assert read_lines(f"/dev/fd/{reading}") == ["eins", "zwei"]


def test_the_file_that_is_read_is_not_replaced(tmp_path, capsys):
    text, link = tmp_path / "in", tmp_path / "out"
    text.write_text("eins\n", encoding="utf-8")
    link.symlink_to(text)
    for out in (text, link):
        assert cli.main(["translate", "--model", "none", "--input", str(text), "--output", str(out)]) == 2
        assert f"--output: {str(out)!r} is the file that --input reads" in capsys.readouterr().err
    assert text.read_text(encoding="utf-8") == "eins\n"
    missing = ["translate", "--model", str(tmp_path / "none"), "--output", str(tmp_path / "new"), "eins"]
    assert cli.main(missing) == 2 and not (tmp_path / "new").exists(), "nothing is left of a run without a model"


def test_long_lines_are_refused_before_anything_is_written_or_done_as_chosen(model, tmp_path, capsys, caplog):
    text, out = tmp_path / "in", tmp_path / "out"
    text.write_text(f"eins\n{'Zwei ' * 90}\n\n{'drei ' * 90}\n", encoding="utf-8")
    out.write_text("kept\n", encoding="utf-8")
    command = ["translate", "--model", model, "--num_beams", "1", "--input", str(text), "--output", str(out)]
    assert cli.main(command) == 2
    assert out.read_text(encoding="utf-8") == "kept\n"
    error = capsys.readouterr().err
    assert "2 of 4 sources hold a sentence with more tokens than the 64 positions of the model: number 2 (" in error
    assert "choose long_sources: split" in error
    assert cli.main([*command, "--long_sources", "split"]) == 0
    assert len(out.read_text(encoding="utf-8").splitlines()) == 4
    assert "of the model: number 2 (" in caplog.text and "; they are split" in caplog.text
    assert cli.main([*command, "--long_sources", "cut"]) == 2
    assert "choose from" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_a_terminal(monkeypatch, *arguments):
    """What is written to one terminal by stdout and stderr."""
    screen = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", screen)
        patch.setattr("sys.stderr", screen)
        assert cli.main([*arguments]) == 0
    return screen.getvalue()


def test_a_text_keeps_its_lines_and_a_file_has_a_line_for_each(model, tmp_path, capsys):
    paragraphs = "Eins zwei. Drei?\n\n  Vier.\n"
    one, two, four = (Translator.from_pretrained(model)(text) for text in ("Eins zwei.", "Drei?", "Vier."))
    command = ["translate", "--model", model]
    assert cli.main([*command, paragraphs, "Vier."]) == 0
    assert capsys.readouterr().out == f"{one} {two}\n\n  {four}\n\n{four}\n"
    (tmp_path / "in").write_bytes(paragraphs.encode().replace(b"\n", b"\r\n"))
    assert cli.main([*command, "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text(encoding="utf-8") == f"{one} {two}\n\n  {four}\n"
    assert cli.main([*command, "--split", "none", "Eins zwei. Drei?"]) == 0
    assert capsys.readouterr().out == f"{Translator.from_pretrained(model, split='none')('Eins zwei. Drei?')}\n"


def test_many_lines_show_progress_on_a_terminal_and_a_word_does_not(model, tmp_path, monkeypatch):
    (tmp_path / "in").write_text("Eins zwei.\n" * 200, encoding="utf-8")
    command = ["translate", "--model", model, "--num_beams", "1"]
    screen = on_a_terminal(monkeypatch, *command, "--input", str(tmp_path / "in"))
    assert "200/200" in screen and "sentences" in screen
    one = Translator.from_pretrained(model, num_beams=1)("Eins zwei.")
    lines = [line.rpartition("\r")[2] for line in screen.split("\n")]
    assert lines.count(one) == 200, "a bar is no part of a line"
    assert on_a_terminal(monkeypatch, *command, "Eins zwei.") == f"{one}\n"


@pytest.mark.parametrize(
    ("count", "length", "shown"), [(20, 100, False), (21, 1, True), (1, 2000, False), (1, 2001, True)]
)
def test_progress_begins_beyond_twenty_texts_or_two_thousand_characters(
    count, length, shown, model, monkeypatch, capsys
):
    asked = []

    def stream(self, texts, progress):
        asked.append(progress)
        return texts

    monkeypatch.setattr(Translator, "stream", stream)
    assert cli.main(["translate", "--model", model, *["a" * length] * count]) == 0
    assert asked == [shown] and len(capsys.readouterr().out) == count * (length + 1)


def test_the_help_tells_what_the_translator_takes():
    assert parsing.COMPUTE == COMPUTE
    translator, recipe = Options(positions=None, split="none"), EvaluationConfig()
    assert {name: str(getattr(translator, name)) for name in parsing.DECODING} == parsing.DECODING
    assert {name: str(getattr(recipe, name)) for name in parsing.DECODING} == parsing.DECODING
