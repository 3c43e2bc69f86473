"""A file or folder that is written whole keeps what was there before until all of the new is there."""

import os

import pytest

from reluformer.configuration.whole_files import whole_file, whole_folder, write_whole


def test_a_file_gets_its_name_when_all_of_it_is_on_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "new" / "a.json"
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(path.exists()), sync(descriptor)))
    with whole_file(path) as stream:
        stream.write("one\n")
        (partial,) = path.parent.iterdir()
        assert partial.name == f".a.json.{os.getpid()}.partial"
    assert synced == [False]
    assert [*path.parent.iterdir()] == [path]
    assert path.read_bytes() == b"one\n"


def test_a_file_that_fails_leaves_the_older_one(tmp_path):
    path = tmp_path / "a.json"
    write_whole(path, "old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as stream:
        stream.write("new")
        raise ZeroDivisionError
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_text(encoding="utf-8") == "old"


def test_a_folder_that_fails_leaves_the_older_one(tmp_path):
    path = tmp_path / "model"
    for name in ("a", "b"):
        with whole_folder(path) as inside:
            (inside / name).touch()
            assert inside.name.startswith(".")
    with pytest.raises(ZeroDivisionError), whole_folder(path) as inside:
        (inside / "c").touch()
        raise ZeroDivisionError
    assert [*tmp_path.rglob("*")] == [path, path / "b"]
