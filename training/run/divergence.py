"""Watches a training for what it does not recover from: a loss that is NaN or explodes, attention whose weights are all zero."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import PreTrainedConfig, Trainer, TrainerCallback

from reluformer.configuration.errors import UserError

logger = logging.getLogger(__name__)

# All are looked for once in so many updates, since looking makes the device wait: found after at most twice as many.
CHECK_EVERY = 25
# Times the cross-entropy of guessing, which is that of all tokens alike: new weights are close to it, and a model whose mean over
# the updates between two looks is so far above has lost what it began with.
EXPLODED = 2.0


@dataclass(frozen=True)
class Divergence:
    """Why a training ended before its time.

    Args:
        step: the first update with a loss that is not finite.
        reason: in words.
    """

    step: int
    reason: str


class DivergenceWatch(TrainerCallback):
    """Finds a loss of NaN or infinity, one that explodes, and attention modules in which every row of every head is dead (S = 0).

    With `stop` each raises a `UserError`. With `record` a loss that is not finite ends the training in an orderly way and
    stands in `divergence`. A dead module does not end it: the residual connection goes around the module, and such runs can
    still translate; it stands in `dead_modules`. A cross-entropy that exploded does not either; it stands in `exploded`.

    Args:
        trainer: whose training is watched.
        on_divergence: `stop` or `record`, as in the recipe.

    Attributes:
        divergence: None unless the training was ended.
        dead_modules: name of a module → first and last update of the time it was found dead, at a resolution of
            `CHECK_EVERY` updates.
        exploded: None, or the `first` and `last` update of the time when the mean cross-entropy between two looks was more than
            `EXPLODED` times that of guessing, the `worst` mean and that of `guessing`.
    """

    def __init__(self, trainer: Trainer, on_divergence: Literal["stop", "record"]) -> None:
        self.divergence: Divergence | None = None
        self.dead_modules: dict[str, dict[str, int]] = {}
        self.exploded: dict[str, float] | None = None
        self._trainer = trainer
        self._stops = on_divergence == "stop"
        self._update = 0
        self._hooks: list[Any] = []
        self._clear()

    def _clear(self) -> None:
        self._first_bad: torch.Tensor | None = None
        self._dead_and_rows: torch.Tensor | None = None
        self._cross_entropy: torch.Tensor | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        self._names = _attention_names(model)
        self._update = self._looked = state.global_step
        self._guessing = math.log(_choices(model.config))
        self._hooks = [
            model.register_forward_hook(self._see_loss),
            model.base_model.register_forward_hook(self._see_figures),
        ]

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._update = state.global_step + 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % CHECK_EVERY and state.global_step < state.max_steps:
            return
        first_bad, dead, mean = (
            self._first_bad_update(),
            self._dead_names(),
            self._mean_cross_entropy(state.global_step),
        )
        begin, self._looked = self._looked + 1, state.global_step
        self._clear()
        if first_bad:
            self._not_finite(first_bad, control)
        elif dead:
            self._dead(dead, state.global_step)
        if not first_bad and mean > EXPLODED * self._guessing:
            self._explosion(mean, begin, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._remove_hooks()

    def _see_loss(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        loss = getattr(output, "loss", None)
        if not module.training or loss is None:
            return
        # The parts of an update, on all processes, are sums divided by its number of target tokens: together they are its mean.
        part = getattr(output, "cross_entropy", loss)
        part = (loss if part is None else part).detach().float()
        self._cross_entropy = part if self._cross_entropy is None else self._cross_entropy + part
        bad = (~torch.isfinite(loss.detach())).long() * self._update
        # 0 as long as all was well, then the update at which it was not
        self._first_bad = bad if self._first_bad is None else torch.where(self._first_bad > 0, self._first_bad, bad)

    def _see_figures(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        figures = getattr(output, "attention_figures", None)
        if not module.training or figures is None:
            return
        dead_and_rows = figures.detach()[:, 3:5].double()
        self._dead_and_rows = dead_and_rows if self._dead_and_rows is None else self._dead_and_rows + dead_and_rows

    def _first_bad_update(self) -> int:
        """Of all processes; 0 for none. Every process must call this."""
        if self._first_bad is None:
            return 0
        updates = self._trainer.accelerator.gather(self._first_bad.reshape(1)).tolist()
        return min((update for update in updates if update), default=0)

    def _dead_names(self) -> list[str]:
        """Modules that had no live row since the last look, in any process. Every process must call this."""
        if self._dead_and_rows is None:
            return []
        dead_and_rows = self._trainer.accelerator.reduce(self._dead_and_rows, reduction="sum")
        dead, rows = dead_and_rows.unbind(dim=1)
        # Means over the heads: the last digit may be rounded.
        indices = torch.nonzero((rows > 0) & (dead >= rows * (1 - 1e-6))).flatten().tolist()
        return [self._names[index] for index in indices]

    def _mean_cross_entropy(self, update: int) -> float:
        """Of the updates since the last look. Every process must call this."""
        if self._cross_entropy is None:
            return 0.0
        total = self._trainer.accelerator.reduce(self._cross_entropy, reduction="sum").item()
        return total / (update - self._looked)

    def _explosion(self, mean: float, first: int, update: int) -> None:
        reason = (
            f"the mean cross-entropy of updates {first} to {update} is {mean:.1f}, where guessing, all tokens alike, has "
            f"{self._guessing:.1f}"
        )
        if self._stops:
            self._remove_hooks()
            raise UserError(
                f"training diverged: {reason}; lower training.learning_rate, lengthen training.warmup_steps, or, with "
                "point-wise attention, raise model.attention_gamma (on_divergence: record goes on and keeps such a run as a "
                "result)"
            )
        if self.exploded is None:
            logger.warning("training diverges: %s", reason)
            self.exploded = {"first": first, "worst": mean, "guessing": self._guessing}
        self.exploded |= {"last": update, "worst": max(mean, self.exploded["worst"])}

    def _not_finite(self, update: int, control: Any) -> None:
        reason = f"the loss is not finite since update {update}"
        if self._stops:
            self._remove_hooks()
            raise UserError(
                f"training diverged: {reason}; lower training.learning_rate, lengthen training.warmup_steps, or, with "
                "point-wise attention, raise model.attention_gamma (on_divergence: record keeps such a run as a result)"
            )
        self.divergence = Divergence(update, reason)
        control.should_training_stop = True
        control.should_save = control.should_evaluate = False

    def _dead(self, names: list[str], update: int) -> None:
        first = max(update - CHECK_EVERY + 1, 1)
        if self._stops:
            self._remove_hooks()
            raise UserError(
                f"training diverged: all rows of {', '.join(names)} are dead (no key has a positive weight) since update "
                f"{first} or before; raise model.regularization_weight or model.attention_gamma, or lower "
                "training.learning_rate (on_divergence: record goes on and keeps such a run as a result)"
            )
        for name in names:
            if name not in self.dead_modules:
                logger.warning("all rows of %s are dead since update %d or before", name, first)
            self.dead_modules.setdefault(name, {"first": first})["last"] = update

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _choices(config: PreTrainedConfig) -> int:
    """Among how many the model chooses: pieces of the side that it writes, or classes."""
    sizes = (getattr(config, name, None) for name in ("decoder_vocab_size", "vocab_size"))
    return next(filter(None, sizes), max(config.num_labels, 2))


def _attention_names(model: torch.nn.Module) -> list[str]:
    """Names of the attention modules in the order of the model's figures: encoder, then each decoder layer's self and cross."""
    prefix = f"{model.base_model_prefix}."
    return [
        name.removeprefix(prefix) for name, _ in model.named_modules() if name.endswith(("self_attn", "encoder_attn"))
    ]
