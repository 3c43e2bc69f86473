"""The loss of image classification, without the regulariser, and the labels that it takes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.utils import is_torchdynamo_compiling

from .loss_reluformer import IGNORED_LABEL
from .visibility_reluformer import wide

_ROUNDING = 0.01  # of shares in bfloat16


def problem_type_of(problem_type: str | None, num_labels: int, labels: Tensor) -> str:
    """What the labels ask for where the configuration does not say, by the rule of Transformers.

    Raises:
        ValueError: labels that are no tensor.
    """
    if not isinstance(labels, Tensor):
        raise ValueError(f"labels must be a tensor, (batch,) or (batch, num_labels); got {type(labels).__name__}.")
    if problem_type is not None:
        return problem_type
    if num_labels == 1:
        return "regression"
    return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"


def check_image_labels(labels: Tensor, images: int, num_labels: int, problem_type: str) -> None:
    """Refuses labels that do not fit the pictures, the classes or the kind of problem.

    On a GPU the values of labels are not looked at: the check would have to wait for the device, whose own assertion stops such
    a batch.

    Raises:
        ValueError: labels of another shape or dtype; shares or truths outside of 0 to 1, or shares that do not sum to 1.
        IndexError: a label that is no class and not -100.
    """
    found = f"got {labels.dtype} {tuple(labels.shape)}."
    classes = labels.dtype in (torch.int64, torch.int32) and labels.shape == (images,)
    shares = labels.is_floating_point() and labels.shape == (images, num_labels)
    if problem_type == "single_label_classification" and not (classes or shares):
        raise ValueError(
            f"labels must be the numbers of the classes, integers of the shape (batch,) = ({images},), or the share of each "
            f"class, (batch, num_labels) = ({images}, {num_labels}); {found}"
        )
    if problem_type == "multi_label_classification" and not shares:
        raise ValueError(
            "labels of problem_type='multi_label_classification' must be floats of the shape (batch, num_labels) = "
            f"({images}, {num_labels}); {found} For one class a picture, give integers of the shape (batch,)."
        )
    outputs = labels.unsqueeze(1) if labels.ndim == 1 else labels
    if problem_type == "regression" and outputs.shape != (images, num_labels):
        raise ValueError(
            f"labels of problem_type='regression' must have the shape (batch, num_labels) = ({images}, {num_labels}); {found}"
        )
    if is_torchdynamo_compiling() or labels.device.type != "cpu":
        return
    if classes and problem_type == "single_label_classification":
        _check_classes(labels, num_labels)
    elif shares and problem_type != "regression":
        _check_shares(labels[counted_images(labels)], problem_type)


def _check_classes(labels: Tensor, num_labels: int) -> None:
    wrong = labels[((labels < 0) & (labels != IGNORED_LABEL)) | (labels >= num_labels)]
    if wrong.numel():
        raise IndexError(
            f"labels holds the class {int(wrong[0])}; a model of num_labels={num_labels} has the classes 0 to {num_labels - 1}, "
            f"and {IGNORED_LABEL} stands for a picture that does not count."
        )


def _check_shares(labels: Tensor, problem_type: str) -> None:
    wrong = labels[~((labels >= 0) & (labels <= 1 + _ROUNDING))]  # NaN is neither
    if wrong.numel():
        raise ValueError(
            f"labels of floats must be from 0 to 1 for each class of problem_type={problem_type!r}; got {wrong[0]:g}."
        )
    sums = labels.float().sum(-1)
    wrong = sums[(sums - 1).abs() > _ROUNDING]
    if problem_type == "single_label_classification" and wrong.numel():
        raise ValueError(
            f"labels of floats must be the shares of the classes in a picture, which sum to 1; got a sum of {wrong[0]:g}. For "
            "classes that are true or not, each by itself, set problem_type='multi_label_classification'."
        )


def counted_images(labels: Tensor) -> Tensor:
    """Which pictures count, (batch,) of bool: not those whose label, or the label of each class, is -100."""
    counted = labels != IGNORED_LABEL
    return counted if labels.ndim == 1 else counted.any(-1)


def classification_loss_sum(logits: Tensor, labels: Tensor, problem_type: str) -> Tensor:
    """The loss of all pictures that count, summed; a scalar. Its means are those of Transformers' `ForImageClassification`.

    Args:
        logits: (batch, num_labels).
        labels: (batch,) classes or (batch, num_labels) shares; -100 where a picture does not count.
        problem_type: `single_label_classification`, cross-entropy; `multi_label_classification`, the binary cross-entropy of the
            sigmoids, a mean over the classes; `regression`, the squared error, a mean over the outputs.
    """
    logits = logits.to(wide(logits.dtype))
    if problem_type == "single_label_classification" and not labels.is_floating_point():
        return nn.functional.cross_entropy(logits, labels.long(), ignore_index=IGNORED_LABEL, reduction="sum")
    labels = labels.to(logits.dtype).view_as(logits)
    if problem_type == "regression":
        return nn.functional.mse_loss(logits, labels, reduction="sum") / logits.shape[1]
    counted = counted_images(labels).unsqueeze(1)
    if problem_type == "single_label_classification":  # a picture of no share adds nothing
        return nn.functional.cross_entropy(logits, labels * counted, reduction="sum")
    weight = counted.to(logits.dtype)
    loss_sum = nn.functional.binary_cross_entropy_with_logits(logits, labels, weight, reduction="sum")
    return loss_sum / logits.shape[1]


def images_of_the_update(labels: Tensor, num_items_in_batch: Tensor | int) -> Tensor | float:
    """Pictures that count in the whole update, of which the Trainer counts the entries of `labels`: one a picture, or several."""
    return num_items_in_batch / (1 if labels.ndim == 1 else labels.shape[1])


__all__ = ["check_image_labels", "classification_loss_sum", "counted_images", "images_of_the_update", "problem_type_of"]
