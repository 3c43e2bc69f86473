"""The analyses `variance-ratio`, what a feed-forward block adds to what passes it by (Table 1), and `variance-simulation`.

The latter shows Theorem 4.1: y = sum_i ReLU(x_i) v_i over n pairs of standard normal numbers has variance n/2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reluformer.analysis.collection import ALL
from reluformer.analysis.drawing import GREY, OLIVE, RELU, TEAL, draw_bars, new_figure, save
from reluformer.analysis.feed_forward import require_post_norm
from reluformer.analysis.figure import NOTHING, TEXT, Figure, Rows, Subject, Taken, Watch
from reluformer.configuration.errors import UserError

DEFINITIONS = {
    "tokens": "real tokens, those of padding left out",
    "output_variance": (
        "variance over the features of what the feed-forward block adds to the residual (after its layer norm, where "
        "there is one; without dropout), mean over tokens"
    ),
    "residual_variance": "the same of the residual, which is the block's input",
    "variance_ratio": "output_variance / residual_variance; for `all`, the mean over layers of the ratio (Table 1)",
    "output_variance_over_tokens": "variance over the tokens, mean over features: 0 for an output equal for all",
    "residual_variance_over_tokens": "the same of the residual",
    "variance_ratio_over_tokens": "their ratio; for `all`, the mean over layers",
    "note": "the paper does not say over what its variance is taken, nor how layers are averaged",
}


@dataclass
class _Moments:
    """Sums over the tokens of one layer, float64. x: (features,) sums of x and x²; within: of each token's variance."""

    tokens: int
    within: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, vectors: Tensor) -> _Moments:
        vectors = vectors.double().cpu()
        within = vectors.var(dim=-1, correction=0).sum()
        return cls(vectors.shape[0], within, vectors.sum(dim=0), vectors.square().sum(dim=0))

    def __add__(self, other: _Moments) -> _Moments:
        return _Moments(
            self.tokens + other.tokens,
            self.within + other.within,
            self.first + other.first,
            self.second + other.second,
        )

    def over_features(self) -> float:
        return float(self.within / self.tokens)

    def over_tokens(self) -> float:
        return float((self.second / self.tokens - (self.first / self.tokens).square()).clamp_min(0).mean())


class VarianceRatios:
    """Variances of feed-forward outputs and residuals by stack and layer."""

    def __init__(self) -> None:
        self._moments: dict[tuple[str, int], tuple[_Moments, _Moments]] = {}

    def update(self, stack: str, layer: int, output: Tensor, residual: Tensor) -> None:
        """Adds tokens: `output` and `residual` (tokens, features) of a layer of "encoder" or "decoder", from 0."""
        if output.shape[0] == 0:
            return
        new = (_Moments.of(output), _Moments.of(residual))
        known = self._moments.get((stack, layer))
        self._moments[stack, layer] = new if known is None else (known[0] + new[0], known[1] + new[1])

    def table(self) -> list[dict[str, Any]]:
        """One row for each layer, one for each stack and one for the model; columns as in `DEFINITIONS`."""
        layers = [
            self._row(stack, layer)
            for stack, layer in sorted(self._moments, key=lambda key: (key[0] != "encoder", key))
        ]
        stacks = dict.fromkeys(row["module"] for row in layers)
        means = [_mean([row for row in layers if row["module"] == stack], stack) for stack in stacks]
        return [_mean(layers, ALL), *means, *layers]

    def _row(self, stack: str, layer: int) -> dict[str, Any]:
        output, residual = self._moments[stack, layer]
        within = {"output_variance": output.over_features(), "residual_variance": residual.over_features()}
        over = {
            "output_variance_over_tokens": output.over_tokens(),
            "residual_variance_over_tokens": residual.over_tokens(),
        }
        return {
            "module": stack,
            "layer": layer + 1,
            "tokens": output.tokens,
            **within,
            "variance_ratio": _ratio(*within.values()),
            **over,
            "variance_ratio_over_tokens": _ratio(*over.values()),
        }


def _ratio(output: float, residual: float) -> float | None:
    """None where the residual has no variance: a single token has none over tokens."""
    return output / residual if residual > 0 else None


def _mean(rows: list[dict[str, Any]], module: str) -> dict[str, Any]:
    """The mean over layers of every column; None where one of them has none."""
    mean: dict[str, Any] = {
        "module": module,
        "layer": ALL,
        "tokens": sum({r["module"]: r["tokens"] for r in rows}.values()),
    }
    for name in list(rows[0])[3:]:
        values = [row[name] for row in rows]
        mean[name] = None if None in values else torch.tensor(values, dtype=torch.float64).mean().item()
    return mean


class VarianceRatio(Figure):
    """The ratio of every layer, over features and over tokens."""

    name = "variance-ratio"
    needs = TEXT
    definitions = DEFINITIONS

    def require(self, model: PreTrainedModel) -> None:
        require_post_norm(model)

    def watch(self, model: PreTrainedModel) -> Watch:
        self._ratios = VarianceRatios()
        return Watch(on_update=self._ratios.update)

    def take(self, subject: Subject) -> Taken:
        table = self._ratios.table()
        return Taken(table, f"{table[0]['variance_ratio']:.4f}, mean over layers")

    def draw(self, rows: Rows, path: Path, title: str) -> Path:
        """Var(FFN out) / Var(residual) of each layer, over features and over tokens."""
        columns = {"variance_ratio": ("over features", TEAL), "variance_ratio_over_tokens": ("over tokens", OLIVE)}
        return draw_bars(rows, columns, "Var(FFN out) / Var(residual)", path, title)


DEFAULT_LENGTHS = tuple(2**power for power in range(11))
DEFAULT_SAMPLES = 50_000
_NUMBERS_AT_A_TIME = 2**21

SIMULATION_DEFINITIONS = {
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
    """Draws `samples` values of y for each n in `lengths`; columns as in `SIMULATION_DEFINITIONS`.

    A row depends on n, samples and seed alone, not on the other rows.

    Raises:
        UserError: no lengths, or a length or number of samples that is too small.
    """
    if not lengths or min(lengths) < 1:
        raise UserError(f"--lengths: {list(lengths)} must be numbers of at least 1")
    if samples < 2:
        raise UserError(f"--samples: {samples} must be at least 2, a variance needs two")
    return [_simulated(length, samples, seed) for length in sorted(set(lengths))]


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


@dataclass
class VarianceSimulation(Figure):
    """The simulated variance over n beside n/2."""

    name = "variance-simulation"
    needs = NOTHING
    definitions = SIMULATION_DEFINITIONS
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
