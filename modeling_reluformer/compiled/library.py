"""The compiled library of this process, and where it comes from.

The library is looked for at the first need: in the package, where a wheel may bring one along, and then in a folder of
the user. If there is none, the first call that is large enough to gain from it builds one. RELUFORMER_COMPILED=0 does
without. Which calls of `relu_attention` it computes says `fused.compiled_operator`.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor

from .building import UNITS, CompiledLibraryError, build_library, find_compiler, is_served, library_name

VARIABLE = "RELUFORMER_COMPILED"
SOURCES = Path(__file__).parent
logger = logging.getLogger(__name__)

# How far this process is: nothing was looked for, none was found and none was worth building, or nothing changes any
# more.
_BEGINNING, _NONE_FOUND, _SETTLED = range(3)
_stage = _BEGINNING
_operators: Any = None  # torch.ops.reluformer_cpu, once the library is loaded and used
loaded_from: Path | None = None  # the file that this process has loaded
_lock = threading.Lock()


def library(large: bool) -> Any | None:
    """The operators of the compiled library, `torch.ops.reluformer_cpu`; None if Python is to compute.

    They compute attention in the dtypes that their `supports` names, sparse networks and translation.

    large: whether the call is large enough to gain by them, so that they are built if they do not exist.
    """
    return _operators if _stage == _SETTLED else _settle(large)


def is_settled() -> bool:
    """Whether nothing changes any more in this process: a library is used, or none can be had."""
    return _stage == _SETTLED


def _settle(large: bool) -> Any | None:
    global _stage, _operators
    with _lock:
        if _stage == _SETTLED or (_stage == _NONE_FOUND and not large):
            return _operators
        off = os.environ.get(VARIABLE) == "0"
        if not off and _stage == _BEGINNING:
            _operators = _found()
        if not off and large and loaded_from is None:
            _operators = _built()
        _stage = _SETTLED if off or large or _operators is not None else _NONE_FOUND
        return _operators


def _cache_folder() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or f"{caches}/reluformer")


def _found() -> Any | None:
    name = library_name(SOURCES, UNITS)
    for path in filter(Path.is_file, (SOURCES / name, _cache_folder() / name)):
        try:
            return _loaded(path)
        except CompiledLibraryError as error:  # of a machine with newer system libraries: it is built anew
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
                    "Building the compiled library for torch %s, once for all processes, in %s. This usually takes "
                    "less than a minute; %s=0 does without it.",
                    torch.__version__,
                    path.parent,
                    VARIABLE,
                )
                build_library(SOURCES, UNITS, path, compiler)
        return _loaded(path)
    except (CompiledLibraryError, OSError) as error:
        logger.log(
            logging.WARNING if is_served() else logging.INFO,
            "The compiled library could not be built in %s ($TORCH_EXTENSIONS_DIR names another folder): %s.%s The "
            "Python loop computes instead: attention is slower, with the same results to rounding, translation is by "
            "`generate`, in float32 alone, and no network skips zeros. %s=0 turns this warning off.",
            path.parent,
            error,
            _for_another_torch(),
            VARIABLE,
        )
        return None


def _for_another_torch() -> str:
    """What to do where the package came with a library, which serves the torch that it was built with alone."""
    brought = sorted(path.name.split("-torch")[1].rsplit("-", 1)[0] for path in SOURCES.glob("library-*-torch*.so"))
    if not brought or torch.__version__ in brought:
        return ""
    wanted = " or ".join(brought)
    return (
        f" The one that the package brings is for torch {wanted}, and this is {torch.__version__}: install that torch "
        "or a compiler."
    )


def _loaded(path: Path) -> Any | None:
    """None on a processor without AVX2 or NEON. A second library with these operators would end the process."""
    global loaded_from
    operators = torch.ops.reluformer_cpu
    if loaded_from is None:
        try:
            torch.ops.load_library(str(path))
        except OSError as error:
            raise CompiledLibraryError(f"{path} cannot be loaded: {error.__cause__ or error}") from error
        loaded_from = path
        if not operators.supports(torch.float32):
            logger.warning(
                "The compiled library needs a processor with AVX2 or NEON, and a torch with oneDNN that is switched "
                "on; the Python loop computes instead. %s=0 turns this warning off.",
                VARIABLE,
            )
    return operators if operators.instruction_sets() else None


def quantized_neurons(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights in 127 steps either way, int8 (neurons, features), and a scale for each neuron (neurons,)."""
    scale = weight.float().abs().amax(1) / 127
    steps = (weight.float() / scale.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(1)).round()
    return steps.to(torch.int8), scale
