"""Records: reproducible commands, git states, JSON that is valid and never half written."""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy
import pytest
import torch

from reluformer.configuration.errors import UserError
from reluformer.records.records import (
    command_line,
    git_state,
    machine_facts,
    new_folder,
    package_versions,
    peak_memory,
    run_record,
    write_json,
)


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    (folder / "source").mkdir(parents=True)
    git(folder, "init")
    (folder / "source" / "file.py").write_text("1\n")
    (folder / ".gitignore").write_text(".venv/\n")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    return folder


def test_git_state_of_a_checkout_is_dirty_by_its_source_and_not_by_results(checkout):
    state = git_state(checkout / "source")
    assert re.fullmatch(r"[0-9a-f]{40}", state["git_commit"]) and state["git_dirty"] is False
    assert git_state(checkout / "source" / "file.py") == state
    for name in ("benchmarks/results/a.json", "models/a/figures.json", "models/a/onnx/encoder_model.onnx"):
        results = checkout / name
        results.parent.mkdir(parents=True, exist_ok=True)
        for text in ("{}", "{1}"):
            results.write_text(text)
            git(checkout, "add", name)
            assert git_state(checkout / "source") == state
    (checkout / "notes.txt").write_text("git does not follow this file")
    assert git_state(checkout / "source") == state
    (checkout / "source" / "file.py").write_text("2\n")
    assert git_state(checkout / "source") == {**state, "git_dirty": True}


def test_a_package_installed_inside_a_foreign_checkout_has_no_commit(checkout):
    installed = checkout / ".venv" / "package"
    installed.mkdir(parents=True)
    (installed / "records.py").write_text("")
    assert git_state(installed) == {"git_commit": None, "git_dirty": None}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak of a process")
def test_peak_memory_counts_what_is_let_go_of():
    cpu = torch.device("cpu")
    before = peak_memory(cpu)
    torch.ones(before, dtype=torch.uint8)  # more than is free of what was held before
    assert before + 2**20 < peak_memory(cpu)


def test_run_record_is_complete():
    assert command_line(["/somewhere/bin/reluformer", "train", "a b.yaml"]) == "reluformer train 'a b.yaml'"
    record = run_record("reluformer train --config a.yaml", "demo", 7)
    assert record["command"] == "reluformer train --config a.yaml"
    assert (record["recipe"], record["seed"]) == ("demo", 7)
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$", record["date"])
    assert {"git_commit", "git_dirty"} <= record.keys()
    assert record["versions"]["torch"] == package_versions()["torch"] is not None
    assert {"cpu", "cores", "torch_threads", "platform", "python"} <= machine_facts().keys()
    json.dumps(record)


def test_write_json_takes_what_training_produces(tmp_path):
    @dataclass
    class Point:
        x: float

    given = {"path": Path("a/b"), "numpy": numpy.float32(0.5), "tensor": torch.tensor([1, 2]), "point": Point(1.0)}
    given |= {"bad": [float("nan"), -float("inf")], "text": "größer", 3: True}
    text = write_json(tmp_path / "new" / "a.json", given).read_text(encoding="utf-8")
    assert "größer" in text and text.endswith("}\n")
    expected = {"path": "a/b", "numpy": 0.5, "tensor": [1, 2], "point": {"x": 1.0}, "bad": ["nan", "-inf"]}
    assert json.loads(text) == {**expected, "text": "größer", "3": True}


def test_write_json_leaves_the_old_file_if_it_fails(tmp_path):
    path = write_json(tmp_path / "a.json", {"old": 1})
    with pytest.raises(TypeError, match="dataclass"):
        write_json(path, {"new": object()})
    assert json.loads(path.read_text()) == {"old": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_a_file_whose_writing_is_interrupted_stays_as_it_was(tmp_path, monkeypatch):
    path = write_json(tmp_path / "a.json", {"old": 1})

    def interrupt(*paths):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"new": 2})
    assert json.loads(path.read_text()) == {"old": 1}


def test_a_new_folder_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "runs" / "a"
    with new_folder(path) as partial:
        (partial / "file").write_text("whole")
        assert not path.exists()
    assert (path / "file").read_text() == "whole" and [*path.parent.iterdir()] == [path]
    with pytest.raises(RuntimeError, match="half"), new_folder(tmp_path / "b") as partial:
        (partial / "file").write_text("half")
        raise RuntimeError("half")
    assert [*tmp_path.iterdir()] == [path.parent]
    with pytest.raises(UserError, match=r"a: is in use; give a new folder"), new_folder(path):
        pass
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty") as partial:
        (partial / "file").write_text("filled")
    assert (tmp_path / "empty" / "file").read_text() == "filled"
