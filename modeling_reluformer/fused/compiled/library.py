"""Whether this process computes attention on a CPU with the compiled library, and where that comes from.

The library is looked for at the first need: in the package, where a wheel may bring one along, and then in a folder of the
user. If there is none, the first call that is large enough to gain from it builds one. RELUFORMER_COMPILED=0 does without.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from filelock import FileLock

from .building import UNITS, CompiledAttentionError, build_library, find_compiler, is_served, library_name

VARIABLE = "RELUFORMER_COMPILED"
SOURCES = Path(__file__).parent
logger = logging.getLogger(__name__)

# How far this process is: nothing was looked for, none was found and none was worth building, or nothing changes any more.
_BEGINNING, _NONE_FOUND, _SETTLED = range(3)
_stage = _BEGINNING
_operators: Any = None  # torch.ops.reluformer_cpu, once the library is loaded and used
_loaded_from: Path | None = None
_lock = threading.Lock()


def library(large: bool) -> Any | None:
    """The operators of the compiled library, `torch.ops.reluformer_cpu`; None if Python is to compute.

    They compute attention in the dtypes that their `supports` names, sparse networks and translation on any processor.

    large: whether the call is large enough to gain by them, so that they are built if they do not exist.
    """
    return _operators if _stage > large else _settle(large)


def loop_name() -> Literal["compiled", "python"]:
    """Which loop computes attention in float32 at present; builds nothing."""
    operators = library(large=False)
    return "compiled" if operators is not None and operators.supports(torch.float32) else "python"


def location() -> Path | None:
    """The file that this process has loaded."""
    return _loaded_from


@contextlib.contextmanager
def python_loop() -> Iterator[None]:
    """Within the block, nothing compiled computes in the whole process: the Python loop does, and torch."""
    global _stage, _operators
    before = _stage, _operators
    _stage, _operators = _SETTLED, None
    try:
        yield
    finally:
        _stage, _operators = before


def _settle(large: bool) -> Any | None:
    global _stage, _operators
    with _lock:
        if _stage > large:
            return _operators
        off = os.environ.get(VARIABLE) == "0"
        if not off and _stage == _BEGINNING:
            _operators = _found()
        if not off and large and _operators is None:
            _operators = _built()
        _stage = _SETTLED if off or large or _operators is not None else _NONE_FOUND
        return _operators


def _cache_folder() -> Path:
    """$TORCH_EXTENSIONS_DIR, or below $XDG_CACHE_HOME or ~/.cache."""
    if folder := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "reluformer"


def _found() -> Any | None:
    name = library_name(SOURCES, UNITS)
    for path in filter(Path.is_file, (SOURCES / name, _cache_folder() / name)):
        try:
            return _loaded(path)
        except CompiledAttentionError as error:  # of a machine with newer system libraries: it is built anew
            logger.info("%s", error)
            if path.parent != SOURCES:
                path.unlink(missing_ok=True)
    return None


def _built() -> Any | None:
    """The operators of a new library; None with a warning."""
    path = _cache_folder() / library_name(SOURCES, UNITS)
    try:
        compiler = find_compiler()
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):  # other processes that want the same one wait
            if not path.is_file():
                # a warning, since nothing else is seen by default, and the call that waits for it takes long
                logger.warning(
                    "Building the compiled attention for torch %s with %s, once for all processes, in %s. This usually takes "
                    "less than a minute; %s=0 does without it.",
                    *(torch.__version__, " ".join(compiler), path.parent, VARIABLE),
                )
                build_library(SOURCES, UNITS, path, compiler)
        return _loaded(path)
    except (CompiledAttentionError, OSError) as error:
        logger.log(
            logging.WARNING if is_served() else logging.INFO,
            "The compiled attention could not be built in %s ($TORCH_EXTENSIONS_DIR names another folder): %s. The Python loop "
            "computes instead: more slowly, with the same results to rounding. %s=0 turns this warning off.",
            *(path.parent, error, VARIABLE),
        )
        return None


def _loaded(path: Path) -> Any:
    """A second library with the same operators would end the process, so that one stays for good."""
    global _loaded_from
    operators = torch.ops.reluformer_cpu
    if _loaded_from is None:
        try:
            torch.ops.load_library(str(path))
        except OSError as error:
            raise CompiledAttentionError(f"{path} cannot be loaded: {error.__cause__ or error}") from error
        _loaded_from = path
        if not operators.supports(torch.float32):
            logger.warning(
                "The compiled attention needs a processor with AVX2, and a torch with oneDNN that is switched on; the Python "
                "loop computes instead. %s=0 turns this warning off.",
                VARIABLE,
            )
    return operators
