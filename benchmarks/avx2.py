"""Everything held to AVX2, which is all that many processors have: our own loops here, and torch, oneDNN, MKL and
CTranslate2 by the variables that `make bench-avx2` sets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from reluformer.configuration.errors import UserError

HELD_TO_AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "CT2_FORCE_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
AVX2_SETTINGS = {"instruction_set": "AVX2 alone"}


@contextmanager
def held_to_avx2(benchmark: str) -> Iterator[None]:
    """While a cell is measured.

    Raises:
        UserError: a variable is missing that holds a library to AVX2; it must be set before the library is loaded.
    """
    missing = [f"{name}={value}" for name, value in HELD_TO_AVX2.items() if os.environ.get(name) != value]
    if missing:
        raise UserError(f"{benchmark}: not set: {' '.join(missing)}; `make bench-avx2` sets them")
    operators = torch.ops.reluformer_cpu
    operators.choose_instruction_set("avx2")
    try:
        yield
    finally:
        operators.choose_instruction_set(operators.instruction_sets()[0])
