"""What is particular to image classification in a run; the rest is `driver`'s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import BaseImageProcessor, PreTrainedModel, default_data_collator

from reluformer import ReLUFormerForImageClassification, ReLUFormerVisionConfig
from reluformer.configuration.errors import UserError
from reluformer.configuration.image_recipe import ImageRecipe
from reluformer.modeling_reluformer.configuration_vision import pair
from reluformer.training.data.image_batches import AugmentedPixelValues, PixelValues
from reluformer.training.data.images import ImageSplit, has_image_split, load_image_split
from reluformer.training.driver import FinishedRun, Task, model_to_evaluate, require_splits, splits_to_read
from reluformer.training.image_trainer import ImageTrainer
from reluformer.training.run.progress import say
from reluformer.training.run.recipe_models import (
    checkpoint_config,
    configured,
    model_to_train,
    refuse_fields,
    require_evaluation_attention,
)
from reluformer.training.scoring.image_evaluation import evaluate_image_split

_FROM_THE_DATA = ("num_labels", "id2label", "label2id")


@dataclass(frozen=True)
class PreparedImages:
    """The splits that training reads, by name, and what makes a model's input of a user's picture."""

    splits: dict[str, ImageSplit]
    processor: BaseImageProcessor


def build_image_config(recipe: ImageRecipe, class_names: list[str] | None = None) -> ReLUFormerVisionConfig:
    """The model's configuration; without names of classes a preliminary one, to find mistakes before pictures are read.

    Raises:
        UserError: an unknown field or preset, a bad value, or one that follows from the data.
    """
    refuse_fields(recipe, _FROM_THE_DATA, "follows from the data; leave it out (see data.class_names)")
    fields = {"problem_type": "single_label_classification", **recipe.model}
    if fields["problem_type"] not in ("single_label_classification", "multi_label_classification"):
        raise UserError(
            f"model.problem_type: {fields['problem_type']!r} has no classes; choose single_label_classification (softmax) or "
            "multi_label_classification (sigmoids)"
        )
    names = class_names or recipe.data.class_names
    if names is not None and len(names) < 2:
        raise UserError(f"data: there is one class, {names[0]!r}; a classifier needs at least two")
    classes = {} if names is None else _classes(names)
    checkpoint = checkpoint_config(recipe, ReLUFormerVisionConfig)
    if checkpoint is not None:
        fields.pop("size", None)
        _require_as_many_classes(recipe, checkpoint, classes)
    config = configured(ReLUFormerVisionConfig, fields, preset="relu_vit", derived=classes, checkpoint=checkpoint)
    require_evaluation_attention(recipe, config)
    return config


def _classes(names: list[str]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}


def _require_as_many_classes(
    recipe: ImageRecipe, checkpoint: ReLUFormerVisionConfig, classes: Mapping[str, Any]
) -> None:
    if classes and checkpoint.num_labels != len(classes["id2label"]):
        raise UserError(
            f"initialize_from: {recipe.initialize_from}: knows {checkpoint.num_labels} classes, the data have "
            f"{len(classes['id2label'])}; start from a model of as many"
        )


def _check(recipe: ImageRecipe) -> None:
    """Finds what is wrong with the recipe before its pictures are read."""
    build_image_config(recipe)
    require_splits(recipe, has_image_split)


def _prepare(recipe: ImageRecipe, resume_from: Path | None) -> PreparedImages:
    """Reads every split that training or evaluation will read: faults are found before the first update."""
    config = build_image_config(recipe)
    size, channels = pair(config.image_size), config.num_channels
    splits = {}
    for split in splits_to_read(recipe):
        splits[split] = load_image_split(recipe.data, split, size, channels)
        say(recipe, f"{split}: {len(splits[split]):,} pictures of {len(splits[split].class_names)} classes")
    names = splits["train"].class_names
    for split, found in splits.items():
        if found.class_names != names:
            raise UserError(
                f"data: the {split} split has the classes {_some(found.class_names)}, the training split {_some(names)}; they "
                "must be the same"
            )
    processor = image_processor(config)
    if recipe.training.should_save:
        processor.save_pretrained(recipe.run_folder)
    return PreparedImages(splits, processor)


def image_processor(config: ReLUFormerVisionConfig) -> BaseImageProcessor:
    """What resizes a user's picture to the model's size and scales it to values from -1 to 1: ViT's, through Pillow.

    For a model of three channels it makes grey pictures coloured and lays transparent ones on white; one of a single channel
    needs grey ones.

    Args:
        config: of the model: `image_size` and `num_channels` count.
    """
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    height, width = pair(config.image_size)
    coloured = config.num_channels == 3
    # for one channel a number, which goes with any: a picture of too many then gets as far as the model, which says so
    half = [0.5] * 3 if coloured else 0.5
    size = {"height": height, "width": width}
    return ViTImageProcessorPil(size=size, image_mean=half, image_std=half, do_convert_rgb=coloured)


def _some(names: list[str], shown: int = 5) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def _build(recipe: ImageRecipe, data: PreparedImages) -> PreTrainedModel:
    config = build_image_config(recipe, data.splits["train"].class_names)
    return model_to_train(recipe, config, ReLUFormerForImageClassification)


def _trainer(recipe: ImageRecipe, data: PreparedImages, model: PreTrainedModel) -> ImageTrainer:
    config, training = model.config, recipe.training
    shape = pair(config.image_size), config.num_channels
    shares = config.problem_type == "multi_label_classification"
    seed = training.seed if training.data_seed is None else training.data_seed
    validation = data.splits.get("validation") if training.eval_strategy != "no" else None
    return ImageTrainer(
        model,
        training,
        data_collator=default_data_collator,
        train_dataset=AugmentedPixelValues(
            data.splits["train"], *shape, augmentation=recipe.augmentation, seed=seed, shares=shares
        ),
        eval_dataset=None if validation is None else PixelValues(validation, *shape, shares=shares),
        processing_class=data.processor,
    )


def _evaluate(recipe: ImageRecipe, trainer: ImageTrainer, data: PreparedImages, command: str | None) -> FinishedRun:
    model = model_to_evaluate(recipe, trainer, ReLUFormerForImageClassification)
    splits = recipe.evaluation.splits
    scores = {split: evaluate_image_split(recipe, split, model, command=command) for split in splits}
    return FinishedRun(recipe, model, data.processor, trainer.state.log_history, scores)


IMAGE_CLASSIFICATION = Task(_check, _prepare, _build, _trainer, _evaluate)
