"""What `reluformer translate` writes: one line for each text, as soon as it is done, whatever the model gives."""

import io
import os

import pytest

from reluformer.commands import main as cli
from reluformer.commands.translate import read_lines, write_lines
from reluformer.training.translation import Translator

from ..conftest import demo_tokenizer, tiny_model


def test_line_breaks_of_a_translation_do_not_break_the_lines(capsys):
    stream = io.StringIO()
    write_lines(["one", "two\n2", "\r\nthree\r", "\u2028four"], stream)
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
    text.write_text(f"eins\n{'zwei. ' * 90}\n\n{'drei ' * 90}\n", encoding="utf-8")
    out.write_text("kept\n", encoding="utf-8")
    command = ["translate", "--model", model, "--num_beams", "1", "--input", str(text), "--output", str(out)]
    assert cli.main(command) == 2
    assert out.read_text(encoding="utf-8") == "kept\n"
    error = capsys.readouterr().err
    assert "2 of 4 sources have more tokens than the 64 positions of the model: number 2 (" in error
    assert "choose long_sources: split" in error
    assert cli.main([*command, "--long_sources", "split"]) == 0
    assert len(out.read_text(encoding="utf-8").splitlines()) == 4
    assert "of the model: number 2 (" in caplog.text and "; they are split" in caplog.text
    assert cli.main([*command, "--long_sources", "cut"]) == 2
    assert "choose from" in capsys.readouterr().err
