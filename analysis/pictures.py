"""The pictures of an analysis of a classifier: a folder with a folder for each class, or two IDX files."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import AutoImageProcessor, BaseImageProcessor, PreTrainedModel

from reluformer.analysis.collection import ImageBatch
from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.image_recipe import FolderConfig, IdxFiles, ImageDataConfig
from reluformer.modeling_reluformer.configuration_vision import pair
from reluformer.training.data.images import ImageSplit, load_image_split


@dataclass(frozen=True)
class Pictures:
    """What is read, and with what the model's input is made of it. classes: the model's number of each class of the split."""

    split: ImageSplit
    classes: list[int]
    processor: BaseImageProcessor

    @property
    def facts(self) -> dict[str, Any]:
        """What a result says about them."""
        return {"pictures": len(self.split), "classes": len(self.classes)}


def read_pictures(images: str, labels: str | None, model_name: str, model: PreTrainedModel) -> Pictures:
    """The pictures of a folder of class folders, or with `labels` of two IDX files.

    Raises:
        UserError: files that are missing or damaged, classes that the model does not know, a model without image processor, or
            one whose configuration does not say which pictures it takes.
    """
    if lacking := [name for name in ("image_size", "patch_size", "num_channels") if not hasattr(model.config, name)]:
        raise UserError(f"--images: the configuration of {model_name} has no {lacking[0]}; give a model such as a ViT")
    is_folder = Path(images).expanduser().is_dir()
    if is_folder == (labels is not None):
        raise UserError(
            f"--images: {images!r} is {'a folder' if is_folder else 'no folder'}; give a folder with a folder for each class, "
            "or an IDX file and --image_labels"
        )
    source = (
        {"folder": FolderConfig(path=images, test=".")}
        if is_folder
        else {"test": IdxFiles(images=images, labels=labels)}
    )
    split = load_image_split(
        ImageDataConfig(**source), "test", pair(model.config.image_size), model.config.num_channels
    )
    known = model.config.label2id if is_folder else {str(number): number for number in range(model.config.num_labels)}
    if unknown := [name for name in split.class_names if name not in known]:
        names = ", ".join(list(map(str, known))[:5])
        raise UserError(
            f"--images: the class {unknown[0]!r} is none of the model's {len(known)}, {names} …; rename its folder"
        )
    try:
        processor = AutoImageProcessor.from_pretrained(model_name, trust_remote_code=False)
    except Exception as error:  # what a damaged file makes the libraries raise is of any kind
        raise UserError(f"{model_name}: its image processor cannot be loaded: {one_line(error)}") from error
    return Pictures(split, [int(known[name]) for name in split.class_names], processor)


def image_batches(pictures: Pictures, model: PreTrainedModel, *, batch_tokens: int) -> Generator[ImageBatch]:
    """All pictures in order.

    Args:
        pictures: of `read_pictures`. model: they go to its device.
        batch_tokens: patches of a batch; a picture of more is a batch of its own.
    """
    config, split = model.config, pictures.split
    sizes = zip(pair(config.image_size), pair(config.patch_size), strict=True)
    height, width = (pixels // patch for pixels, patch in sizes)
    tokens = height * width + (getattr(config, "pooling", "cls") == "cls")
    size = max(1, batch_tokens // tokens)
    for start in tqdm(range(0, len(split), size), desc="analysing", unit="batch", disable=None):
        numbers = range(start, min(start + size, len(split)))
        images = split.images(numbers, config.num_channels)
        if config.num_channels == 1:
            images = [torch.from_numpy(split.pixels([number], pair(config.image_size), 1)[0]) for number in numbers]
        labels = torch.tensor([pictures.classes[split.labels[number]] for number in numbers])
        pixel_values = pictures.processor(images=images, return_tensors="pt")["pixel_values"]
        yield ImageBatch(pixel_values.to(model.device, model.dtype), labels.to(model.device), tokens)
