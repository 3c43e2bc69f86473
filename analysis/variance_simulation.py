"""The figure `variance-simulation`, Theorem 4.1:

y = sum_i ReLU(x_i) v_i over n pairs of standard normal numbers has variance n/2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from reluformer.analysis.colors import GREY, RELU
from reluformer.analysis.drawing import new_figure, save
from reluformer.analysis.figure import NOTHING, Figure, Rows, Subject, Taken
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


@dataclass
class VarianceSimulation(Figure):
    """The simulated variance over n beside n/2."""

    name = "variance-simulation"
    needs = NOTHING
    definitions = DEFINITIONS
    lengths: Sequence[int] = DEFAULT_LENGTHS
    samples: int = DEFAULT_SAMPLES
    seed: int = 0

    def take(self, subject: Subject) -> Taken:
        table = simulate_variance(self.lengths, samples=self.samples, seed=self.seed)
        worst = max(abs(row["variance"] / row["expected_variance"] - 1) for row in table)
        title = f"Theorem 4.1: y = sum of ReLU(x) v over n pairs, {self.samples:,} samples"
        return Taken(table, f"variance within {worst:.1%} of n/2", {"seed": self.seed}, title=title)

    def draw(self, rows: Rows, path: Path, title: str) -> Path:
        """Measured variance over n beside n/2, and their ratio with two standard errors."""
        lengths = [row["n"] for row in rows]
        figure = new_figure(8.0, 3.4)
        left, right = figure.subplots(1, 2)
        left.plot(lengths, [row["expected_variance"] for row in rows], color=GREY, label="n/2 (Theorem 4.1)")
        left.plot(lengths, [row["variance"] for row in rows], "o", color=RELU, label="simulated")
        left.set_yscale("log", base=2)
        left.set_ylabel("variance of y", fontsize=9)
        left.legend(frameon=False, fontsize=8)
        ratios = [row["variance"] / row["expected_variance"] for row in rows]
        errors = [2 * row["standard_error"] / row["expected_variance"] for row in rows]
        right.axhline(1, color=GREY, label="n/2 (Theorem 4.1)")
        right.errorbar(lengths, ratios, yerr=errors, fmt="o", color=RELU, capsize=3, label="± 2 standard errors")
        right.set_ylabel("variance / (n/2)", fontsize=9)
        right.legend(frameon=False, fontsize=8)
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xlabel("n", fontsize=9)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        return save(figure, path, title)
