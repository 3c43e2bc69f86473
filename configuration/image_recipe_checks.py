"""What a recipe of image classification may not say although its types are right; see `recipe_checks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_checks import check_splits, only_origin

if TYPE_CHECKING:
    from reluformer.configuration.image_recipe import AugmentationConfig, ImageDataConfig, ImageRecipe

# Arguments that the batches of pictures or the model's own loss would make void: refused, never ignored.
REPLACED_ARGUMENTS = {
    "label_smoothing_factor": "leave it out: smoothing in the trainer would drop the model's regulariser",
    "auto_find_batch_size": "set training.per_device_train_batch_size: a run keeps the batches it began with",
    "train_sampling_strategy": "pictures are reshuffled every epoch already",
    "average_tokens_across_devices": "the loss is a mean over the pictures of all processes, however they are dealt out",
    "batch_eval_metrics": "two numbers a picture are kept for the accuracy",
    "dataloader_drop_last": "the last batch of an epoch holds the pictures that are left",
}


def check_image_recipe(recipe: ImageRecipe) -> None:
    """Raises `UserError` for values that cannot be trained."""
    _check_data(recipe.data)
    _check_augmentation(recipe.augmentation)
    if recipe.evaluation.batch_size < 1:
        raise UserError(f"evaluation.batch_size: {recipe.evaluation.batch_size} must be at least 1")
    if not all(0 < std < float("inf") for std in recipe.evaluation.noise):
        raise UserError(f"evaluation.noise: {recipe.evaluation.noise} must be numbers above 0")
    check_splits(recipe.evaluation.splits)
    recipe.check_settings(REPLACED_ARGUMENTS)


def _check_data(data: ImageDataConfig) -> None:
    origins = {
        "train/validation/test": any((data.train, data.validation, data.test)),
        "folder": data.folder is not None,
        "dataset": data.dataset is not None,
    }
    if only_origin(origins) == "train/validation/test" and data.train is None:
        raise UserError("data: the files of `train` are missing; give data.train.images and data.train.labels")
    if data.class_names is not None and len(set(data.class_names)) != len(data.class_names):
        raise UserError(f"data.class_names: {data.class_names} names a class twice; give each its own name")


def _check_augmentation(augmentation: AugmentationConfig) -> None:
    if augmentation.random_crop_padding < 0:
        raise UserError(f"augmentation.random_crop_padding: {augmentation.random_crop_padding} must be at least 0")
    if not 0 <= augmentation.mixup_alpha < float("inf"):
        raise UserError(f"augmentation.mixup_alpha: {augmentation.mixup_alpha} must be a number of at least 0")
    if not 0 <= augmentation.random_labels <= 1:
        raise UserError(f"augmentation.random_labels: {augmentation.random_labels} must be from 0 to 1")
    share = augmentation.random_resized_crop
    if share is not None and (len(share) != 2 or not 0 < share[0] <= share[1] <= 1):
        raise UserError(
            f"augmentation.random_resized_crop: {share} must be the least and the most share of the area, such as [0.05, 1.0]"
        )
