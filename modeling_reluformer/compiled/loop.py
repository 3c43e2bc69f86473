"""The loop of `attention_blockwise` as a compiled extension, for those who set RELUFORMER_COMPILED=1.

torch's own loader builds it at the first use with the machine's C++ compiler, which takes about a minute, and keeps it in
TORCH_EXTENSIONS_DIR. Without the variable nothing is built and nothing changes. The extension computes ReLU in float32 and
bfloat16 on a CPU whose torch has oneDNN. The Python loop computes the other activations and dtypes; both have the same results
to rounding. Their dropout masks differ.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..attention_blockwise import STATISTICS, Settings, block_limits
from ..attention_products import are_finite, uses_onednn

VARIABLE = "RELUFORMER_COMPILED"
SOURCES = ("attention.cpp", "rows.h")
# Vector instructions of this machine. Traps and errno are not used. Sums keep their order, and NaN stays NaN.
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp")


class CompiledAttentionError(RuntimeError, ValueError):
    """The environment asks for the extension in a way that is unknown, or it cannot be built; the message says what to do."""


def is_wanted() -> bool:
    """Whether the environment asks for the extension.

    Raises:
        CompiledAttentionError: the variable is neither 0 nor 1.
    """
    value = os.environ.get(VARIABLE, "0")
    if value not in ("0", "1"):
        raise CompiledAttentionError(
            f"{VARIABLE}={value!r} is unknown; 1 builds and uses the compiled attention, 0 (or nothing) does not."
        )
    return value == "1"


def serves(query: Tensor, activation: str) -> bool:
    """Whether the extension computes a call: it is wanted, and it knows the activation, the dtype and the device."""
    return activation == "relu" and uses_onednn(query) and is_wanted()


def compiled_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_scale: Tensor | None,
    key_padding_mask: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    settings: Settings,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """As `blockwise_forward`."""
    where = row_scale, key_padding_mask, *_edges(cu_seqlens_q, cu_seqlens_k)
    level = STATISTICS.index(settings.statistics)
    found = _operators().forward(query, key, value, *where, *_options(query, key, settings), level, block_limits())
    return found[0], found[1] if level > 0 else None, found[2] if level > 1 else None


def compiled_backward(
    grad_output: Tensor,
    grad_sum: Tensor | None,
    grad_sum_log: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_scale: Tensor | None,
    key_padding_mask: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    settings: Settings,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `blockwise_backward`."""
    gradients = (
        grad_output,
        *(None if gradient is None else gradient.contiguous() for gradient in (grad_sum, grad_sum_log)),
    )
    where = row_scale, key_padding_mask, *_edges(cu_seqlens_q, cu_seqlens_k)
    return _operators().backward(*gradients, query, key, value, *where, *_options(query, key, settings), block_limits())


def _options(query: Tensor, key: Tensor, settings: Settings) -> tuple[bool, float, bool, int, float, int]:
    """The first: no NaN can get lost in the ReLU inside a product."""
    finite = are_finite(query, key)
    return finite, settings.scale, settings.causal, settings.query_offset, settings.dropout_p, settings.seed


def _edges(cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None) -> tuple[list[int], list[int]]:
    if cu_seqlens_q is None or cu_seqlens_k is None:
        return [], []
    return cu_seqlens_q.tolist(), cu_seqlens_k.tolist()


@functools.cache
def _operators() -> Any:
    """Builds the extension unless it exists, and loads it.

    Raises:
        CompiledAttentionError: there is no compiler that works.
    """
    folder = Path(__file__).parent
    from torch.utils import cpp_extension

    try:
        cpp_extension.load(
            _name(folder),
            [str(folder / SOURCES[0])],
            extra_cflags=list(FLAGS),
            extra_ldflags=["-fopenmp"],
            is_python_module=False,
        )
    except (RuntimeError, OSError) as error:
        raise CompiledAttentionError(
            f"{VARIABLE}=1: the compiled attention could not be built ({str(error).strip().splitlines()[0]}); it needs "
            f"ninja (`pip install ninja`), a C++ compiler and Python's headers. Unset {VARIABLE} to use the Python loop."
        ) from error
    return torch.ops.reluformer_cpu


def _name(folder: Path) -> str:
    """A name for each state of the sources, version of torch and kind of processor, since these may share a folder of builds."""
    cpu = Path("/proc/cpuinfo")
    flags = (
        next((line for line in cpu.read_text().splitlines() if line.startswith("flags")), "") if cpu.is_file() else ""
    )
    parts = [(folder / name).read_bytes() for name in SOURCES]
    parts += [text.encode() for text in (torch.__version__, platform.machine(), flags, *FLAGS)]
    return f"reluformer_cpu_{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}"
