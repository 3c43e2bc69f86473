"""The library's own test mixins, taken at test time from the source package of the installed transformers.

The source package holds `tests/test_*.py` but none of the folders under `tests`. What the mixins import from those
folders is stubbed here, but for generation: `PEER_TRANSFORMERS_TESTS`, the path of a `tests` folder of a transformers
checkout of about the installed version, supplies that mixin. (The one for export moves with the library too closely for
"about".) Nothing of it is copied into this repository; the download lies in `.cache/peer`.

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
from pathlib import Path
from typing import NamedTuple

import transformers

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "peer"
CHECKOUT_VARIABLE = "PEER_TRANSFORMERS_TESTS"
PACKAGE = "transformers_library_tests"

# Arguments that every configuration takes. The library's own list of them is in one of the missing folders; its test
# compares `dtype` with float16.
COMMON_CONFIG_FIELDS = {
    **{"dtype": "float16", "return_dict": False, "output_attentions": True, "output_hidden_states": True},
    **{"architectures": ["ReLUFormerModel"], "id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}},
}


class NotDownloadableError(RuntimeError):
    """The source package could not be downloaded; the message says why."""


class LibraryTests(NamedTuple):
    """What the library's tests offer. generation_missing: why that mixin is only a stub; None: it is the real one."""

    modeling: types.ModuleType
    configuration: types.ModuleType
    generation_missing: str | None


def library_tests_folder(progress: bool = False) -> Path:
    """The `tests` folder of the installed version's source package, downloaded on first use, or a
    `NotDownloadableError`."""
    name = f"transformers-{transformers.__version__}"
    folder = CACHE / name / "tests"
    if not (folder / "__init__.py").exists():
        _download(progress)
        with tarfile.open(CACHE / f"{name}.tar.gz") as package:
            members = [member for member in package.getmembers() if "/tests/" in member.name]
            package.extractall(CACHE, members=members, filter="data")
        # the library loads itself from "the __init__.py beside the tests", which is not in the source package; written
        # last, it also says that unpacking was finished
        (folder / "__init__.py").write_text("")
    return folder


def _download(progress: bool) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    requirement = f"transformers=={transformers.__version__}"
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(CACHE), requirement]
    # pip's bar goes to its stdout; what went wrong, to its stderr
    done = subprocess.run(command, stdout=None if progress else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1]
        raise NotDownloadableError(f"the source package of {requirement} could not be downloaded: {last}")


def load_library_tests() -> LibraryTests:
    """Imports the mixins, with stubs for what they import in vain; errors as of `library_tests_folder`."""
    _add_module(PACKAGE, library_tests_folder())
    _add_module(f"{PACKAGE}.utils")
    _add_module(f"{PACKAGE}.utils.test_configuration_utils", config_common_kwargs=COMMON_CONFIG_FIELDS)
    _add_module(f"{PACKAGE}.exporters")
    exports = {name: type(name, (), {}) for name in ("ExportTesterMixin", "ExportGenerateTesterMixin")}
    _add_module(f"{PACKAGE}.exporters.test_export", **exports)
    missing = None
    if checkout := os.environ.get(CHECKOUT_VARIABLE):
        _add_module(f"{PACKAGE}.generation", Path(checkout).expanduser().resolve() / "generation")
    else:
        missing = (
            f"GenerationTesterMixin is not in the source package; {CHECKOUT_VARIABLE} names a checkout's tests folder"
        )
        _add_module(f"{PACKAGE}.generation")
        _add_module(f"{PACKAGE}.generation.test_utils", GenerationTesterMixin=type("GenerationTesterMixin", (), {}))
    with _absolute_names(PACKAGE):
        modeling = importlib.import_module(f"{PACKAGE}.test_modeling_common")
        configuration = importlib.import_module(f"{PACKAGE}.test_configuration_common")
    return LibraryTests(modeling, configuration, missing)


def _add_module(name: str, *folders: Path, **contents: object) -> None:
    """A module of these contents, or a package of what lies in the folders."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder) for folder in folders]
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
