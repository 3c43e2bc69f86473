"""Every case of wrong input: one clear line from a command, a clear exception in Python, and no code of a file
executed."""

import contextlib
import errno
import os
import shlex
import sys

import datasets
import pytest
import torch

from reluformer.commands import main as cli
from reluformer.configuration.errors import write_failure
from reluformer.training.data.corpus import read_parallel_files

from ..conftest import random_tokens, tiny_model
from .cases import GROUPS, TABLE, error_table
from .malformed_files import write_files

CASES = [case for cases in GROUPS.values() for case in cases]
COMMANDS = [case for case in CASES if case.is_command]
EXPRESSIONS = [case for case in CASES if not case.is_command]


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad_files")
    write_files(folder)
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
    }


@pytest.mark.parametrize("case", COMMANDS, ids=lambda case: case.given)
def test_a_command_says_in_one_line_what_is_wrong(case, here, capfd):
    status = cli.main(shlex.split(case.call)[1:])
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    assert case.outcome == f"exit {status}", err
    last = [line for line in err.splitlines() if line][-1]
    assert err.count("reluformer: error: ") == 1 and last.startswith("reluformer: error: "), err
    assert case.matches(last), last


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


def test_the_table_is_what_the_cases_say():
    assert TABLE.read_text(encoding="utf-8") == error_table(), "run `make error-table`"


def test_a_pipe_that_is_closed_early_ends_the_command_quietly(monkeypatch, capfd):
    """`reluformer --help | head -1`."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with contextlib.closing(os.fdopen(write_end, "w")) as closed_pipe:
        monkeypatch.setattr(sys, "stdout", closed_pipe)
        assert cli.main(["--help"]) == 141
        print("what Python writes when it ends", file=closed_pipe)
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="needs /dev/full, a device that takes nothing, as Linux has it"
)
def test_a_full_disk_behind_stdout_is_one_line(here, monkeypatch, capfd):
    """`reluformer train good.yaml --print_config > /dev/full`."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main(["train", "good.yaml", "--print_config"]) == 2
    assert capfd.readouterr().err == (
        "reluformer: error: a file cannot be written: No space left on device; free space where it goes\n"
    )


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "x"), "No space left on device"),
        (Exception("I/O error: No space left on device (os error 28)"), "No space left on device"),  # of Rust
        (
            RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576"),
            "torch could not write a file",
        ),
        (OSError(errno.ENOENT, "x"), None),
        (RuntimeError("x"), None),
    ],
)
def test_what_libraries_raise_of_a_full_disk_is_known(error, told):
    try:
        raise ValueError("while a table was written") from error
    except ValueError as wrapped:
        found = write_failure(wrapped)
    assert found == told or (told and found.startswith(told))
