"""The analysis `ppl-sparsity`: how many activations can be dropped until the perplexity rises by 1 % (PPL-1%, arXiv
2411.02335).

Neuron i adds `a_i w_i` to the output of its block, where `a_i` is its activation and `w_i` its column of the last
projection. With a threshold e it is dropped where `|a_i| ‖w_i‖ < e`. The cumulative error of tail truncation is the
mean over tokens of

    CETT(e) = ‖Σ_dropped a_i w_i‖ / ‖Σ_all a_i w_i‖

Biases are left out of both norms. One CETT for all blocks is bisected; each block then has the threshold that reaches
it on the activations of the whole model, searched as in the paper's public code (thunlp/SparsingLaw, MIT). With these
thresholds the model is run again: what it keeps is the active share, and its perplexity over that of the whole model
must stay below 1 + p/100.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from reluformer.analysis.analyze import AnalysisResult, Rows
from reluformer.analysis.collection import ALL, IGNORED_LABEL, Batch, forward, recorded
from reluformer.analysis.drawing import GREY, TEAL, draw_bars
from reluformer.analysis.feed_forward import feed_forward_blocks
from reluformer.analysis.inputs import Subject
from reluformer.analysis.likelihood import require_number

TOLERANCE = 1e-6  # of the bisected CETT
# Thresholds, evenly spaced from the smallest product |a_i| ‖w_i‖ to this quantile of a sample of them.
CANDIDATES, QUANTILE = 65_536, 0.99
_COLUMNS = {"nonzero_fraction": ("not zero", GREY), "active_fraction": ("active at PPL-1%", TEAL)}


def ppl_sparsity(subject: Subject) -> AnalysisResult:
    """The active share of the activations at PPL-1%, by block."""
    search = SparsitySearch(subject.model, next(subject.batches()))
    truncated = search.at_increase(1.0)
    table = sparsity_table(search, truncated)
    summary = f"PPL-1% {1 - table[0]['active_fraction']:.1%} zeros at CETT {truncated.cett:.4f}"
    read = int(search.batch.labels.ne(IGNORED_LABEL).sum())
    notes = [f"ppl-sparsity reads the first batch alone, of {read:,} tokens"]
    if truncated.cett > 1 - 2 * TOLERANCE:
        notes.append(
            "ppl-sparsity: with the largest thresholds that are searched, the perplexity is not 1 % higher; the "
            "figures are those of these thresholds, and more may go"
        )
    return AnalysisResult(table, summary, partial(draw_bars, table, _COLUMNS, "share of the activations"), notes)


class TailTruncation:
    """The thresholds of one block on the activations of a text.

    Args:
        activations: (tokens, neurons), what the last projection multiplies.
        value_slots: (features, neurons), its weight.
    """

    def __init__(self, activations: Tensor, value_slots: Tensor) -> None:
        wide = torch.promote_types(activations.dtype, torch.float32)
        self.activations, self.value_slots = activations.to(wide), value_slots.detach().to(activations.device, wide)
        self.slot_norms = self.value_slots.norm(dim=0)
        self._output_norms = (self.activations @ self.value_slots.T).norm(dim=-1)
        self._products = self.activations.abs() * self.slot_norms
        sample = self._products.flatten()[:: max(self._products.numel() // CANDIDATES, 1)]
        least, most = float(self._products.min()), float(sample.quantile(QUANTILE))
        self.candidates = torch.linspace(least, most, CANDIDATES, dtype=wide)
        self._errors: dict[int, float] = {}

    def threshold(self, cett: float) -> float:
        """The largest candidate that a bisection finds with at most this CETT; 0, which drops nothing, where there is
        none."""
        least, most = 0, CANDIDATES - 1
        while least < most:
            middle = (least + most) // 2
            if middle not in self._errors:  # the searches of many CETTs pass the same candidates
                self._errors[middle] = self.cett(float(self.candidates[middle]))
            if self._errors[middle] > cett:
                most = middle
            else:
                least = middle + 1
        return float(self.candidates[least - 1]) if least else 0.0

    def cett(self, threshold: float) -> float:
        """CETT of a threshold; a token whose output is 0 counts as 0 where nothing is lost."""
        dropped = torch.where(self._products <= threshold, self.activations, 0.0)
        lost = (dropped @ self.value_slots.T).norm(dim=-1)
        return float(torch.where(lost == 0, 0.0, lost / self._output_norms).mean())


def perplexity(nats: float) -> float:
    """exp of a mean cross-entropy; infinity where a float has no room."""
    return math.exp(nats) if nats < 700 else math.inf


@dataclass(frozen=True)
class Truncated:
    """The model at one CETT: of each block its threshold and how many activations it keeps; and its cross-entropy, in
    nats."""

    cett: float
    thresholds: list[float]
    active: list[int]
    cross_entropy: float


class SparsitySearch:
    """The bisection of CETT for one model and one batch; the model is given back as it was.

    Raises:
        UserError: no feed-forward blocks, nothing that the model predicts, or a perplexity that is no number.
    """

    def __init__(self, model: PreTrainedModel, batch: Batch) -> None:
        self.model, self.batch, self.blocks = model, batch, feed_forward_blocks(model)
        self.dense_cross_entropy, activations = self._run()
        require_number("ppl-sparsity", self.dense_cross_entropy)
        self.truncations = [
            TailTruncation(of_block, block.value_slots)
            for of_block, block in zip(activations, self.blocks, strict=True)
        ]

    def at_increase(self, p_percent: float) -> Truncated:
        """The model at the largest CETT, bisected to 1e-6, at which the perplexity rises by less than `p_percent`."""
        least, most, allowed = 0.0, 1.0, math.log1p(p_percent / 100)
        steps = range(math.ceil(-math.log2(TOLERANCE)))
        for _ in tqdm(steps, desc=f"PPL-{p_percent:g}%", unit="step", leave=False, disable=None):
            middle = (least + most) / 2
            if self.at_cett(middle).cross_entropy - self.dense_cross_entropy < allowed:
                least = middle
            else:
                most = middle
        return self.at_cett(least)

    def at_cett(self, cett: float) -> Truncated:
        """The model with the thresholds of one CETT."""
        thresholds = [truncation.threshold(cett) for truncation in self.truncations]
        with ExitStack() as hooks:
            for block, truncation, threshold in zip(self.blocks, self.truncations, thresholds, strict=True):
                drop = partial(_drop, threshold, truncation.slot_norms)
                hooks.callback(block.values.register_forward_pre_hook(drop).remove)
            nats, activations = self._run()
        return Truncated(cett, thresholds, [int(each.count_nonzero()) for each in activations], nats)

    def _run(self) -> tuple[float, list[Tensor]]:
        """Mean cross-entropy of the model as it is, and of each block the activations (tokens, neurons) after earlier
        hooks."""
        with recorded(self.blocks, self.batch) as rows:
            logits = forward(self.model, self.batch).logits.flatten(0, -2).float()
        nats = cross_entropy(logits, self.batch.labels.flatten(), ignore_index=IGNORED_LABEL)
        return float(nats), [row.activations for row in rows]


def _drop(threshold: float, slot_norms: Tensor, module: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    """A pre-hook of the last projection. slot_norms: (neurons,), the `‖w_i‖`."""
    return inputs[0].masked_fill(inputs[0].abs() < threshold / slot_norms, 0)


def sparsity_table(search: SparsitySearch, truncated: Truncated) -> Rows:
    """One row for all blocks, and for each block.

    cett: the one CETT allowed to all blocks, the result of the bisection; a block stays below it where its threshold is
    the largest searched. active_fraction: share of the activations that are neither zero nor dropped, in the model with
    all thresholds.
    nonzero_fraction: of the whole model. perplexity: with all thresholds, dense_perplexity: without.
    """

    def row(module: str, layer: int | str, threshold: float | None, active: int, dense: list[Tensor]) -> dict[str, Any]:
        size = sum(each.numel() for each in dense)
        return {
            "module": module,
            "layer": layer,
            "cett": truncated.cett,
            "threshold": threshold,
            "active_fraction": active / size,
            "nonzero_fraction": sum(int(each.count_nonzero()) for each in dense) / size,
            "perplexity": perplexity(truncated.cross_entropy),
            "dense_perplexity": perplexity(search.dense_cross_entropy),
        }

    dense = [truncation.activations for truncation in search.truncations]
    blocks = zip(search.blocks, truncated.thresholds, truncated.active, dense, strict=True)
    return [
        row(ALL, ALL, None, sum(truncated.active), dense),
        *(row(f"{at.stack}_ffn", at.layer + 1, threshold, active, [own]) for at, threshold, active, own in blocks),
    ]
