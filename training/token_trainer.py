"""What the trainers of texts have in common: their loss is a mean over tokens, and needs no logits to be kept."""

from __future__ import annotations

from typing import Any

import torch

from reluformer.training.run_trainer import RunTrainer


class TokenTrainer(RunTrainer):
    """A `RunTrainer` whose items are the tokens that are predicted: those whose label is not -100."""

    items = "target_tokens"

    def count_items(self, labels: torch.Tensor) -> torch.Tensor:
        """Target tokens."""
        return labels.ne(-100).sum()

    def inputs_of_the_loss(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Asks the model for its loss alone, if it can skip the logits and no other loss is computed from them."""
        can_skip = hasattr(getattr(self.model, "config", None), "skip_logits")
        needed = self.label_smoother is not None or self.compute_loss_func is not None
        return {**inputs, "skip_logits": True} if can_skip and not needed else inputs

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """As in `Trainer`; rows that stand in the last batch a second time do not count."""
        if prediction_loss_only and "labels" in inputs:
            inputs = self.inputs_of_the_loss(inputs)
        labels = inputs.get("labels")
        if labels is not None and (count := self.rows_that_count(len(labels), labels.device)) is not None:
            inputs = {**inputs, "labels": labels.masked_fill(~count.unsqueeze(1), -100)}
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys, **kwargs)
