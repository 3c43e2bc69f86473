"""Building the compiled library: one call of a C++ compiler for each unit, and one to link them.

Only a compiler is needed, and the headers that torch brings along. This file imports nothing of the package: setup.py
builds with it before there is one. A library serves one version of torch, whose stable interface lacks what the loop
owes its speed to.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

COMPILERS = ("c++", "g++", "clang++")
_TORCH = Path(torch.__file__).parent
# Traps and errno are not used. Sums keep their order, and NaN stays NaN.
_FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
)
_AVX2 = ("-mavx2", "-mfma")
_AVX512 = (*_AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "bf16")), "-mprefer-vector-width=512")
_DOTPROD = "-march=armv8.2-a+dotprod"
_EXACT = "-ffp-contract=off"  # the same bits with every instruction set


class CompiledLibraryError(RuntimeError):
    """The compiled library cannot be had; the message says why."""


class Unit(NamedTuple):
    """One call of the compiler: a source file, and flags beside those of all units."""

    source: str
    flags: tuple[str, ...] = ()


def _for(instruction_set: str, source: str, *flags: str) -> Unit:
    return Unit(source, (f"-DRELUFORMER_ISA={instruction_set}", "-Wno-psabi", *flags))


# The lowest set first: of an inline function of a header linkers keep the first copy, which every processor must run.
_X86 = (
    _for("avx2", "attention/kernels.cpp", *_AVX2),
    _for("avx512", "attention/kernels.cpp", *_AVX512),
    _for("avx2", "sparse_ffn/sparse_kernels.cpp", *_AVX2),
    _for("avx512", "sparse_ffn/sparse_kernels.cpp", *_AVX512, "-mavx512vnni"),
    _for("avx2", "translation/translation_kernels.cpp", *_AVX2, _EXACT),
    _for("avx512", "translation/translation_kernels.cpp", *_AVX512, "-mavx512vnni", _EXACT),
)
_ARM = (
    _for("neon", "attention/kernels.cpp"),
    _for("neon", "sparse_ffn/sparse_kernels.cpp"),
    _for("dotprod", "sparse_ffn/sparse_kernels.cpp", _DOTPROD),
    _for("neon", "translation/translation_kernels.cpp", _EXACT),
    _for("dotprod", "translation/translation_kernels.cpp", _DOTPROD, _EXACT),
)
# Systems that the library is built for, and their processors.
_SERVED = (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))


def units_of(machine: str) -> tuple[Unit, ...]:
    """The whole library: torch's part, and the loops once for each instruction set, chosen at run time."""
    loops = _ARM if machine in ("aarch64", "arm64") else _X86
    return (
        Unit("attention/attention.cpp"),
        Unit("sparse_ffn/sparse_ffn.cpp"),
        Unit("translation/translation.cpp", (_EXACT,)),
        *loops,
    )


UNITS = units_of(platform.machine())


def library_name(folder: Path, units: Sequence[Unit]) -> str:
    """The name of the file for this state of the sources, kind of processor and version of torch: they may share a
    folder."""
    digest = hashlib.sha256(repr((_FLAGS, units)).encode())
    for path in sorted([*folder.rglob("*.cpp"), *folder.rglob("*.h")]):
        name = path.relative_to(folder).as_posix()
        digest.update(f"{name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return f"library-{platform.machine()}-torch{torch.__version__}-{digest.hexdigest()[:12]}.so"


def is_served() -> bool:
    """Whether there is a compiled library for this kind of processor and system."""
    return (sys.platform, platform.machine()) in _SERVED


def find_compiler() -> list[str]:
    """The command in $CXX, else the first of c++, g++ and clang++ that the PATH has.

    Raises:
        CompiledLibraryError: there is none.
    """
    if not is_served():
        raise CompiledLibraryError(
            f"it serves x86-64 and ARM under Linux, and ARM under macOS, not {platform.machine()} {sys.platform}"
        )
    if chosen := shlex.split(os.environ.get("CXX", "")):
        return chosen
    if compiler := next(filter(shutil.which, COMPILERS), None):
        return [compiler]
    raise CompiledLibraryError(
        f"no C++ compiler ({', '.join(COMPILERS)}) is on the PATH; install one (Debian: `apt install g++`), or name it "
        "in CXX"
    )


def build_library(folder: Path, units: Sequence[Unit], target: Path, compiler: list[str]) -> None:
    """Compiles and links the sources of a folder; the file appears when it is whole, in place of one that is there.

    Raises:
        OSError: the folder of the target cannot be written to.
        CompiledLibraryError: the sources cannot be compiled.
    """
    headers = [f"-I{folder}", f"-I{_TORCH / 'include'}", f"-I{_TORCH / 'include/torch/csrc/api/include'}"]
    # torch's threads: others would not follow `set_num_threads`. What g++ calls is in the file that torch has loaded.
    threads, link_threads = ["-fopenmp"], []
    if sys.platform == "darwin":
        # Apple's clang refuses the option itself, and has neither header nor library: torch brings them along.
        threads, link_threads = ["-Xclang", "-fopenmp"], ["-lomp"]
    elif "clang" in _run([*compiler, "--version"]):
        link_threads = ["-fopenmp"]
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as room:
        objects = [f"{room}/{number}.o" for number in range(len(units))]
        commands = [
            [*compiler, *_FLAGS, *unit.flags, *threads, *headers, "-c", str(folder / unit.source), "-o", to]
            for unit, to in zip(units, objects, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, commands))
        libraries = [f"-L{_TORCH / 'lib'}", "-ltorch_cpu", "-lc10", *link_threads]
        _run([*compiler, "-shared", *objects, "-o", f"{room}/library.so", *libraries])
        os.replace(f"{room}/library.so", target)


def _run(command: list[str]) -> str:
    environment = {**os.environ, "LC_ALL": "C"}  # "error:" is looked for
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=True)
    except OSError as error:
        raise CompiledLibraryError(f"{command[0]} cannot be run ({error.strerror}); name a compiler in CXX") from error
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.strip()] or [str(error)]
        line = next((line for line in lines if "error" in line), lines[0])
        raise CompiledLibraryError(f"{command[0]} failed: {line.strip()}; try another compiler by CXX=…") from error
    return result.stdout
