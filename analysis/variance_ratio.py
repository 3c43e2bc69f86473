"""The figure `variance-ratio`, Var(FFN out) / Var(residual), Table 1: how much a feed-forward block adds to what passes it by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reluformer.analysis.colors import OLIVE, TEAL
from reluformer.analysis.drawing import draw_bars
from reluformer.analysis.feed_forward import require_post_norm
from reluformer.analysis.figure import TEXT, Figure, Rows, Subject, Taken, Watch
from reluformer.analysis.head_sums import ALL

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
