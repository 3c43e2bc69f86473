"""What a schedule of zeros in the feed-forward networks says; see `reluformer.training.zeros`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Integral, Real

from reluformer.configuration.errors import UserError


@dataclass(kw_only=True)
class ZerosConfig:
    """How training makes zeros in the feed-forward networks. All is driven by the number of the update.

    Args:
        l1_weights: weights of the L1 term of the loss (`ffn_l1_weight`), one for each stage of ProSparse (arXiv 2402.13516): the
            first is constant, and each later stage rises from the weight before along a sine. Empty: no schedule.
        l1_steps: the update at which each stage ends; after the last one its weight stays.
        threshold: what `ffn_threshold` becomes; 0: it stays as it is.
        threshold_step: from which update on; null: when training is over, as in ProSparse.
        stochastic_probability: the share of scores below 0 that go through SiLU, in a model of ReLUs (stochastic activations);
        0: none.
        relu_share: the last share of the updates, rounded to at least one, in which the model is a ReLU's alone.
    """

    l1_weights: list[float] = field(default_factory=list)
    l1_steps: list[int] = field(default_factory=list)
    threshold: float = 0.0
    threshold_step: int | None = None
    stochastic_probability: float = 0.0
    relu_share: float = 0.1

    def check(self) -> None:
        """Raises a `UserError` for values that make no schedule."""
        for name in ("l1_weights", "l1_steps"):
            if not isinstance(getattr(self, name), list | tuple):
                raise UserError(f"zeros.{name}: {getattr(self, name)!r} must be a list, of one number for each stage")
        steps = [] if self.threshold_step is None else [self.threshold_step]
        for name, values, kind in (
            ("l1_weights", self.l1_weights, Real),
            ("l1_steps", self.l1_steps, Integral),
            ("threshold_step", steps, Integral),
            *((name, [getattr(self, name)], Real) for name in ("threshold", "stochastic_probability", "relu_share")),
        ):
            if wrong := [value for value in values if isinstance(value, bool) or not isinstance(value, kind)]:
                whole = "a whole number" if kind is Integral else "a number"
                raise UserError(f"zeros.{name}: {wrong[0]!r} must be {whole}")
        if len(self.l1_weights) != len(self.l1_steps):
            raise UserError(
                f"zeros: {len(self.l1_weights)} l1_weights and {len(self.l1_steps)} l1_steps; give the end of each stage"
            )
        if any(not 0 <= weight < math.inf for weight in self.l1_weights):
            raise UserError(f"zeros.l1_weights: {self.l1_weights} must be finite numbers of at least 0")
        if any(start >= end for start, end in zip([0, *self.l1_steps], self.l1_steps, strict=False)):
            raise UserError(f"zeros.l1_steps: {self.l1_steps} must rise from above 0")
        if not 0 <= self.threshold < math.inf:
            raise UserError(f"zeros.threshold: {self.threshold} must be a finite number of at least 0")
        if self.threshold_step is not None and (self.threshold_step < 0 or not self.threshold):
            raise UserError(
                f"zeros.threshold_step: {self.threshold_step} must be at least 0, and needs zeros.threshold"
            )
        for name in ("stochastic_probability", "relu_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"zeros.{name}: {getattr(self, name)} must be from 0 to 1")
        if self.stochastic_probability and not self.relu_share:
            raise UserError("zeros.relu_share: 0 leaves no update in which the model is a ReLU's; give 0.05 to 0.2")

    def l1_weight(self, step: int) -> float | None:
        """The weight of the update after `step` updates; None without a schedule.

        In stage i, which ends at update T_i with the weight w_i, w_{i-1} + (w_i - w_{i-1}) (1 - cos(pi (t - T_{i-1}) / (T_i -
        T_{i-1}))) / 2, which is ProSparse's sine; in the first stage w_1.
        """
        if not self.l1_weights:
            return None
        stages = zip(self.l1_weights, self.l1_weights[1:], self.l1_steps, self.l1_steps[1:], strict=False)
        for before, weight, start, end in stages:
            if start <= step < end:
                return before + (weight - before) * (1 - math.cos(math.pi * (step - start) / (end - start))) / 2
        return self.l1_weights[0] if step < self.l1_steps[0] else self.l1_weights[-1]

    def negative_probability(self, step: int, steps: int) -> float:
        """The probability of the update after `step` of `steps` updates."""
        # One at least, also of few updates: what is saved must have been trained as it is used.
        relu_steps = max(round(steps * self.relu_share), 1)
        return self.stochastic_probability if step < steps - relu_steps else 0.0
