"""What is installed: one import package with every module and data file, from a wheel and from an editable install."""

import importlib.util
import json
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from .mutation.run import package_folders

ROOT = Path(__file__).parent.parent
# Folder of the repository → where it is installed, as setup.py says.
PACKAGE_FOLDERS = {folder: package.replace(".", "/") for package, folder in package_folders(ROOT / "setup.py").items()}
# Extras that do not go with the oldest versions: Gradio and kernels want a newer huggingface-hub than the package does.
NEW_ONLY = ("docs", "kernels", "space")
GENERIC_NAMES = [
    "training",
    "configuration",
    "analysis",
    "hub_cards",
    "commands",
    "modeling_reluformer",
    "tests",
    "benchmarks",
    "setup",
]
# Locates a module without running the package's code, whose dependencies are not there.
LOCATE = """
import importlib.util, json, sys, types
spec = importlib.util.find_spec("reluformer")
package = sys.modules["reluformer"] = types.ModuleType("reluformer")
package.__path__ = spec.submodule_search_locations
package.__spec__ = spec
found = {name: getattr(importlib.util.find_spec(name), "origin", None) for name in sys.argv[1:]}
print(json.dumps(found))
"""


def installed_files() -> dict[str, Path]:
    """Where each file of the package is installed, and where it is in the repository."""
    data = ["recipes/*.yaml", "accelerate/*.yaml", "*.md", "*.cpp", "*.h", "*.txt", "*.css", "*.js", "templates/*.html"]
    return {
        f"{target}/{path.relative_to(ROOT / folder).as_posix()}": path
        for folder, target in PACKAGE_FOLDERS.items()
        for pattern in ["*.py", *data]
        for path in (ROOT / folder).glob(pattern)
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of what the build reads, so that building leaves nothing in the repository."""
    folder = tmp_path_factory.mktemp("source")
    for name in PACKAGE_FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def install(wheel: Path, folder: Path) -> Path:
    """A fresh environment with the wheel alone in it; its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*pip, wheel], check=True)
    return python


def locate(python: Path, *names: str) -> dict[str, str | None]:
    command = [python, "-I", "-c", LOCATE, *names]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=python.parent).stdout)


def test_the_wheel_holds_every_module_and_recipe_and_no_generic_name(source, tmp_path):
    build = [
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        tmp_path,
        source,
    ]
    subprocess.run([sys.executable, "-m", *build], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    python = install(wheel, tmp_path / "venv")
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")

    expected = installed_files()
    assert "reluformer/configuration/recipes/demo.yaml" in expected
    assert "reluformer/configuration/accelerate/ddp.yaml" in expected
    assert "reluformer/hub_cards/card_template.md" in expected
    present = {path.relative_to(site).as_posix() for path in (site / "reluformer").rglob("*") if path.is_file()}
    assert {name for name in present if "__pycache__" not in name} == set(expected)
    assert all((site / name).read_bytes() == path.read_bytes() for name, path in expected.items())

    (record,) = site.glob("reluformer-*.dist-info/RECORD")
    top_level = {line.split(",")[0].split("/")[0] for line in record.read_text(encoding="utf-8").splitlines()}
    assert {name for name in top_level if name != ".." and not name.endswith(".dist-info")} == {"reluformer"}
    found = locate(python, "reluformer.commands.main", "reluformer.configuration", *GENERIC_NAMES)
    assert found.pop("reluformer.commands.main") == str(site / "reluformer/commands/main.py")
    assert found.pop("reluformer.configuration") == str(site / "reluformer/configuration/__init__.py")
    assert set(found.values()) == {None}
    assert (tmp_path / "venv" / "bin" / "reluformer").is_file()


@pytest.mark.parametrize("mode", ["lenient", "strict"])
def test_an_editable_install_maps_the_folders(mode, source, tmp_path):
    """Strict is what make uses: links in a folder that a `.pth` file names, which needs no running code to be understood."""
    code = "import sys; from setuptools.build_meta import build_editable as build; "
    code += "build(sys.argv[1], {'editable_mode': sys.argv[2]})"
    subprocess.run([sys.executable, "-c", code, tmp_path, mode], check=True, cwd=source, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    python = install(wheel, tmp_path / "venv")
    modules = {target.replace("/", "."): source / folder / "__init__.py" for folder, target in PACKAGE_FOLDERS.items()}
    del modules["reluformer"]  # replaced by a stand-in in `LOCATE`
    modules["reluformer.configuration_reluformer"] = source / "modeling_reluformer" / "configuration_reluformer.py"
    found = locate(python, *modules, *GENERIC_NAMES)
    assert {name: Path(found.pop(name)).resolve() for name in modules} == modules
    assert set(found.values()) == {None}
    if mode == "strict":
        (pth,) = (tmp_path / "venv").glob("lib/python*/site-packages/__editable__*.pth")
        links = Path(pth.read_text(encoding="utf-8").strip())
        linked = {path.relative_to(links).as_posix(): path.resolve() for path in links.rglob("*") if path.is_symlink()}
        assert linked == {name: source / path.relative_to(ROOT) for name, path in installed_files().items()}


def test_the_package_that_is_tested_is_this_checkout():
    """Else every other test would judge some other code."""
    assert Path(importlib.util.find_spec("reluformer").origin).resolve().parent == ROOT / "modeling_reluformer"


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


def test_the_oldest_constraints_are_the_lower_bounds():
    """What `make test-oldest` runs on is what the metadata promises, torch excepted (the file says why)."""
    versions = pinned("constraints-oldest.txt")
    assert versions.pop("torch") == pinned("constraints.txt")["torch"]
    bounds = {canonicalize_name(each.name): each.specifier for each in requirements(NEW_ONLY) if each.name != "torch"}
    for name, specifier in bounds.items():
        (bound,) = specifier
        assert bound.operator == ">=", f"{name}{specifier}"
        assert Version(versions[name]) == Version(bound.version), f"{name}{specifier} is tested at {versions[name]}"


def test_make_and_ci_run_the_commands_of_the_readme():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for target, installed in {"demo": "train", "test": "all", "test-all": "all", "lint": "all"}.items():
        assert f"\n{target}: .venv/{installed} .venv/links\n" in makefile
    for target in ("lint", "test-peer", "test-all"):
        assert f"make {target} " in ci
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100
