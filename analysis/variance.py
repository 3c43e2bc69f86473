"""The analyses `variance-ratio`, what a feed-forward block adds to what passes it by (Table 1), and `variance-simulation`.

The latter shows Theorem 4.1: y = sum_i ReLU(x_i) v_i over n pairs of standard normal numbers has variance n/2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from reluformer.analysis.collection import ALL, BlockRows, block_rows
from reluformer.analysis.drawing import GREY, OLIVE, RELU, TEAL, draw_bars, finish, new_figure, save
from reluformer.analysis.inputs import Subject
from reluformer.analysis.results import Measured, Rows, stacks_of_layers
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
_COLUMNS = {"variance_ratio": ("over features", TEAL), "variance_ratio_over_tokens": ("over tokens", OLIVE)}
# Models whose residual is the block's input.
_POST_NORM = ("reluformer", "marian")


def variance_ratio(subject: Subject) -> Measured:
    """The ratio of every layer, over features and over tokens."""
    kind = subject.model.config.model_type
    if kind not in _POST_NORM:
        raise UserError(
            f"variance-ratio: {kind} models are not supported, since their residual need not be the feed-forward block's "
            f"input; it reads {' and '.join(_POST_NORM)} models"
        )
    table = ratio_table(block_rows(subject.model, subject.batches()))
    draw = partial(draw_bars, table, _COLUMNS, "Var(FFN out) / Var(residual)")
    return Measured(table, f"{table[0]['variance_ratio']:.4f}, mean over layers", draw, DEFINITIONS)


def ratio_table(rows: Iterable[BlockRows]) -> Rows:
    """One row for the model, one for each stack and one for each layer; columns as in `DEFINITIONS`."""
    moments: dict[tuple[str, int], tuple[_Moments, _Moments]] = {}
    for block, _, update, residual in rows:
        of_block = moments.setdefault((block.stack, block.layer), (_Moments(), _Moments()))
        for vectors, found in zip((update, residual), of_block, strict=True):
            found.add(vectors)
    layers = [
        {"module": stack, "layer": layer + 1, "tokens": found[0].tokens, **_variances(*found)}
        for (stack, layer), found in moments.items()
    ]
    means = []
    for stack, of_stack in stacks_of_layers(layers):
        tokens = sum({row["module"]: row["tokens"] for row in of_stack}.values())
        columns = {name: [row[name] for row in of_stack] for name in list(layers[0])[3:]}
        mean = {name: None if None in values else fmean(values) for name, values in columns.items()}
        means.append({"module": stack, "layer": ALL, "tokens": tokens, **mean})
    return means + layers


class _Moments:
    """Sums over the tokens of one layer, float64: of x and x² of each feature, and of each token's variance over features."""

    def __init__(self) -> None:
        self.tokens, self.within, self.first, self.second = 0, 0.0, 0.0, 0.0

    def add(self, vectors: Tensor) -> None:
        """Adds vectors (tokens, features)."""
        vectors = vectors.double().cpu()
        self.tokens += len(vectors)
        self.within += float(vectors.var(dim=-1, correction=0).sum())
        self.first = self.first + vectors.sum(dim=0)
        self.second = self.second + vectors.square().sum(dim=0)

    def over_features(self) -> float:
        return self.within / self.tokens

    def over_tokens(self) -> float:
        return float((self.second / self.tokens - (self.first / self.tokens).square()).clamp_min(0).mean())


def _variances(update: _Moments, residual: _Moments) -> dict[str, float | None]:
    features = update.over_features(), residual.over_features()
    tokens = update.over_tokens(), residual.over_tokens()
    return {
        "output_variance": features[0],
        "residual_variance": features[1],
        "variance_ratio": _ratio(*features),
        "output_variance_over_tokens": tokens[0],
        "residual_variance_over_tokens": tokens[1],
        "variance_ratio_over_tokens": _ratio(*tokens),
    }


def _ratio(update: float, residual: float) -> float | None:
    """None where the residual has no variance: a single token has none over tokens."""
    return update / residual if residual > 0 else None


# variance-simulation

LENGTHS = tuple(2**power for power in range(11))
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


def variance_simulation(subject: Subject) -> Measured:
    """The simulated variance over n beside n/2."""
    table = simulate_variance(samples=subject.options.samples, seed=subject.options.seed)
    worst = max(abs(row["variance"] / row["expected_variance"] - 1) for row in table)
    draw, facts = partial(_draw_simulation, table), {"seed": subject.options.seed}
    return Measured(table, f"variance within {worst:.1%} of n/2", draw, SIMULATION_DEFINITIONS, facts)


def simulate_variance(lengths: Sequence[int] = LENGTHS, *, samples: int = 50_000, seed: int = 0) -> Rows:
    """Draws `samples` values of y for each n in `lengths`; columns as in `SIMULATION_DEFINITIONS`.

    A row depends on n, samples and seed alone, not on the other rows.
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
