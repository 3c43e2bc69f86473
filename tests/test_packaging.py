"""What is installed: one import package with every module and data file, from a wheel and from an editable install."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import reluformer
from reluformer.modeling_reluformer.compiled.building import UNITS, library_name

ROOT = Path(__file__).parent.parent
LINKS = sorted(path for path in (ROOT / "reluformer").iterdir() if path.is_symlink())  # a folder of the package each
# Extras that do not go with the oldest versions: kernels wants a newer huggingface-hub than the package does, TRL newer
# datasets.
NEW_ONLY = ("docs", "kernels", "onnx", "space", "trl")
FILES = (
    *("pyproject.toml", "setup.py", "MANIFEST.in"),
    *("README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md"),
)
DATA = (
    "py.typed",
    "recipes/*.yaml",
    "recipes/*.txt",
    "accelerate/*.yaml",
    "static/*",
    "*.md",
    "*.h",
    "*/*.cpp",
    "*/*.h",
)
MODELS = ("models/*.md", "models/*/*")  # each with all but its ONNX graphs
# A user's first lines, where the package alone is installed.
USE = """
import sys, torch
from reluformer import relu_attention
query = torch.randn(1, 2, 5, 4)
print(tuple(relu_attention(query, query, query, row_scale=torch.ones(1, 1, 5), causal=True).shape))
from transformers import AutoConfig
print(type(AutoConfig.for_model("reluformer")).__name__, sys.modules["reluformer"].__file__)
"""


def installed_files() -> set[str]:
    """Where each file of the package is installed: as in the repository."""
    folders = [ROOT / "reluformer", *(path.parent for link in LINKS for path in link.glob("**/__init__.py"))]
    found = [path for folder in folders for pattern in ("*.py", *DATA) for path in folder.glob(pattern)]
    found += (path for pattern in MODELS for path in (ROOT / "reluformer").glob(pattern) if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in found}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of what the build reads, so that building leaves nothing in the repository."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("reluformer", *(link.name for link in LINKS), "tests"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    return folder


def build_wheel(source: Path, target: Path, **environment: str) -> subprocess.CompletedProcess:
    code = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
    environment = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", code, target], cwd=source, env=environment, capture_output=True, text=True, check=False
    )


def files_of(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_every_module_and_data_file_and_no_generic_name(source, tmp_path):
    result = build_wheel(source, tmp_path, RELUFORMER_COMPILED="0")
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("*-py3-none-any.whl")
    assert "reluformer/configuration/recipes/demo.yaml" in installed_files()
    assert files_of(wheel) == installed_files()
    check_links_on_pypi(wheel)


def check_links_on_pypi(wheel: Path) -> None:
    """PyPI shows the README without the repository: every link of it is absolute there, or within the page."""
    with zipfile.ZipFile(wheel) as files:
        (metadata,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        text = files.read(metadata).decode("utf-8")
    address = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
    links = re.findall(r"(!?)\[[^]]*\]\(([^)]+)\)", text)
    assert sum(link.startswith(f"{address}/blob/main/docs/evidence.md#") for _, link in links) > 10
    assert [link for image, link in links if image] == [f"{address}/raw/main/docs/images/at_a_glance.png"]
    assert [link for _, link in links if not link.startswith(("https://", "#"))] == []


@pytest.fixture(scope="module")
def distributions(source) -> Path:
    """The folder with what `make wheel` builds, here without the compiled library, and checks by twine."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.split("\nwheel: .venv/all\n")[1].split("\n\n")[0]
    recipe = recipe.replace("$(BIN)/python", sys.executable).replace("RELUFORMER_COMPILED=1", "RELUFORMER_COMPILED=0")
    result = subprocess.run(["sh", "-e", "-c", recipe], cwd=source, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("PASSED") == 2, result.stdout
    assert "absent from the `packages`" not in result.stdout + result.stderr
    return source / "dist"


@pytest.mark.slow
def test_the_source_package_builds_a_wheel_that_works_alone(distributions, tmp_path):
    """In an environment of its own, which borrows the libraries, as there is no network."""
    (archive,), (wheel,) = distributions.glob("*.tar.gz"), distributions.glob("*.whl")
    with tarfile.open(archive) as opened:
        held = {member.name.partition("/")[2] for member in opened.getmembers() if member.isfile()}
    assert {name for name in held if ".egg-info/" not in name} == {*installed_files(), *FILES, "PKG-INFO", "setup.cfg"}
    assert files_of(wheel) == installed_files()

    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", wheel], check=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(str(Path(torch.__file__).parents[1]) + "\n", encoding="utf-8")
    version = subprocess.check_output([python.with_name("reluformer"), "--version"], text=True, cwd=tmp_path)
    assert version == f"reluformer {reluformer.__version__}\n"
    shape, config = subprocess.check_output([python, "-c", USE], text=True, cwd=tmp_path).splitlines()
    assert shape == "(1, 2, 5, 4)"
    assert config == f"ReLUFormerConfig {site}/reluformer/__init__.py"


def test_the_version_is_one_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["version"] == citation["version"] == reluformer.__version__
    assert project["license"] == citation["license"]
    assert project["urls"]["Repository"] == citation["repository-code"]
    assert project["authors"] == citation["authors"]
    assert project["version"] in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.fixture
def with_stub(source, tmp_path) -> Path:
    """The same with a compiled library that does nothing."""
    folder = tmp_path / "stub"
    shutil.copytree(source, folder, symlinks=True)
    for path in (folder / "modeling_reluformer" / "compiled").rglob("*.cpp"):
        path.write_text("// nothing\n", encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_the_wheel_of_the_source_package_holds_the_compiled_attention_where_the_build_has_torch(with_stub, tmp_path):
    compiled = with_stub / "modeling_reluformer" / "compiled"
    code = "from setuptools.build_meta import build_sdist; build_sdist('dist')"
    subprocess.run([sys.executable, "-c", code], cwd=with_stub, capture_output=True, check=True)
    (archive,) = with_stub.glob("dist/*.tar.gz")
    shutil.unpack_archive(archive, tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    result = build_wheel(unpacked, tmp_path, RELUFORMER_COMPILED="1")
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.split("-")[2:4] == ["py3", "none"] and not wheel.stem.endswith("-any")
    libraries = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith((".so", ".lock"))]
    assert libraries == [f"reluformer/modeling_reluformer/compiled/{library_name(compiled, UNITS)}"]


@pytest.mark.slow
def test_a_wheel_without_a_compiler_is_built_unless_the_compiled_attention_is_demanded(with_stub, tmp_path):
    result = build_wheel(with_stub, tmp_path, PATH=str(tmp_path), RELUFORMER_COMPILED="")
    assert result.returncode == 0, result.stderr
    assert "could not be built (no C++ compiler" in result.stdout + result.stderr
    assert [path.name.endswith("-py3-none-any.whl") for path in tmp_path.glob("*.whl")] == [True]
    result = build_wheel(with_stub, tmp_path, PATH=str(tmp_path), RELUFORMER_COMPILED="1")
    assert result.returncode != 0
    assert result.stderr.splitlines()[-1].startswith(
        "RELUFORMER_COMPILED=1: the compiled library could not be built (no C++"
    )


def test_the_package_that_is_tested_is_this_checkout():
    """Else every other test would judge some other code."""
    assert Path(importlib.util.find_spec("reluformer").origin).resolve().parent == ROOT / "reluformer"


def pinned(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def requirements(without: tuple[str, ...] = ()) -> list[Requirement]:
    """What the package and its extras require, except those extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [lines for name, lines in project["optional-dependencies"].items() if name not in without]
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    return [found for line in lines if (found := Requirement(line)).name != project["name"]]


def test_the_constraints_pin_every_requirement_within_its_bounds():
    versions = pinned("constraints.txt")
    for requirement in requirements():
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in constraints.txt"
        assert requirement.specifier.contains(version), f"{requirement} excludes the tested {version}"
        assert "+" not in version, "a local build such as +cpu is not on every index"
    assert versions["torch"] == "2.13.0"
    newest = ".".join(versions["transformers"].split(".")[:2])
    assert f"is tested with Transformers 5.17 to {newest}." in (ROOT / "docs/start.md").read_text(encoding="utf-8")
    assert f"(tested up to {newest})" in (ROOT / "hub_cards/card_template.md").read_text(encoding="utf-8")


def test_the_oldest_constraints_are_the_lower_bounds():
    """What `make test-oldest` runs on is what the metadata promises, torch excepted (the file says why)."""
    versions = pinned("constraints-oldest.txt")
    assert versions.pop("torch") == pinned("constraints.txt")["torch"]
    bounds = {canonicalize_name(each.name): each.specifier for each in requirements(NEW_ONLY) if each.name != "torch"}
    for name, specifier in bounds.items():
        (bound,) = specifier
        assert bound.operator == ">=", f"{name}{specifier}"
        assert Version(versions[name]) == Version(bound.version), f"{name}{specifier} is tested at {versions[name]}"
