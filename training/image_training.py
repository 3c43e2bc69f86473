"""What is particular to image classification in a run; the rest is `driver`'s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import BaseImageProcessor, PreTrainedModel, default_data_collator, set_seed

from reluformer import ReLUFormerForImageClassification, ReLUFormerVisionConfig
from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.image_recipe import ImageRecipe
from reluformer.configuration.splits import SPLITS
from reluformer.configuration_attention import require_attention_implementation
from reluformer.configuration_vision import pair
from reluformer.training.data.image_batches import AugmentedPixelValues, PixelValues
from reluformer.training.data.images import ImageSplit, has_image_split, load_image_split
from reluformer.training.driver import FinishedRun, Task
from reluformer.training.image_trainer import ImageTrainer
from reluformer.training.run.initialization import changed_config, load_config, load_weights
from reluformer.training.run.launch import check_launch, is_sharded
from reluformer.training.run.needed_packages import check_packages
from reluformer.training.run.progress import say
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
    fields = dict(recipe.model)
    attn_implementation = fields.pop("attn_implementation", None)
    for name in _FROM_THE_DATA:
        if name in fields:
            raise UserError(f"model.{name}: follows from the data; leave it out (see data.class_names)")
    fields.setdefault("problem_type", "single_label_classification")
    if fields["problem_type"] not in ("single_label_classification", "multi_label_classification"):
        raise UserError(
            f"model.problem_type: {fields['problem_type']!r} has no classes; choose single_label_classification (softmax) or "
            "multi_label_classification (sigmoids)"
        )
    names = class_names or recipe.data.class_names
    if names is not None and len(names) < 2:
        raise UserError(f"data: there is one class, {names[0]!r}; a classifier needs at least two")
    classes = {} if names is None else _classes(names)
    try:
        if recipe.initialize_from is None:
            preset = fields.pop("preset", "relu_vit")
            config = ReLUFormerVisionConfig.from_preset(preset, **fields, **classes)
        else:
            config = _of_checkpoint(recipe.initialize_from, fields, classes)
        if attn_implementation is not None:
            require_attention_implementation(config.attention_activation, attn_implementation)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise error if isinstance(error, UserError) else UserError(f"model: {one_line(error)}") from error
    config._attn_implementation = attn_implementation
    return config


def _classes(names: list[str]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}


def _of_checkpoint(name: str, fields: Mapping[str, Any], classes: Mapping[str, Any]) -> ReLUFormerVisionConfig:
    fields = {key: value for key, value in fields.items() if key != "size"}
    try:
        checkpoint = load_config(name, ReLUFormerVisionConfig)
    except UserError as error:
        raise UserError(f"initialize_from: {error}") from error
    if classes and checkpoint.num_labels != len(classes["id2label"]):
        raise UserError(
            f"initialize_from: {name}: knows {checkpoint.num_labels} classes, the data have {len(classes['id2label'])}; start "
            "from a model of as many"
        )
    return changed_config(checkpoint, {**fields, **classes})


def _check(recipe: ImageRecipe) -> None:
    """Finds what is wrong with the recipe before its pictures are read."""
    check_launch(recipe)
    build_image_config(recipe)
    check_packages(recipe, lambda: ReLUFormerForImageClassification(build_image_config(recipe)))
    for split in recipe.evaluation.splits:
        if not has_image_split(recipe.data, split):
            raise UserError(f"evaluation.splits: the recipe's data has no {split} split; name others or give its files")
    if recipe.training.eval_strategy != "no" and not has_image_split(recipe.data, "validation"):
        raise UserError(
            "training.eval_strategy: the recipe's data has no validation split; set it to no, or give files"
        )


def _prepare(recipe: ImageRecipe, resume_from: Path | None) -> PreparedImages:
    """Reads every split that training or evaluation will read: faults are found before the first update."""
    config = build_image_config(recipe)
    size, channels = pair(config.image_size), config.num_channels
    wanted = {"train", *recipe.evaluation.splits}
    if recipe.training.eval_strategy != "no":
        wanted.add("validation")
    splits = {}
    for split in (name for name in SPLITS if name in wanted):
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
    """What resizes a user's picture to the model's size and scales it to values from -1 to 1: ViT's, through Pillow."""
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    height, width = pair(config.image_size)
    half = [0.5] * config.num_channels
    return ViTImageProcessorPil(size={"height": height, "width": width}, image_mean=half, image_std=half)


def _some(names: list[str], shown: int = 5) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def _build(recipe: ImageRecipe, data: PreparedImages) -> PreTrainedModel:
    config = build_image_config(recipe, data.splits["train"].class_names)
    set_seed(recipe.training.seed)
    if recipe.initialize_from is None:
        return ReLUFormerForImageClassification(config)
    model, new = load_weights(recipe.initialize_from, config, dtype=torch.float32)
    if new:
        say(recipe, f"{len(new)} parameters are new and untrained, the first is {new[0]}")
    return model


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
    model = trainer.accelerator.unwrap_model(trainer.model)
    if is_sharded(recipe):
        model = ReLUFormerForImageClassification.from_pretrained(recipe.run_folder).to(recipe.training.device)
    if recipe.evaluation.attn_implementation is not None:
        model.set_attn_implementation(recipe.evaluation.attn_implementation)
    splits = recipe.evaluation.splits
    scores = {split: evaluate_image_split(recipe, split, model, command=command) for split in splits}
    return FinishedRun(recipe, model, data.processor, trainer.state.log_history, scores)


IMAGE_CLASSIFICATION = Task(_check, _prepare, _build, _trainer, _evaluate)
