"""A recipe's data section → pictures of a split, as bytes of one size, and their classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder
from PIL import Image

from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.image_recipe import ImageDataConfig
from reluformer.configuration.splits import SPLITS
from reluformer.training.data.idx_files import read_idx

_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class ImageSplit:
    """The pictures of a split.

    name: for the record. labels: (pictures,). class_names: in the order of the numbers. pictures: bytes (pictures, height,
    width), or what gives a PIL picture for a number.
    """

    name: str
    labels: np.ndarray
    class_names: list[str]
    pictures: np.ndarray | _Column

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, indices: Sequence[int], channels: int) -> list[Image.Image]:
        """The pictures of these numbers as PIL's, grey (1 channel) or coloured (3)."""
        found = (self.pictures[int(index)] for index in indices)
        return [
            (Image.fromarray(each) if isinstance(each, np.ndarray) else each).convert(_MODES[channels])
            for each in found
        ]

    def pixels(self, indices: Sequence[int], size: tuple[int, int], channels: int) -> np.ndarray:
        """The pictures as bytes (pictures, height, width, channels), resized (bilinear) where they have another size."""
        if isinstance(self.pictures, np.ndarray):
            return np.repeat(self.pictures[np.asarray(indices)][..., None], channels, axis=3)
        images = (each if each.size == size[::-1] else each.resize(size[::-1], Image.Resampling.BILINEAR)
                  for each in self.images(indices, channels))  # fmt: skip
        return np.stack([np.asarray(each).reshape(*size, channels) for each in images])


@dataclass(frozen=True)
class _Column:
    """The pictures of a set of the `datasets` library, decoded one by one."""

    rows: datasets.Dataset
    name: str

    def __getitem__(self, index: int) -> Image.Image:
        try:
            found = self.rows[index][self.name]
        except (OSError, ValueError, SyntaxError) as error:  # the last: Pillow's for some broken PNG
            encoded = self.rows.cast_column(self.name, datasets.Image(decode=False))[index][self.name]
            raise UserError(
                f"{encoded['path'] or f'picture {index}'}: cannot be decoded ({one_line(error)}); remove or replace it"
            ) from error
        if not isinstance(found, Image.Image):
            raise UserError(f"column {self.name!r}: holds {type(found).__name__}, expected pictures; give image_column")
        return found


def has_image_split(data: ImageDataConfig, split: str) -> bool:
    """Whether the recipe names the split."""
    return getattr(data.folder or data.dataset or data, split) is not None


def load_image_split(data: ImageDataConfig, split: str, size: tuple[int, int], channels: int) -> ImageSplit:
    """The pictures of a split.

    Args:
        data: the recipe's section.
        split: "train", "validation" or "test".
        size: height and width that the model takes; IDX files must have it, other pictures are resized.
        channels: of the model, 1 or 3; grey pictures become coloured ones of three equal channels, as PIL makes them.

    Raises:
        UserError: no such split, files that are missing, damaged or do not fit, or classes that have no names.
    """
    if channels not in _MODES:
        raise UserError(f"model.num_channels: {channels} is not supported by recipes; choose 1 (grey) or 3 (coloured)")
    if not has_image_split(data, split):
        have = ", ".join(name for name in SPLITS if has_image_split(data, name))
        raise UserError(f"data: the recipe has no {split} split; give data.{split} (splits it has: {have})")
    if data.folder is not None:
        return _from_folder(data, split)
    if data.dataset is not None:
        return _from_dataset(data, split)
    return _from_idx(data, split, size)


def _where(data: ImageDataConfig) -> str:
    """The end of an error about missing files."""
    return "" if data.homepage is None else f"the pictures are to be had at {data.homepage}"


def _from_idx(data: ImageDataConfig, split: str, size: tuple[int, int]) -> ImageSplit:
    files = getattr(data, split)
    pictures = read_idx(files.images, 3, _where(data))
    labels = read_idx(files.labels, 1, _where(data)).astype(np.int64)
    if len(pictures) != len(labels) or not len(labels):
        raise UserError(
            f"data.{split}: {files.images} holds {len(pictures):,} pictures, {files.labels} {len(labels):,} labels; expected "
            "as many of both, and at least one"
        )
    if pictures.shape[1:] != size:
        height, width = pictures.shape[1:]
        raise UserError(
            f"{files.images}: holds pictures of {height} × {width} pixels, model.image_size is {size[0]} × {size[1]}; set it to "
            f"[{height}, {width}]"
        )
    names = data.class_names or [str(number) for number in range(int(labels.max()) + 1)]
    return _checked(ImageSplit(split, labels, names, pictures), f"data.{split}.labels")


def _from_folder(data: ImageDataConfig, split: str) -> ImageSplit:
    path = Path(data.folder.path).expanduser() / getattr(data.folder, split)
    if not path.is_dir():
        raise UserError(
            f"{path}: no such folder; {_where(data) or 'give data.folder.path and the names of its splits'}"
        )
    classes = sorted(each.name for each in path.iterdir() if each.is_dir())
    if not classes:
        raise UserError(f"{path}: holds no folders; expected one for each class, with its pictures in it")
    for name in classes:
        _check_class(path / name)
    rows = _loaded("imagefolder", data_dir=str(path), split="train", drop_labels=False)
    return _of_rows(rows, split, "image", "label", data)


def _check_class(folder: Path) -> None:
    """Refuses what the library would skip without a word: folders without a picture, and files that are none by their name."""
    found = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    if not found:
        raise UserError(f"{folder}: holds no picture; give this class some, or remove its folder")
    for each in found:
        if each.is_dir() or each.suffix.lower() not in ImageFolder.EXTENSIONS:
            what = "a folder" if each.is_dir() else "no picture by its name"
            raise UserError(f"{each}: is {what}; expected files such as .png or .jpg alone: move, rename or remove it")


def _from_dataset(data: ImageDataConfig, split: str) -> ImageSplit:
    chosen = data.dataset
    rows = _loaded(chosen.path, name=chosen.name, revision=chosen.revision, split=getattr(chosen, split))
    return _of_rows(rows, split, chosen.image_column, chosen.label_column, data)


def _loaded(path: str, **options: Any) -> datasets.Dataset:
    folder = Path(path).expanduser()
    try:
        if (folder / "dataset_dict.json").is_file():
            return datasets.load_from_disk(str(folder))[options["split"]]
        return datasets.load_dataset(path, **options)
    except Exception as error:  # the library raises errors of many kinds for what it cannot find or read
        what = options.get("data_dir") or path
        raise UserError(f"{what}: cannot be loaded as a data set: {type(error).__name__}: {one_line(error)}") from error


def _of_rows(
    rows: datasets.Dataset, split: str, image_column: str, label_column: str, data: ImageDataConfig
) -> ImageSplit:
    for name in (image_column, label_column):
        if name not in rows.column_names:
            raise UserError(f"data.dataset: no column {name!r}; the columns are {', '.join(rows.column_names)}")
    labels = np.asarray(rows[label_column])
    if labels.dtype.kind not in "iu":
        raise UserError(f"column {label_column!r}: holds {labels.dtype}, expected the numbers of classes")
    said = getattr(rows.features[label_column], "names", None)
    names = data.class_names or said or [str(number) for number in range(int(labels.max()) + 1)]
    rows = rows.select_columns([image_column])
    return _checked(ImageSplit(split, labels.astype(np.int64), list(names), _Column(rows, image_column)), label_column)


def _checked(split: ImageSplit, where: str) -> ImageSplit:
    wrong = split.labels[(split.labels < 0) | (split.labels >= len(split.class_names))]
    if wrong.size:
        raise UserError(
            f"{where}: holds the class {int(wrong[0])}, and there are the names of {len(split.class_names)} classes, 0 to "
            f"{len(split.class_names) - 1}; give data.class_names for all"
        )
    return split
