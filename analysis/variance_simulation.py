"""Theorem 4.1 by simulation: y = sum_i ReLU(x_i) v_i over n pairs of standard normal numbers has variance n/2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from reluformer.configuration.errors import UserError

DEFAULT_LENGTHS = tuple(2**power for power in range(11))
DEFAULT_SAMPLES = 50_000
_NUMBERS_AT_A_TIME = 2**21

DEFINITIONS = {
    "n": "number of pairs (x_i, v_i), each independent and standard normal",
    "samples": "how many y were drawn",
    "mean": "of y; 0 by the theorem",
    "variance": "of y",
    "expected_variance": "n/2 by the theorem",
    "standard_error": "of the variance, from the sample's fourth moment",
    "excess_kurtosis": "of y; 0 for a Gaussian",
    "expected_excess_kurtosis": "15/n, from E[ReLU(x)^4] E[v^4] = 9/2: y is Gaussian in the limit of large n alone",
}


def simulate_variance(
    lengths: Sequence[int] = DEFAULT_LENGTHS, *, samples: int = DEFAULT_SAMPLES, seed: int = 0
) -> list[dict[str, Any]]:
    """Draws `samples` values of y for each n in `lengths`; columns as in `DEFINITIONS`.

    A row depends on n, samples and seed alone, not on the other rows.

    Raises:
        UserError: no lengths, or a length or number of samples that is too small.
    """
    if not lengths or min(lengths) < 1:
        raise UserError(f"--lengths: {list(lengths)} must be numbers of at least 1")
    if samples < 2:
        raise UserError(f"--samples: {samples} must be at least 2, a variance needs two")
    return [_row(length, samples, seed) for length in sorted(set(lengths))]


def _row(length: int, samples: int, seed: int) -> dict[str, Any]:
    # One seed for all rows would give them the same numbers, and all of them the same error.
    generator = torch.Generator().manual_seed(seed * 1_000_003 + length)
    at_a_time = max(1, _NUMBERS_AT_A_TIME // length)
    parts = []
    for start in range(0, samples, at_a_time):
        size = (min(at_a_time, samples - start), length)
        scores, values = torch.randn(size, generator=generator), torch.randn(size, generator=generator)
        parts.append((torch.relu(scores) * values).double().sum(dim=-1))
    sums = torch.cat(parts)
    centred = sums - sums.mean()
    variance, fourth = float(sums.var()), float(centred.pow(4).mean())
    return {
        "n": length,
        "samples": samples,
        "mean": float(sums.mean()),
        "variance": variance,
        "expected_variance": length / 2,
        "standard_error": math.sqrt(max(0.0, fourth - variance**2) / samples),
        "excess_kurtosis": fourth / variance**2 - 3,
        "expected_excess_kurtosis": 15 / length,
    }
