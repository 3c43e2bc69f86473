"""Whether this process computes attention on a CPU with the compiled library, and where that comes from.

The library is looked for at the first need: in the package, where a wheel may bring one along, and then in a folder of the
user. If there is none, the first call that is large enough to gain from it builds one. RELUFORMER_COMPILED=0 does without;
with 1 it is built at the first call, and its absence is an error.
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
_without_attention: Any = None  # the same, where the processor or its torch has no products for the attention
_loaded_from: Path | None = None
_lock = threading.Lock()


def library(large: bool) -> Any | None:
    """The operators of the compiled attention, `torch.ops.reluformer_cpu`; None if the Python loop is to compute.

    Args:
        large: whether the call is large enough to gain by them, so that they are built if they do not exist.

    Raises:
        CompiledAttentionError: RELUFORMER_COMPILED is neither 0 nor 1, or it is 1 and there is no library.
    """
    return _operators if _stage > large else _settle(large)


def sparse_library(large: bool) -> Any | None:
    """As [`library`], for the operators of sparse feed-forward networks, which serve processors without AVX2 and oneDNN too."""
    operators = library(large)
    return _without_attention if operators is None else operators


def loop_name() -> Literal["compiled", "python"]:
    """Which loop computes at present; builds nothing unless RELUFORMER_COMPILED is 1."""
    return "python" if library(large=False) is None else "compiled"


def location() -> Path | None:
    """The file that this process has loaded."""
    return _loaded_from


@contextlib.contextmanager
def python_loop() -> Iterator[None]:
    """Within the block, nothing compiled computes in the whole process: the Python loop does, and torch."""
    global _stage, _operators, _without_attention
    before = _stage, _operators, _without_attention
    _stage, _operators, _without_attention = _SETTLED, None, None
    try:
        yield
    finally:
        _stage, _operators, _without_attention = before


def _settle(large: bool) -> Any | None:
    global _stage, _operators, _without_attention
    with _lock:
        if _stage > large:
            return _operators
        demand = os.environ.get(VARIABLE) or None
        if demand not in (None, "0", "1"):
            raise CompiledAttentionError(
                f"{VARIABLE}={demand!r} is unknown; 1 demands the compiled attention, 0 turns it off, and without the "
                "variable it is used where it can be built."
            )
        if demand != "0":
            _operators = _found() if _stage == _BEGINNING else None
            if _operators is None and (large or demand == "1"):
                _operators = _built(demand == "1")
        if _operators is not None and not _operators.supports(torch.float32):
            logger.warning(
                "The compiled attention needs a processor with AVX2, and a torch with oneDNN that is switched on; the Python "
                "loop computes instead. %s=0 turns this warning off.",
                VARIABLE,
            )
            _operators, _without_attention, large = None, _operators, True
        final = large or demand is not None or _operators is not None
        _stage = _SETTLED if final else _NONE_FOUND
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


def _built(demanded: bool) -> Any | None:
    """The operators of a new library; None with a warning, or an error where they are demanded."""
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
        hint = f"; name another folder than {path.parent} in TORCH_EXTENSIONS_DIR" if isinstance(error, OSError) else ""
        reason = f"The compiled attention could not be built ({error}{hint})"
        if demanded:
            raise CompiledAttentionError(f"{VARIABLE}=1: {reason}. Unset {VARIABLE} to use the Python loop.") from error
    logger.log(
        logging.WARNING if is_served() else logging.INFO,
        "%s. The Python loop computes instead: more slowly, with the same results to rounding. %s=0 turns this warning off.",
        *(reason, VARIABLE),
    )
    return None


def _loaded(path: Path) -> Any:
    """A second library with the same operators would end the process, so that one stays for good."""
    global _loaded_from
    if _loaded_from is None:
        try:
            torch.ops.load_library(str(path))
        except OSError as error:
            raise CompiledAttentionError(f"{path} cannot be loaded: {error.__cause__ or error}") from error
        _loaded_from = path
    return torch.ops.reluformer_cpu
