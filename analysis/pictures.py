"""The pictures of an analysis of a classifier: a folder with a folder for each class, or two IDX files."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from PIL import Image
from tqdm.auto import tqdm
from transformers import AutoImageProcessor, BaseImageProcessor, PreTrainedModel

from reluformer.analysis.collection import ImageBatch
from reluformer.configuration.errors import UserError, one_line
from reluformer.modeling_reluformer.configuration_vision import pair


@dataclass(frozen=True)
class Pictures:
    """What is read, and with what the model's input is made of it.

    images: bytes (pictures, height, width), or rows with a column "image". labels: the model's number of each picture's class.
    """

    images: np.ndarray | datasets.Dataset
    labels: np.ndarray
    processor: BaseImageProcessor

    @property
    def facts(self) -> dict[str, Any]:
        """What a result says about them."""
        return {"pictures": len(self.labels), "classes": len(np.unique(self.labels))}

    def image(self, number: int) -> Image.Image:
        """One of them, as PIL's."""
        found = self.images[number]
        return Image.fromarray(found) if isinstance(found, np.ndarray) else found["image"]


def read_idx(path: str | Path, dimensions: int) -> np.ndarray:
    """The unsigned bytes of a file of the form of MNIST (IDX), plain or .gz.

    Args:
        path: of the file.
        dimensions: 3 for pictures (pictures, height, width), 1 for labels.

    Raises:
        UserError: the file is missing, damaged, or holds something else.
    """
    path = Path(path).expanduser()
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({one_line(error)}); give an IDX file, as MNIST has them") from error
    header = 4 + 4 * dimensions
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) - header != math.prod(shape):
        raise UserError(
            f"{path}: is no IDX file of bytes in {dimensions} dimensions, or is cut off; pictures and labels are two files"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


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
    read, numbers = _of_folder(images, model) if is_folder else _of_idx(images, labels, model)
    try:
        processor = AutoImageProcessor.from_pretrained(model_name, trust_remote_code=False)
    except Exception as error:  # what a damaged file makes the libraries raise is of any kind
        raise UserError(f"{model_name}: its image processor cannot be loaded: {one_line(error)}") from error
    return Pictures(read, numbers, processor)


def _of_folder(folder: str, model: PreTrainedModel) -> tuple[datasets.Dataset, np.ndarray]:
    try:
        rows = datasets.load_dataset(
            "imagefolder", data_dir=str(Path(folder).expanduser()), split="train", drop_labels=False
        )
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(f"--images: {folder!r} cannot be loaded: {one_line(error)}") from error
    names, known = rows.features["label"].names, model.config.label2id
    if unknown := [name for name in names if name not in known]:
        told = ", ".join(list(map(str, known))[:5])
        raise UserError(
            f"--images: the class {unknown[0]!r} is none of the model's {len(known)}, {told} …; rename its folder"
        )
    return rows, np.array([int(known[names[label]]) for label in rows["label"]])


def _of_idx(images: str, labels: str, model: PreTrainedModel) -> tuple[np.ndarray, np.ndarray]:
    read, numbers = read_idx(images, 3), read_idx(labels, 1).astype(np.int64)
    if len(read) != len(numbers) or not len(numbers):
        raise UserError(f"--images: {images} holds {len(read):,} pictures, {labels} {len(numbers):,} labels")
    if numbers.max() >= model.config.num_labels:
        raise UserError(
            f"--image_labels: {labels} holds the class {numbers.max()}, the model has {model.config.num_labels}"
        )
    return read, numbers


def image_batches(pictures: Pictures, model: PreTrainedModel, *, batch_tokens: int) -> Generator[ImageBatch]:
    """All pictures in order.

    Args:
        pictures: of `read_pictures`. model: they go to its device.
        batch_tokens: patches of a batch; a picture of more is a batch of its own.
    """
    config = model.config
    sizes = zip(pair(config.image_size), pair(config.patch_size), strict=True)
    height, width = (pixels // patch for pixels, patch in sizes)
    tokens = height * width + (getattr(config, "pooling", "cls") == "cls")
    count, size = len(pictures.labels), max(1, batch_tokens // tokens)
    for start in tqdm(range(0, count, size), desc="analysing", unit="batch", disable=None):
        numbers = range(start, min(start + size, count))
        images = [_converted(pictures.image(number), config) for number in numbers]
        pixel_values = pictures.processor(images=images, return_tensors="pt")["pixel_values"]
        labels = torch.from_numpy(pictures.labels[start : numbers.stop])
        yield ImageBatch(pixel_values.to(model.device, model.dtype), labels.to(model.device), tokens)


def _converted(image: Image.Image, config: Any) -> Image.Image | torch.Tensor:
    """With as many channels as the model takes; a processor wants the one of a grey picture as a dimension of its own."""
    if config.num_channels != 1:
        return image.convert("RGB")
    grey = image.convert("L").resize(pair(config.image_size)[::-1], Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(grey))[..., None]
