"""Small pictures whose class is easy to see, as IDX files and as folders."""

from pathlib import Path

import numpy as np
from PIL import Image

SIZE, COUNT = 8, 13
NAMES = ["dark", "left", "right"]


def pictures() -> tuple[np.ndarray, np.ndarray]:
    """Bytes (13, 8, 8) and their classes: the left or the right half is bright, or none."""
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 3, COUNT)
    found = rng.integers(0, 60, (COUNT, SIZE, SIZE))
    found[labels == 1, :, : SIZE // 2] += 180
    found[labels == 2, :, SIZE // 2 :] += 180
    return found.astype(np.uint8), labels.astype(np.uint8)


def write_idx(folder: Path) -> dict[str, str]:
    """Two IDX files, by what they hold."""
    files = {}
    for what, array in zip(("images", "labels"), pictures(), strict=True):
        header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
        (folder / what).write_bytes(header + array.tobytes())
        files[what] = str(folder / what)
    return files


def write_folders(folder: Path) -> None:
    """The same as picture files in a folder for each class."""
    for number, (picture, label) in enumerate(zip(*pictures(), strict=True)):
        path = folder / NAMES[label] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
