"""A schedule of zeros in feed-forward networks, for any Trainer: ProSparse's L1 weight and threshold, stochastic
activations."""

from __future__ import annotations

import logging
import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerState

from reluformer.configuration.errors import UserError
from reluformer.modeling_reluformer.layers_reluformer import AttentionPreTrainedModel, SparseActivation

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class ZerosCallback(TrainerCallback):
    """Sets, before each update of a model of this package, what follows from its number; so a resumed run equals a
    whole one.

    The threshold is saved with the model's configuration; the L1 weight and the probability are those of training
    alone.

    Args:
        l1_weights: weights of the L1 term of the loss (`ffn_l1_weight`), one for each stage of ProSparse (arXiv
            2402.13516): the first is constant, and each later stage goes from the weight before to its own along a
            sine. Empty: no schedule.
        l1_steps: the update at which each stage ends; after the last one its weight stays.
        threshold: what `ffn_threshold` becomes; 0: it stays as it is.
        threshold_step: from which update on; None: when training is over, as in ProSparse.
        stochastic_probability: the share of scores below 0 that go through SiLU, in a model of ReLUs (stochastic
            activations); 0: none.
        relu_share: the last share of the updates, rounded to at least one, in which the model is a ReLU's alone.

    Raises:
        UserError: values that make no schedule; when training begins, a model that they do not fit.
    """

    l1_weights: Sequence[float] = ()
    l1_steps: Sequence[int] = ()
    threshold: float = 0.0
    threshold_step: int | None = None
    stochastic_probability: float = 0.0
    relu_share: float = 0.1

    def __post_init__(self) -> None:
        self.l1_weights, self.l1_steps = list(self.l1_weights), list(self.l1_steps)
        if len(self.l1_weights) != len(self.l1_steps) or self.l1_steps != sorted({*self.l1_steps} - {0}):
            raise UserError(
                f"ZerosCallback: l1_weights={self.l1_weights} and l1_steps={self.l1_steps}; give each weight the "
                "update at which its stage ends, rising from above 0"
            )
        shares = self.stochastic_probability, self.relu_share
        if min([*self.l1_weights, self.threshold, *shares]) < 0 or max(shares) > 1:
            raise UserError(
                f"ZerosCallback: l1_weights={self.l1_weights} and threshold={self.threshold} must be at least 0, "
                f"stochastic_probability={shares[0]} and relu_share={shares[1]} from 0 to 1"
            )
        if self.threshold_step is not None and not self.threshold:
            raise UserError(f"ZerosCallback: threshold_step={self.threshold_step} needs a threshold above 0")

    def l1_weight(self, step: int) -> float | None:
        """The weight of the update after `step` updates; None without a schedule.

        w_1 in the first stage; in stage i, which ends at update T_i with w_i, ProSparse's sine:
        w_{i-1} + (w_i - w_{i-1}) (1 - cos(pi (t - T_{i-1}) / (T_i - T_{i-1}))) / 2.
        """
        if not self.l1_weights:
            return None
        stage = bisect(self.l1_steps, step)
        if stage in (0, len(self.l1_steps)):
            return self.l1_weights[0 if stage == 0 else -1]
        (start, end), (before, weight) = (stages[stage - 1 : stage + 1] for stages in (self.l1_steps, self.l1_weights))
        return before + (weight - before) * (1 - math.cos(math.pi * (step - start) / (end - start))) / 2

    def negative_probability(self, step: int, steps: int) -> float:
        """The probability of the update after `step` of `steps` updates. The last one is a ReLU's, as the model that is
        saved."""
        relu_steps = max(round(steps * self.relu_share), 1)
        return self.stochastic_probability if step < steps - relu_steps else 0.0

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Refuses a model that the schedule does not fit."""
        config = _ours(kwargs["model"]).config
        if self.l1_weights and config.ffn_l1_weight:
            raise UserError(
                f"ZerosCallback: l1_weights would replace the model's ffn_l1_weight={config.ffn_l1_weight}; give one "
                "of them"
            )
        activation = config.activation_function
        if activation == "softmax" or (self.stochastic_probability and activation != "relu"):
            raise UserError(
                f"ZerosCallback: the model's activation is {activation!r}; softmax memories have no zeros, and "
                "stochastic activations end as ReLU, so give activation_function='relu'"
            )

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """What holds for the next update, all of its steps of accumulation alike."""
        step = state.global_step
        reached = self.threshold_step is not None and step >= self.threshold_step
        self._set(kwargs["model"], self.l1_weight(step), self.negative_probability(step, state.max_steps), reached)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """The model as it is used from now on: no L1 term but its own, ReLUs, and the threshold."""
        reached = state.global_step >= (state.max_steps if self.threshold_step is None else self.threshold_step)
        self._set(kwargs["model"], None, 0.0, reached)
        if self.threshold and not reached:
            logger.warning("ZerosCallback: no threshold is set: training ended at update %d", state.global_step)

    def _set(self, model: nn.Module, l1_weight: float | None, negative_probability: float, reached: bool) -> None:
        model, threshold = _ours(model), self.threshold if reached else 0.0
        model.scheduled_ffn_l1_weight = l1_weight
        model.config.ffn_threshold = threshold or model.config.ffn_threshold
        for part in model.modules():
            activation = part._modules.get("activation_fn")
            if activation is None or isinstance(part, SparseActivation):
                continue
            if not isinstance(activation, SparseActivation) and (threshold or negative_probability):
                part.activation_fn = activation = SparseActivation(activation).train(part.training)
            if isinstance(activation, SparseActivation):
                activation.negative_probability = negative_probability
                activation.threshold = threshold or activation.threshold


def _ours(model: nn.Module) -> AttentionPreTrainedModel:
    """The model of this package inside what a Trainer trains."""
    attention_model = next((part for part in model.modules() if isinstance(part, AttentionPreTrainedModel)), None)
    if attention_model is None:
        raise UserError(f"ZerosCallback: {type(model).__name__} is no model of this package")
    return attention_model
