"""The compiled library for ARM, built by a cross compiler and run under an emulator: `make test-arm`, which sets up the
folder.

The folder holds `root`, a system of Debian's arm64 packages, and `site`, the packages of its Python with a torch for
it.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch

from reluformer.modeling_reluformer.compiled import building
from reluformer.modeling_reluformer.compiled.library import library
from tests import arm_checks

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"


def main(folder: Path) -> int:
    root, site, expected = folder / "root", folder / "site", folder / "expected.pt"
    if library(large=True) is None:
        print(
            "the bits of ARM are compared with those of x86, for which the library must be built: see the warning above"
        )
        return 1
    torch.save(arm_checks.translations(), expected)
    building._TORCH = site / "torch"  # headers and libraries of the other processor
    sources, units = Path(building.__file__).parent, building.units_of("aarch64")
    target = folder / building.library_name(sources, units).replace("x86_64", "aarch64")
    if not target.is_file():
        building.build_library(sources, units, target, [COMPILER])
    variables = {"PYTHONPATH": site, "PYTHONHOME": root / "usr", "OMP_NUM_THREADS": "1"}
    emulator = [EMULATOR, "-cpu", "max", "-L", root]
    for name, value in variables.items():
        emulator += ["-E", f"{name}={value}"]
    command = [*emulator, root / "usr/bin/python3.11", arm_checks.__file__, target, expected]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LD_"))}
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
