"""`Trainer` of pictures: augmented batches, and accuracy at every evaluation."""

from __future__ import annotations

from typing import Any

import torch
from transformers import EvalPrediction

from reluformer.configuration.scores import IMAGE_SCORES
from reluformer.modeling_reluformer.loss_vision import counted_images, images_of_the_update
from reluformer.training.data.image_batches import ImageBatchSampler
from reluformer.training.trainer import RunTrainer

TOP = 5


def hits(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Whether the class of each picture is the highest, and among the `TOP` highest: (batch, 2), 0 or 1, -1 where none counts.

    Of no more than `TOP` classes every one is among them: (batch, 1).

    Args:
        logits: (batch, classes).
        labels: (batch,) classes or (batch, classes) shares; -100 where a picture does not count.
    """
    classes = labels.argmax(-1) if labels.ndim == 2 else labels
    numbers = [number for number in (1, TOP) if number == 1 or number < logits.shape[-1]]
    found = logits.topk(numbers[-1], dim=-1).indices == classes.unsqueeze(-1)
    rows = torch.stack([found[:, :number].any(-1) for number in numbers], dim=1).to(torch.int8)
    return rows.masked_fill(~counted_images(labels).unsqueeze(1), -1)


def accuracies(rows: Any) -> dict[str, float]:
    """Accuracy and, of more than `TOP` classes, top-5 accuracy in percent, of what `hits` gives."""
    rows = torch.as_tensor(rows)
    counted = rows[rows[:, 0] >= 0].float()
    return dict(zip((score.name for score in IMAGE_SCORES), (100 * counted.mean(0)).tolist(), strict=False))


class ImageTrainer(RunTrainer):
    """Trains a classifier of pictures; it logs `images_per_second` and `eval_accuracy`, too.

    Args:
        model: a classifier whose `pixel_values` the data sets give.
        others: as in `Trainer`; batches are planned for `args.per_device_train_batch_size`.
    """

    items = "images"
    batch_key = "images_per_batch"

    def __init__(self, model: Any, args: Any, **kwargs: Any) -> None:
        self.batch_size = args.per_device_train_batch_size
        options = {"preprocess_logits_for_metrics": hits, "compute_metrics": _accuracies_of}
        super().__init__(model, args, **options, **kwargs)

    def plan_of_batches(self) -> ImageBatchSampler:
        """The plan of all training batches; the same on every process."""
        return ImageBatchSampler(len(self.train_dataset), self.batch_size, self.plan_seed, self.batches_per_update)

    def count_items(self, labels: torch.Tensor) -> torch.Tensor:
        """Pictures."""
        return counted_images(labels).sum()

    def divisor_of(self, num_items_in_batch: torch.Tensor | int, labels: torch.Tensor) -> torch.Tensor | int:
        """Pictures of the update: the Trainer counts entries of `labels`, of which a picture may have one for each class."""
        return images_of_the_update(labels, num_items_in_batch)

    def prediction_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """As in `Trainer`; pictures that stand in the last batch a second time do not count in the loss."""
        labels = inputs["labels"]
        count = self.rows_that_count(len(labels), labels.device)
        if count is not None:
            repeated = ~count if labels.ndim == 1 else ~count.unsqueeze(1)
            inputs = {**inputs, "labels": labels.masked_fill(repeated, -100)}
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)


def _accuracies_of(prediction: EvalPrediction) -> dict[str, float]:
    return accuracies(prediction.predictions)
