"""More of `malformed_files.py`: pictures that are wrong, each in one way, beside files and models that are right."""

import gzip
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from reluformer.training.image_training import image_processor

from ..modeling_reluformer.vision_cases import vision_model
from ..training.tiny_pictures import pictures, write_folders, write_idx

RECIPE = """\
task: image_classification
name: pictures
data:
  train: {images: train-images, labels: train-labels}
  class_names: [dark, left, right]
model: {hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16, image_size: 8, patch_size: 4}
evaluation: {splits: []}
training: {max_steps: 1, per_device_train_batch_size: 48, use_cpu: true}
"""
# the same with the pictures of a folder
IN_FOLDERS = RECIPE.replace("train: {images: train-images, labels: train-labels}", "folder: {path: pictures}").replace(
    "  class_names: [dark, left, right]\n", ""
)


def write_pictures(folder: Path) -> None:
    """IDX files, folders of picture files, their recipes and models into `folder`."""
    (folder / "pictures.yaml").write_text(RECIPE, encoding="utf-8")
    (folder / "folders.yaml").write_text(IN_FOLDERS, encoding="utf-8")
    _write_idx_files(folder)
    _write_folders(folder)
    picture = (folder / "pictures" / "train" / "left").iterdir()
    content = sorted(picture)[0].read_bytes()
    (folder / "cut.png").write_bytes(content[:-30])
    (folder / "text.png").write_bytes(b"no picture\n")
    for name, channels in (("vision_model", 3), ("grey_model", 1)):
        model = vision_model(num_channels=channels)
        model.save_pretrained(folder / name)
        image_processor(model.config).save_pretrained(folder / name)
    shutil.copytree(folder / "vision_model", folder / "no_processor")
    (folder / "no_processor" / "preprocessor_config.json").unlink()


def _write_idx_files(folder: Path) -> None:
    for what, array in zip(("images", "labels"), pictures(48, 0), strict=True):
        write_idx(folder / f"train-{what}", array)
        write_idx(folder / f"few-{what}", array[:13])
        write_idx(folder / f"no-{what}", array[:0])
    whole = (folder / "train-images").read_bytes()
    (folder / "cut-images").write_bytes(whole[:-3])
    (folder / "cut-images.gz").write_bytes(gzip.compress(whole)[:-12])
    (folder / "damaged-images.gz").write_bytes(gzip.compress(whole)[:12] + b"\xff" * 20)


def _write_folders(folder: Path) -> None:
    write_folders(folder / "pictures")

    def copy(name: str) -> Path:
        return Path(shutil.copytree(folder / "pictures", folder / name)) / "train"

    damaged = sorted((copy("one_damaged") / "left").iterdir())[0]
    damaged.write_bytes((folder / "pictures" / "train" / "left" / damaged.name).read_bytes()[:-30])
    for path in (copy("one_class_empty") / "left").iterdir():
        path.unlink()
    (copy("with_a_text") / "left" / "notes.txt").write_text("no picture\n", encoding="utf-8")
    (copy("folder_in_class") / "left" / "more").mkdir()
    classes = copy("one_class")
    for name in ("left", "right"):
        shutil.rmtree(classes / name)
    classes = copy("no_classes")
    shutil.rmtree(classes)
    classes.mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(classes / "picture.png")
    (folder / "other_classes").mkdir()
    shutil.copytree(folder / "pictures" / "train", folder / "other_classes" / "train")
    shutil.copytree(folder / "pictures" / "test", folder / "other_classes" / "test")
    (folder / "other_classes" / "test" / "left").rename(folder / "other_classes" / "test" / "up")
