"""A schedule of zeros in feed-forward networks, for any Trainer: ProSparse's L1 weight and threshold, stochastic activations."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from reluformer.configuration.errors import UserError
from reluformer.configuration.zeros import ZerosConfig
from reluformer.modeling_reluformer.layers_reluformer import AttentionPreTrainedModel, FeedForward

logger = logging.getLogger(__name__)


class ZerosCallback(TrainerCallback):
    """Sets, before each update, what follows from its number; so a run that is resumed goes on as one that was not interrupted.

    The model must be one of this package. What is drawn comes from torch's random numbers, which checkpoints of the Trainer
    hold. The threshold stands in the model's configuration and is saved with it; the L1 weight and the probability are those of
    training alone.

    Args:
        zeros: the schedule.
        fields: the arguments of `ZerosConfig` by name, in the place of `zeros`.

    Example:

    ```python
    >>> from reluformer.training.zeros import ZerosCallback

    >>> schedule = ZerosCallback(l1_weights=[0.001, 0.01], l1_steps=[100, 1000], threshold=0.01)
    ```"""

    def __init__(self, zeros: ZerosConfig | None = None, **fields: Any) -> None:
        if (zeros is None) == (not fields):
            raise UserError("ZerosCallback: give a ZerosConfig, or its arguments by name, and not both or neither")
        self.zeros = zeros or ZerosConfig(**fields)
        self.zeros.check()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Refuses a model or a number of updates that the schedule does not fit."""
        config = _ours(model).config
        if self.zeros.l1_weights and config.ffn_l1_weight:
            raise UserError(
                f"zeros.l1_weights: the model has ffn_l1_weight={config.ffn_l1_weight}, which they would replace; set it to 0, "
                "or leave them out"
            )
        activation = config.activation_function
        if activation == "softmax":
            raise UserError("zeros: the model's feed-forward networks are softmax memories, which have no zeros")
        if self.zeros.stochastic_probability and activation != "relu":
            raise UserError(
                f"zeros.stochastic_probability: the model's activation is {activation!r}; stochastic activations end as ReLU, so "
                "give activation_function='relu'"
            )
        pattern = config.activation_sparsity_pattern
        if self.zeros.stochastic_probability and all(pattern if isinstance(pattern, list) else [pattern]):
            raise UserError(
                f"zeros.stochastic_probability: the model has activation_sparsity_pattern={pattern}, which leaves no score below "
                "0 to draw from; leave one of them out"
            )
        for name, step in (
            ("l1_steps", max(self.zeros.l1_steps, default=0)),
            ("threshold_step", self.zeros.threshold_step),
        ):
            if step is not None and step > state.max_steps:
                logger.warning("zeros.%s: update %d is never reached; training has %d", name, step, state.max_steps)

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """What holds for the next update, all of its steps of accumulation alike."""
        found, zeros = _ours(model), self.zeros
        found.scheduled_ffn_l1_weight = zeros.l1_weight(state.global_step)
        if zeros.stochastic_probability:
            set_zeros(found, negative_probability=zeros.negative_probability(state.global_step, state.max_steps))
        if zeros.threshold_step is not None and state.global_step >= zeros.threshold_step:
            set_zeros(found, threshold=zeros.threshold)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """The model as it is used from now on: no L1 term but its own, ReLUs, and the threshold."""
        found, zeros = _ours(model), self.zeros
        found.scheduled_ffn_l1_weight = None
        if zeros.stochastic_probability:
            set_zeros(found, negative_probability=0.0)
        if not zeros.threshold:
            return
        step = state.max_steps if zeros.threshold_step is None else zeros.threshold_step
        if state.global_step >= step:
            set_zeros(found, threshold=zeros.threshold)
        else:
            logger.warning(
                "zeros.threshold: not set, since training ended at update %d, before %d", state.global_step, step
            )


def _ours(model: nn.Module | None) -> AttentionPreTrainedModel:
    """The model of this package inside what a Trainer trains."""
    found = next(
        (part for part in (model or nn.Module()).modules() if isinstance(part, AttentionPreTrainedModel)), None
    )
    if found is None:
        raise UserError(
            f"ZerosCallback: {type(model).__name__} is no model of this package; its loss and activations cannot be scheduled"
        )
    return found


def set_zeros(model: AttentionPreTrainedModel, **changes: float) -> None:
    """`FeedForward.set_zeros` of every feed-forward network; a threshold also becomes the config's."""
    if "threshold" in changes:
        model.config.ffn_threshold = changes["threshold"]
    for part in model.modules():
        if isinstance(part, FeedForward):
            part.set_zeros(**changes)
