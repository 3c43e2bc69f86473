"""The library's own test mixins, taken at test time from the source package of the installed transformers.

The source package holds `tests/test_*.py` but none of the folders under `tests`. What the mixins import from those folders
is stubbed here, but for generation: `PEER_TRANSFORMERS_TESTS`, the path of a `tests` folder of a transformers checkout of
about the installed version, supplies that mixin. (The one for export moves with the library too closely for "about".)
Nothing of it is copied into this repository; the download lies in `.cache/peer`.

Run as a script it downloads, with pip's own progress bar, and says what it found.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tarfile
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import transformers

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "peer"
CHECKOUT_VARIABLE = "PEER_TRANSFORMERS_TESTS"
PACKAGE = "transformers_library_tests"

# Arguments that every configuration takes. The library's own list of them is in one of the missing folders; its test
# compares `dtype` with float16.
COMMON_CONFIG_FIELDS = {
    "dtype": "float16",
    "return_dict": False,
    "output_attentions": True,
    "output_hidden_states": True,
    "architectures": ["ReLUFormerModel"],
    "id2label": {0: "no", 1: "yes"},
    "label2id": {"no": 0, "yes": 1},
}


class NotDownloadableError(RuntimeError):
    """The source package could not be downloaded; the message says why."""


@dataclass(frozen=True)
class LibraryTests:
    """What the library's tests offer. generation_missing: why that mixin is only a stub; None: it is the real one."""

    modeling: types.ModuleType
    configuration: types.ModuleType
    generation_mixin: type
    generation_missing: str | None


def library_tests_folder(progress: bool = False) -> Path:
    """The `tests` folder of the installed version's source package, downloaded on first use.

    Raises:
        NotDownloadableError: pip got no source package.
        RuntimeError: the source package holds no test mixins.
    """
    folder = CACHE / f"transformers-{transformers.__version__}" / "tests"
    if not (folder / "__init__.py").exists():
        _unpack_tests(_download(progress), folder)
    return folder


def _download(progress: bool) -> Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    requirement = f"transformers=={transformers.__version__}"
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(CACHE), requirement]
    # pip's bar goes to its stdout; what went wrong, to its stderr
    done = subprocess.run(command, stdout=None if progress else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
        raise NotDownloadableError(f"the source package of {requirement} could not be downloaded: {errors[-1]}")
    return CACHE / f"transformers-{transformers.__version__}.tar.gz"


def _unpack_tests(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as package:
        members = [member for member in package.getmembers() if "/tests/" in member.name]
        package.extractall(CACHE, members=members, filter="data")
    if not (folder / "test_modeling_common.py").exists():
        raise RuntimeError(f"{archive.name} holds no tests/test_modeling_common.py; this version cannot be tested so.")
    # the library loads itself from "the __init__.py beside the tests", which is not in the source package; written last,
    # it also says that unpacking was finished
    (folder / "__init__.py").write_text("")


def load_library_tests() -> LibraryTests:
    """Imports the mixins, with stubs for what they import in vain.

    Raises:
        NotDownloadableError: as `library_tests_folder`.
        FileNotFoundError: `PEER_TRANSFORMERS_TESTS` does not name a folder of transformers' tests.
    """
    _add_package(PACKAGE, library_tests_folder())
    _add_module(f"{PACKAGE}.utils.test_configuration_utils", config_common_kwargs=COMMON_CONFIG_FIELDS)
    exports = {name: _stub(name) for name in ("ExportTesterMixin", "ExportGenerateTesterMixin")}
    _add_module(f"{PACKAGE}.exporters.test_export", **exports)
    checkout = _checkout()
    if checkout is None:
        _add_module(f"{PACKAGE}.generation.test_utils", GenerationTesterMixin=_stub("GenerationTesterMixin"))
    else:
        _add_package(f"{PACKAGE}.generation", checkout / "generation")
    with _absolute_names(PACKAGE):
        modeling = importlib.import_module(f"{PACKAGE}.test_modeling_common")
        configuration = importlib.import_module(f"{PACKAGE}.test_configuration_common")
    missing = None
    if checkout is None:
        missing = (
            f"GenerationTesterMixin is not in the source package; set {CHECKOUT_VARIABLE} to the tests folder of a "
            f"transformers checkout of about version {transformers.__version__}"
        )
    return LibraryTests(modeling, configuration, modeling.GenerationTesterMixin, missing)


def _checkout() -> Path | None:
    named = os.environ.get(CHECKOUT_VARIABLE)
    if not named:
        return None
    folder = Path(named).expanduser().resolve()
    if not (folder / "generation" / "test_utils.py").is_file():
        raise FileNotFoundError(
            f"{CHECKOUT_VARIABLE}={named}: there is no generation/test_utils.py in it; name the tests folder of a "
            "transformers checkout."
        )
    return folder


def _stub(name: str) -> type:
    return type(name, (), {"__doc__": "Stands for a mixin that is not in the source package; tests nothing."})


def _add_package(name: str, *folders: Path) -> None:
    package = types.ModuleType(name)
    package.__path__ = [str(folder) for folder in folders]
    sys.modules[name] = package


def _add_module(name: str, **contents: object) -> None:
    parent = name.rpartition(".")[0]
    if parent not in sys.modules:
        _add_package(parent)
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


@contextmanager
def _absolute_names(package: str) -> Iterator[None]:
    """The library's tests import each other also as `tests.…`, which is this repository's own folder otherwise."""
    own = {name: module for name, module in sys.modules.items() if name == "tests" or name.startswith("tests.")}
    for name in own:
        del sys.modules[name]
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        sys.modules["tests" + name.removeprefix(package)] = sys.modules[name]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
            del sys.modules[name]
        sys.modules.update(own)


if __name__ == "__main__":
    try:
        print(f"Tests of transformers {transformers.__version__}: {library_tests_folder(progress=True)}")
    except NotDownloadableError as error:
        print(f"The library's tests will be skipped: {error}")
