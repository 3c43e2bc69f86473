"""The corpus of installed packages: its files, and the line that tells of another machine's."""

from importlib.metadata import version

import pytest

from reluformer.configuration.errors import UserError
from reluformer.configuration.language_recipe import PackageSources
from reluformer.configuration.recipe_parser import RECIPES_FOLDER, load_recipe
from reluformer.training.data.package_sources import corpus_difference, corpus_list, package_files


@pytest.fixture
def listed(tmp_path):
    """A corpus of two packages, and its list, of which lines may be replaced."""

    def write(*replacements):
        text = corpus_list(PackageSources(names=["tqdm", "filelock"]))
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "list.txt").write_text(text, encoding="utf-8")
        return PackageSources(names=["tqdm", "filelock"], listed=str(tmp_path / "list.txt"))

    return write


def test_the_files_are_those_of_the_packages_and_no_others():
    files = package_files(PackageSources(names=["tqdm", "filelock"], exclude=["contrib"]))
    assert "tqdm/std.py" in files and "filelock/__init__.py" in files and list(files) == sorted(files)
    assert not any(name.startswith(("tqdm/contrib", "..")) for name in files)
    assert all(path.is_file() and name.endswith(".py") for name, path in files.items())
    assert "tqdm/contrib/__init__.py" in package_files(PackageSources(names=["tqdm"]))


def test_the_same_corpus_is_not_mentioned(listed):
    assert corpus_difference(listed()) is None
    assert corpus_difference(PackageSources(names=["tqdm"])) is None


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("tqdm/std.py\n", "", "1 files more"),
        ("tqdm/std.py\n", "tqdm/std.py\ntqdm/old.py\n", "1 missing"),
        (f"# package tqdm=={version('tqdm')}", "# package tqdm==0.1", f"tqdm {version('tqdm')} (there 0.1)"),
    ],
)
def test_another_corpus_is_told_in_one_line(listed, old, new, named):
    checksum = listed().listed
    with open(checksum, encoding="utf-8") as stream:
        first = stream.readline().strip()
    said = corpus_difference(listed((old, new), (first, "# checksum 0")))
    assert named in said and "\n" not in said and "list.txt" in said


def test_other_contents_of_the_same_files_are_found(listed, monkeypatch, tmp_path):
    given = listed()
    files = package_files(given)
    (tmp_path / "std.py").write_text("changed")
    monkeypatch.setattr(
        "reluformer.training.data.package_sources.package_files",
        lambda given: {**files, "tqdm/std.py": tmp_path / "std.py"},
    )
    assert "other contents of the same files" in corpus_difference(given)


def test_the_recipes_list_is_of_its_own_packages():
    packages = load_recipe("code_decoder_tiny").data.corpus.packages
    lines = (RECIPES_FOLDER / packages.listed).read_text(encoding="utf-8").splitlines()
    listed = [line.removeprefix("# package ").split("==")[0] for line in lines if line.startswith("# package ")]
    assert listed == packages.names
    assert not any(f"/{folder}/" in f"/{line}" for line in lines for folder in packages.exclude)


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(UserError, match="the package no-such-thing is not installed"):
        package_files(PackageSources(names=["no-such-thing"]))
