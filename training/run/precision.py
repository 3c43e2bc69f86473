"""The type that a training computes in, and whether a processor computes it in hardware."""

from __future__ import annotations

import logging
import platform
import re
from collections.abc import Set
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger(__name__)

# Any one of them: of x86 processors, as torch names them, and of ARM's, as Linux does.
_BFLOAT16 = ("avx512_bf16", "amx_tile", "bf16")


def cpu_features() -> Set[str]:
    """Those of this machine's processor that compute bfloat16: a part of `avx512_bf16`, `amx_tile` and `bf16`."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        # asked of the processor itself, which may be emulated: /proc/cpuinfo would tell of another
        return {name for name in _BFLOAT16[:2] if getattr(torch.cpu, f"_is_{name}_supported")()}
    path = Path("/proc/cpuinfo")
    match = re.search(r"^Features\s*:(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE) if path.exists() else None
    return {*_BFLOAT16} & {*match[1].split()} if match else {*_BFLOAT16}  # of an unknown one, nothing is said


def has_bfloat16(features: Set[str] | None = None) -> bool:
    """Whether a processor with these features, by default this machine's, computes bfloat16; for others torch does,
    slowly."""
    return not {*_BFLOAT16}.isdisjoint(cpu_features() if features is None else features)


def precision_of(training: Any) -> str:
    """The type of matrix products under these training arguments: "bfloat16", "float16" or "float32"."""
    if training.bf16:
        return "bfloat16"
    return "float16" if training.fp16 else "float32"


def warn_of_slow_bfloat16(training: Any) -> None:
    """Says, once in the main process, that these training arguments ask a CPU for what it computes in software."""
    if training.bf16 and training.device.type == "cpu" and training.process_index == 0 and not has_bfloat16():
        logger.warning(
            "training.bf16: this processor has neither AVX512-BF16 nor AMX, and torch computes bfloat16 in software, "
            "many times slower than float32; train in float32 (--training.bf16 false)"
        )
