"""The analysis `variance-simulation`, of Theorem 4.1.

y = sum_i ReLU(x_i) v_i over n pairs of standard normal numbers has variance n/2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from reluformer.analysis.analyze import Measured, Rows
from reluformer.analysis.drawing import GREY, RELU, finish, new_figure, save
from reluformer.analysis.inputs import Subject

LENGTHS, SAMPLES = tuple(2**power for power in range(11)), 50_000
_NUMBERS_AT_A_TIME = 2**21


def variance_simulation(subject: Subject) -> Measured:
    """The simulated variance over n beside n/2."""
    table = simulate_variance(LENGTHS, samples=SAMPLES, seed=subject.options.seed)
    worst = max(abs(row["variance"] / row["expected_variance"] - 1) for row in table)
    draw, facts = partial(_draw_simulation, table), {"seed": subject.options.seed}
    return Measured(table, f"variance within {worst:.1%} of n/2", draw, facts)


def simulate_variance(lengths: Sequence[int], *, samples: int, seed: int = 0) -> Rows:
    """Draws `samples` values of y for each n in `lengths`; a row depends on n, samples and seed alone.

    standard_error: of the variance, from the sample's fourth moment. expected_excess_kurtosis: 15/n, from
    E[ReLU(x)^4] E[v^4] = 9/2: y is Gaussian in the limit of large n alone.
    """
    return [_simulated(length, samples, seed) for length in lengths]


def _simulated(length: int, samples: int, seed: int) -> dict[str, Any]:
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


def _draw_simulation(rows: Rows, path: Path, _: str) -> list[Path]:
    """Measured variance over n beside n/2, and their ratio with two standard errors."""
    lengths = [row["n"] for row in rows]
    figure = new_figure(8.0, 3.4)
    left, right = figure.subplots(1, 2)
    left.plot(lengths, [row["expected_variance"] for row in rows], color=GREY, label="n/2 (Theorem 4.1)")
    left.plot(lengths, [row["variance"] for row in rows], "o", color=RELU, label="simulated")
    left.set_yscale("log", base=2)
    left.set_ylabel("variance of y", fontsize=9)
    ratios = [row["variance"] / row["expected_variance"] for row in rows]
    errors = [2 * row["standard_error"] / row["expected_variance"] for row in rows]
    right.axhline(1, color=GREY, label="n/2 (Theorem 4.1)")
    right.errorbar(lengths, ratios, yerr=errors, fmt="o", color=RELU, capsize=3, label="± 2 standard errors")
    right.set_ylabel("variance / (n/2)", fontsize=9)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("n", fontsize=9)
        axes.legend(frameon=False, fontsize=8)
        finish(axes)
    title = f"Theorem 4.1: y = sum of ReLU(x) v over n pairs, {rows[0]['samples']:,} samples"
    return save(figure, path, title)
