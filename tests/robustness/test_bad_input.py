"""Every case of wrong input: one clear line from a command, a clear exception in Python, and no code of a file executed."""

import contextlib
import importlib.util
import os
import shlex
import sys
from pathlib import Path

import datasets
import pytest
import torch
from PIL import Image
from transformers import pipeline

from benchmarks.studies import __main__ as studies
from reluformer import (
    ReLUFormerConfig,
    ReLUFormerDecoderConfig,
    ReLUFormerVisionConfig,
    relu_attention,
    use_sparse_ffn,
)
from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError
from reluformer.modeling_reluformer.compiled import library
from reluformer.training.data.columns import PairColumns
from reluformer.training.data.corpora import read_parallel_files
from reluformer.training.data.tables import read_tables
from reluformer.training.data.text_lines import read_lines
from reluformer.training.translation import Translator

from ..conftest import random_tokens, tiny_model
from ..modeling_reluformer.decoder_cases import decoder_model, token_ids
from ..modeling_reluformer.vision_cases import vision_model
from .command_and_model_cases import GROUPS
from .error_table import TABLE, error_table
from .malformed_files import write_files
from .malformed_pictures import write_pictures

CASES = [case for cases in GROUPS.values() for case in cases]
COMMANDS = [case for case in CASES if case.is_command]
EXPRESSIONS = [case for case in CASES if not case.is_command]


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad_files")
    write_files(folder)
    write_pictures(folder)
    return folder


@pytest.fixture
def here(bad_files, monkeypatch):
    """The folder of malformed files as current directory, from which a module in it could be imported."""
    monkeypatch.chdir(bad_files)
    monkeypatch.syspath_prepend(str(bad_files))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", bad_files / "cache")
    yield bad_files
    assert not (bad_files / "executed").exists(), "code out of a file was executed"


def names_of_a_call() -> dict:
    """What the expressions of the cases refer to."""
    nan_in_second = torch.zeros(2, 7, 16)
    nan_in_second[1] = torch.nan
    return {
        "torch": torch,
        "model": tiny_model(),
        "source": random_tokens(2, 7),
        "target": random_tokens(2, 5, seed=1),
        "nan_in_second": nan_in_second,
        "second_hidden": torch.tensor([[1] * 7, [0] * 7]),
        "read_parallel_files": read_parallel_files,
        "read_tables": read_tables,
        "PairColumns": PairColumns,
        "ReLUFormerConfig": ReLUFormerConfig,
        "relu_attention": relu_attention,
        "use_sparse_ffn": use_sparse_ffn,
        "tiny_model": tiny_model,
        "Translator": Translator,
        "vision": vision_model(),
        "ReLUFormerVisionConfig": ReLUFormerVisionConfig,
        "decoder": decoder_model(attention_activation="relu", regularization_weight=0.01),
        "tokens": token_ids(2, 7),
        "ReLUFormerDecoderConfig": ReLUFormerDecoderConfig,
        "Image": Image,
        "pipeline": pipeline,
    }


@pytest.mark.parametrize("case", COMMANDS, ids=lambda case: case.given)
def test_a_command_says_in_one_line_what_is_wrong(case, here, capfd):
    arguments = shlex.split(case.call)[1:]
    capfd.readouterr()
    status = cli.main(arguments)
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    assert case.outcome == f"exit {status}", err
    if status:
        last = [line for line in err.splitlines() if line][-1]
        assert err.count("reluformer: error: ") == 1 and last.startswith("reluformer: error: "), err
        assert case.matches(last), last
    else:
        assert case.says == out


@pytest.mark.parametrize("case", EXPRESSIONS, ids=lambda case: case.given)
def test_a_call_raises_what_says_what_is_wrong(case, here):
    names = names_of_a_call()
    # The expressions are those of the cases beside this file.
    with torch.no_grad():
        if case.outcome == "result":
            assert case.matches(str(eval(case.call, names)))
            return
        with pytest.raises(Exception) as caught:
            eval(case.call, names)
    assert caught.type.__name__ == case.outcome, caught.value
    assert case.matches(str(caught.value)), caught.value


def test_there_are_enough_cases_and_none_twice():
    assert len({case.call for case in CASES}) == len(CASES) >= 40
    assert len({case.given for case in CASES}) == len(CASES)


def test_the_table_is_what_the_cases_say():
    assert TABLE.read_text(encoding="utf-8") == error_table(), "run `make error-table`"


def test_an_argument_that_is_not_utf_8_is_refused(here, capsys):
    assert cli.main(["translate", "--model", "model", "eins", "f\udcfcnf"]) == 2
    assert "translate: text 2: not UTF-8 ('f\\udcfcnf')" in capsys.readouterr().err


def test_a_byte_order_mark_is_no_part_of_the_text_to_translate(here, tmp_path):
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfeins\r\nzwei\n")
    assert read_lines(str(tmp_path / "marked")) == ["eins", "zwei"]


@pytest.mark.parametrize(
    ("program", "arguments"),
    [(cli, ["card", "--help"]), (cli, ["--help"]), (studies, ["--list"])],
    ids=["card --help", "--help", "studies --list"],
)
def test_a_pipe_that_is_closed_early_ends_the_command_quietly(program, arguments, monkeypatch, capfd):
    """`python -m benchmarks.studies --list | head`."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with contextlib.closing(os.fdopen(write_end, "w")) as closed_pipe:
        monkeypatch.setattr(sys, "stdout", closed_pipe)
        assert program.main(arguments) == 141
        print("what Python writes when it ends", file=closed_pipe)
    assert capfd.readouterr().err == ""


def test_another_broken_pipe_is_no_closed_output(monkeypatch, capsys):
    def broken(arguments):
        raise BrokenPipeError("a worker's")

    monkeypatch.setattr("reluformer.commands.card.run", broken)
    with pytest.raises(BrokenPipeError, match="a worker's"):
        cli.main(["card"])


@pytest.mark.parametrize("value", ["1", "yes"])
def test_a_compiled_attention_that_cannot_be_had_is_one_line(value, monkeypatch, capsys, tmp_path):
    """No compiler, or a word for a switch."""

    def translate(arguments):
        query = torch.ones(1, 1, 200, 8)
        relu_attention(query, query, query, scaling="none")
        return 0

    monkeypatch.setattr("reluformer.commands.translate.run", translate)
    monkeypatch.setattr(library, "_stage", library._BEGINNING)
    monkeypatch.setattr(library, "_operators", None)
    monkeypatch.setenv(library.VARIABLE, value)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert cli.main(["translate"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"reluformer: error: RELUFORMER_COMPILED={value!r} is unknown"
        if value == "yes"
        else "reluformer: error: RELUFORMER_COMPILED=1: the compiled attention could not be built ("
    )


@pytest.mark.parametrize("package", ["wandb", "tensorboard", "bitsandbytes"])
def test_a_package_that_is_missing_is_one_line_before_the_corpus_is_read(package, here, monkeypatch, capsys):
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    option = ["--training.optim", "adamw_bnb_8bit"] if package == "bitsandbytes" else ["--training.report_to", package]
    monkeypatch.setattr("reluformer.training.training.prepare_corpus", None)
    assert cli.main(["train", "--config", "good.yaml", *option]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("reluformer: error: ")]
    assert line.startswith(f"reluformer: error: {option[0][2:]}: {option[1]!r} cannot be used (") and package in line


def test_a_full_disk_is_one_line(monkeypatch, capsys):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")

    def fill(arguments):
        with open("/dev/full", "w") as full:
            full.write("x" * 100_000)
        return 0

    monkeypatch.setattr("reluformer.commands.card.run", fill)
    assert cli.main(["card"]) == 2
    assert capsys.readouterr().err == "reluformer: error: No space left on device\n"


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch):
    def missing(arguments):
        raise FileNotFoundError(2, "No such file or directory", "package_file")

    monkeypatch.setattr("reluformer.commands.card.run", missing)
    with pytest.raises(FileNotFoundError):
        cli.main(["card"])


def test_user_errors_are_value_errors():
    assert issubclass(UserError, ValueError)
