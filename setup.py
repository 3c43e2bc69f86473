"""One import package: the folder `training` of the repository is `reluformer.training`, by a link in `reluformer/`, and
so on.

Metadata: pyproject.toml.

The compiled library is built into the package where the build can import torch, which it can with
`--no-build-isolation`: an isolated build would fetch a second torch, perhaps of another version. The package then fits
this kind of processor, and its compiled library this version of torch. RELUFORMER_COMPILED=0 leaves it out, 1 makes
its absence an error. An editable install leaves it to the first use.
"""

import importlib.util
import os
import re
import tomllib
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

COMPILED = "reluformer/modeling_reluformer/compiled"  # by the links: a source package has nothing else
if not Path(COMPILED).is_dir():
    raise SystemExit(
        "the links in reluformer/ are missing, as in a clone under Windows or a ZIP file: run `git config --global "
        "core.symlinks true` and clone again"
    )


class BuildWithCompiledAttention(build_py):
    """Copies the modules, and builds the compiled library beside them."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode and os.environ.get("RELUFORMER_COMPILED") != "0":
            demanded = os.environ.get("RELUFORMER_COMPILED") == "1"
            if importlib.util.find_spec("torch") is not None:
                self._build(demanded)
            elif demanded:
                raise SystemExit(
                    "RELUFORMER_COMPILED=1: the build cannot import torch; install with --no-build-isolation"
                )

    def _build(self, demanded: bool) -> None:
        # the file, not the package, which imports what a build does not need
        spec = importlib.util.spec_from_file_location("building", Path(COMPILED) / "building.py")
        building = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(building)
        except (ImportError, OSError) as error:
            return self._do_without(demanded, f"torch cannot be imported: {error}")
        folder = Path(self.build_lib) / COMPILED
        name = building.library_name(folder, building.UNITS)
        for other in folder.glob("library-*.so"):  # of an earlier build in the same folder
            other.unlink()
        try:
            building.build_library(folder, building.UNITS, folder / name, building.find_compiler())
        except building.CompiledLibraryError as error:
            return self._do_without(demanded, str(error))
        self.distribution.has_ext_modules = lambda: True  # the wheel is for this platform

    def _do_without(self, demanded: bool, reason: str) -> None:
        if demanded:
            raise SystemExit(f"RELUFORMER_COMPILED=1: the compiled library could not be built ({reason})")
        self.warn(f"the compiled library could not be built ({reason}); it is left to the first use")


class WheelForAnyPython(bdist_wheel):
    """The compiled library uses nothing of Python: its wheel serves every version of it, on one platform."""

    def run(self) -> None:
        self.run_command("build")
        self.root_is_pure = self.distribution.is_pure()
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        *_, platform = super().get_tag()
        return "py3", "none", platform


def description_for_pypi() -> str:
    """README.md, whose links lead into the repository, with their whole addresses: PyPI shows it without the
    repository."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project["urls"]["Repository"]
    readme = Path("README.md").read_text(encoding="utf-8")
    readme = re.sub(r"(!\[[^]]*\]\()(?!https?:|#)", rf"\g<1>{address}/raw/main/", readme)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\g<1>{address}/blob/main/", readme)


setup(
    long_description=description_for_pypi(),
    long_description_content_type="text/markdown",
    cmdclass={"build_py": BuildWithCompiledAttention, "bdist_wheel": WheelForAnyPython},
    packages=find_packages(include=["reluformer", "reluformer.*"]),
    include_package_data=False,  # what is listed here and no more: the folders of data are no packages
    package_data={
        # without the ONNX graphs: `reluformer export` writes them
        "reluformer": ["py.typed", "models/*.md", "models/*/*"],
        "reluformer.modeling_reluformer.compiled": ["*.h", "*/*.cpp", "*/*.h"],
        "reluformer.configuration": ["recipes/*.yaml", "recipes/*.txt", "accelerate/*.yaml"],
        "reluformer.hub_cards": ["*.md", "static/*"],
    },
)
