"""Pictures → batches of pixel values: the plan of an epoch, augmentation, MixUp. All follows from the seed and the epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from reluformer.configuration.errors import UserError
from reluformer.configuration.image_recipe import AugmentationConfig
from reluformer.training.data.images import ImageSplit
from reluformer.training.data.shuffled_batches import ShuffledBatches

Key = tuple[int, int]  # epoch, number of the picture


class ImageBatchSampler(ShuffledBatches):
    """Batches of an epoch by keys of epoch and number, since what is drawn for a picture follows from both."""

    def __iter__(self) -> Iterator[list[Key]]:
        for batch in super().__iter__():
            yield [(self.epoch, index) for index in batch]


class PixelValues(Dataset):
    """The pictures of a split as a model takes them: channels first, values from -1 to 1, as ViT's image processor makes them."""

    def __init__(self, split: ImageSplit, size: tuple[int, int], channels: int, *, shares: bool = False) -> None:
        """shares: labels are the share of each class, (classes,) floats, rather than its number."""
        self.split, self.size, self.channels, self.shares = split, size, channels, shares

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        return self._items(self.split.pixels(indices, self.size, self.channels), self._labels(indices))

    def _labels(self, indices: Sequence[int]) -> np.ndarray:
        labels = self.split.labels[np.asarray(indices)]
        return np.eye(len(self.split.class_names), dtype=np.float32)[labels] if self.shares else labels

    def _items(self, pixels: np.ndarray, labels: np.ndarray) -> list[dict[str, torch.Tensor]]:
        values = torch.from_numpy(pixels.astype(np.float32) / 127.5 - 1).permute(0, 3, 1, 2)
        return [
            {"pixel_values": value, "labels": label}
            for value, label in zip(values, torch.from_numpy(labels), strict=True)
        ]


class AugmentedPixelValues(PixelValues):
    """Training pictures, changed as the recipe says, by keys of epoch and number. A batch is drawn from its first key."""

    def __init__(
        self,
        split: ImageSplit,
        size: tuple[int, int],
        channels: int,
        *,
        augmentation: AugmentationConfig,
        seed: int,
        shares: bool = False,
    ) -> None:
        padding = augmentation.random_crop_padding
        if padding >= min(size):
            raise UserError(
                f"augmentation.random_crop_padding: {padding} would cut out zeros alone, since pictures have "
                f"{size[0]} × {size[1]} pixels; choose less"
            )
        if augmentation.random_labels:
            split = _with_random_labels(split, augmentation.random_labels, seed)
        super().__init__(split, size, channels, shares=shares or augmentation.mixup_alpha > 0)
        self.augmentation, self.seed = augmentation, seed

    def __getitems__(self, keys: Sequence[Key]) -> list[dict[str, torch.Tensor]]:
        rng = np.random.default_rng([self.seed, *keys[0]])
        indices, labels = [index for _, index in keys], self._labels([index for _, index in keys])
        wanted = self.augmentation
        if wanted.random_resized_crop is None:
            pixels = self.split.pixels(indices, self.size, self.channels)
        else:
            images = self.split.images(indices, self.channels)
            pixels = np.stack([_resized_crop(image, self.size, wanted.random_resized_crop, rng) for image in images])
            pixels = pixels.reshape(len(images), *self.size, self.channels)
        if wanted.random_crop_padding:
            pixels = _padded_crops(pixels, wanted.random_crop_padding, rng)
        if wanted.horizontal_flip:
            flipped = rng.random(len(pixels)) < 0.5
            pixels = np.where(flipped[:, None, None, None], pixels[:, :, ::-1], pixels)
        if wanted.mixup_alpha:
            share, others = rng.beta(wanted.mixup_alpha, wanted.mixup_alpha), rng.permutation(len(pixels))
            pixels, labels = (
                (share * each + (1 - share) * each[others]).astype(np.float32)
                for each in (pixels.astype(np.float32), labels)
            )
        return self._items(pixels, labels)


def _with_random_labels(split: ImageSplit, share: float, seed: int) -> ImageSplit:
    """The split with the classes of this share of its pictures drawn anew, from all classes."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(split.class_names), len(split))
    chosen = rng.permutation(len(split)) < round(share * len(split))
    return replace(split, labels=np.where(chosen, drawn, split.labels).astype(split.labels.dtype))


def _padded_crops(pixels: np.ndarray, padding: int, rng: np.random.Generator) -> np.ndarray:
    """(pictures, height, width, channels) → the same, each shifted by at most `padding` pixels, with zeros behind."""
    height, width = pixels.shape[1:3]
    padded = np.pad(pixels, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    tops, lefts = rng.integers(0, 2 * padding + 1, (2, len(pixels)))
    corners = zip(padded, tops, lefts, strict=True)
    return np.stack([each[top : top + height, left : left + width] for each, top, left in corners])


def _resized_crop(
    image: Image.Image, size: tuple[int, int], shares: Sequence[float], rng: np.random.Generator
) -> np.ndarray:
    """A part of the picture of a random share of its area, with sides of 3:4 to 4:3, resized; the whole one if none is found."""
    width, height = image.size
    box = (0, 0, width, height)
    for _ in range(10):
        area = width * height * rng.uniform(*shares)
        aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(rng.integers(0, width - wide + 1)), int(rng.integers(0, height - high + 1))
            box = (left, top, left + wide, top + high)
            break
    return np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR, box=box))
