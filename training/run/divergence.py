"""Watches a training for what it does not recover from: a loss that is NaN or explodes, attention whose weights are all
zero."""

from __future__ import annotations

import logging
import math
from typing import Any, Literal

import torch
from transformers import TrainerCallback

from reluformer.configuration.errors import UserError

logger = logging.getLogger(__name__)

# Times the cross-entropy of guessing, which is that of all tokens alike: new weights are close to it.
EXPLODED = 2.0
_REMEDY = (
    "lower training.learning_rate, lengthen training.warmup_steps, or, with point-wise attention, raise "
    "model.attention_gamma or model.regularization_weight (on_divergence: record keeps such a run as a result)"
)


class DivergenceWatch(TrainerCallback):
    """Looks at what the trainer logs: a loss that is not finite, a cross-entropy that exploded, attention modules in
    which every row of every head is dead (S = 0) since the last log.

    With `stop` each raises a `UserError`. With `record` a loss that is not finite ends the training in an orderly way;
    the other two do not: the residual connection goes around a dead module, and such runs can still translate.

    Attributes:
        divergence: None unless the training was ended; the `step` after which a loss that is not finite was logged, and
            the `reason` in words.
        dead_modules: name of a module → the first and the last update at which a log found it dead.
        exploded: None, or the `first` and `last` update at which a log had a mean cross-entropy of more than `EXPLODED`
            times that of guessing, the `worst` mean and that of `guessing`.
    """

    def __init__(self, trainer: Any, on_divergence: Literal["stop", "record"]) -> None:
        self.divergence: dict[str, Any] | None = None
        self.dead_modules: dict[str, dict[str, int]] = {}
        self.exploded: dict[str, float] | None = None
        self._trainer, self._stops = trainer, on_divergence == "stop"
        config = trainer.model.config
        sizes = (getattr(config, name, None) for name in ("decoder_vocab_size", "vocab_size"))
        self._guessing = math.log(next(filter(None, sizes), max(config.num_labels, 2)))
        self._dead_and_rows: torch.Tensor | int = 0  # (attention modules, 2), since the last log
        self._hook: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        self._hook = model.base_model.register_forward_hook(self._count_dead_rows)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._hook.remove()

    def _count_dead_rows(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        of_modules = getattr(output, "attention_sums", None)
        if module.training and of_modules is not None:
            self._dead_and_rows = self._dead_and_rows + of_modules.detach()[:, 3:5].double()

    _count_dead_rows.only_in_training = True  # does not keep an evaluation from the compiled path

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        loss, update = logs.get("loss", logs.get("train_loss")), state.global_step
        if loss is None or self.divergence is not None:
            return
        if not math.isfinite(loss):
            self.divergence = {"step": update, "reason": f"the loss is not finite at update {update}"}
            self._found(self.divergence["reason"], first=True)
            control.should_training_stop = True
            control.should_save = control.should_evaluate = False
        elif (mean := logs.get("cross_entropy", 0.0)) > EXPLODED * self._guessing:
            guessing = f"that of guessing is {self._guessing:.1f}"
            self._found(f"the mean cross-entropy is {mean:.1f} at update {update}, {guessing}", first=not self.exploded)
            before = self.exploded or {"first": update, "worst": mean, "guessing": self._guessing}
            self.exploded = {**before, "last": update, "worst": max(mean, before["worst"])}
        if torch.is_tensor(self._dead_and_rows):
            for name in self._names_of_the_dead():
                reason = f"all rows of {name} are dead at update {update}: no key has a positive weight"
                self._found(reason, first=name not in self.dead_modules)
                self.dead_modules.setdefault(name, {"first": update})["last"] = update

    def _names_of_the_dead(self) -> list[str]:
        """Modules that had no live row since the last log, in any process. Every process must call this."""
        dead, rows = self._trainer.accelerator.reduce(self._dead_and_rows, reduction="sum").unbind(dim=1)
        self._dead_and_rows = 0
        # Means over the heads: the last digit may be rounded.
        indices = torch.nonzero((rows > 0) & (dead >= rows * (1 - 1e-6))).flatten().tolist()
        # In the order of the model's figures: the encoder, then all self-attentions of the decoder, then its
        # cross-attentions.
        model = self._trainer.accelerator.unwrap_model(self._trainer.model).base_model
        names = [
            name for kind in ("self_attn", "encoder_attn") for name, _ in model.named_modules() if name.endswith(kind)
        ]
        return [names[index] for index in indices]

    def _found(self, reason: str, *, first: bool) -> None:
        if self._stops:
            raise UserError(f"training diverged: {reason}; {_REMEDY}")
        if first:
            logger.warning("training diverges: %s", reason)
