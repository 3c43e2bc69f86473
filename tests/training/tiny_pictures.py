"""Small pictures whose class is easy to see, as IDX files, folders and a data set; and a recipe on them."""

import gzip
from pathlib import Path

import datasets
import numpy as np
import yaml
from PIL import Image

SIZE = 8
NAMES = ["dark", "left", "right"]


def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes (count, 8, 8) and their classes: the left or the right half is bright, or none."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    found = rng.integers(0, 60, (count, SIZE, SIZE))
    found[labels == 1, :, : SIZE // 2] += 180
    found[labels == 2, :, SIZE // 2 :] += 180
    return found.astype(np.uint8), labels.astype(np.uint8)


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    content = header + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_splits(folder: Path, ending: str = "") -> dict[str, dict[str, str]]:
    """IDX files of all splits: the section of a recipe."""
    data = {}
    for seed, (split, count) in enumerate({"train": 48, "validation": 10, "test": 13}.items()):
        data[split] = {}
        for what, array in zip(("images", "labels"), pictures(count, seed), strict=True):
            path = folder / f"{split}-{what}{ending}"
            write_idx(path, array)
            data[split][what] = str(path)
    return data


def write_folders(folder: Path) -> None:
    """The same as picture files in a folder for each class."""
    for seed, (split, count) in enumerate({"train": 48, "validation": 10, "test": 13}.items()):
        for number, (picture, label) in enumerate(zip(*pictures(count, seed), strict=True)):
            path = folder / split / NAMES[label] / f"{number:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(path)


def data_set() -> datasets.DatasetDict:
    """The same as a set of the `datasets` library."""
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    splits = {}
    for seed, (split, count) in enumerate({"train": 48, "validation": 10, "test": 13}.items()):
        found, labels = pictures(count, seed)
        rows = {"image": [Image.fromarray(each) for each in found], "label": labels.tolist()}
        splits[split] = datasets.Dataset.from_dict(rows, features=features)
    return datasets.DatasetDict(splits)


def write_recipe(folder: Path, **sections) -> Path:
    """A recipe that trains in a second; its data are IDX files unless `data` says otherwise."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    recipe = {
        "task": "image_classification",
        "name": "tiny",
        "data": {**write_splits(folder), "class_names": NAMES},
        "model": {**sizes, "image_size": SIZE, "patch_size": 4},
        "augmentation": {"random_crop_padding": 1, "mixup_alpha": 0.4},
        "averaging": {"last_checkpoints": 2},
        **sections,
        "training": {
            "output_dir": str(folder / "runs" / "tiny"),
            "max_steps": 8,
            "per_device_train_batch_size": 10,
            "logging_steps": 2,
            "eval_strategy": "steps",
            "eval_steps": 4,
            "save_strategy": "steps",
            "save_steps": 2,
            "use_cpu": True,
            "disable_tqdm": True,
            "learning_rate": 0.01,
            **sections.get("training", {}),
        },
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    return path
