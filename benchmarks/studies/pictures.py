"""Rows on pictures: IDX files or a data set as pixel values, and the accuracy of a classifier on a split."""

from __future__ import annotations

import gzip
import math
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedModel, ViTImageProcessorPil, default_data_collator

from reluformer import ReLUFormerForImageClassification, ReLUFormerVisionConfig

CALIBRATION_BINS = 15
TOP = 5
ITEMS, MODEL = "images", ReLUFormerForImageClassification

Recipe = Mapping[str, Any]


class Pictures(Dataset):
    """The pictures of a split as the model takes them: (channels, height, width), values from -1 to 1, resized where
    needed.

    config: of the model: its size, its channels, and whether labels are classes or a share of each class. training:
    change the pictures as the recipe's `augmentation` says; what is drawn comes from torch's random numbers.
    """

    def __init__(self, recipe: Recipe, split: str, config: ReLUFormerVisionConfig, *, training: bool = False) -> None:
        data, self.config = recipe["data"], config
        self.augmentation = (recipe.get("augmentation") or {}) if training else {}
        if (dataset := data.get("dataset")) is not None:
            self.pictures = datasets.load_dataset(dataset["path"], split=dataset[split])  # columns "image" and "label"
            self.labels = np.asarray(self.pictures["label"])
        else:
            self.pictures = read_idx(data[split]["images"], 3)
            self.labels = read_idx(data[split]["labels"], 1).astype(np.int64)
        if share := self.augmentation.get("random_labels"):
            self.labels = _drawn_anew(self.labels, share, config.num_labels, recipe["training"]["seed"])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        picture, size = self.pictures[index], (self.config.image_size, self.config.image_size)
        image = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture["image"]
        image = image.convert("L" if self.config.num_channels == 1 else "RGB")
        if shares := self.augmentation.get("random_resized_crop"):
            image = image.resize(size, Image.Resampling.BILINEAR, box=_random_box(image.size, shares))
        elif image.size != size:
            image = image.resize(size, Image.Resampling.BILINEAR)
        values = torch.from_numpy(np.array(image, dtype=np.float32)).view(*size, -1).permute(2, 0, 1) / 127.5 - 1
        if self.augmentation.get("horizontal_flip") and torch.rand(()) < 0.5:
            values = values.flip(-1)
        label = torch.tensor(self.labels[index])
        if self.config.problem_type == "multi_label_classification":
            label = torch.nn.functional.one_hot(label, self.config.num_labels).float()
        return {"pixel_values": values, "labels": label}


def read_idx(path: str, dimensions: int) -> np.ndarray:
    """The unsigned bytes of a file of the form of MNIST (IDX), plain or .gz, with so many dimensions."""
    content = Path(path).expanduser().read_bytes()
    content = gzip.decompress(content) if path.endswith(".gz") else content
    shape = np.frombuffer(content, ">i4", dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _drawn_anew(labels: np.ndarray, share: float, classes: int, seed: int) -> np.ndarray:
    """The labels with those of this share of the pictures drawn from all classes, once for the whole training."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, classes, len(labels))
    return np.where(rng.permutation(len(labels)) < round(share * len(labels)), drawn, labels)


def _random_box(size: tuple[int, int], shares: tuple[float, float]) -> tuple[int, int, int, int]:
    """A part of the picture of a random share of its area, with sides of 3:4 to 4:3; the whole of it if none is
    found."""
    width, height = size
    for _ in range(10):
        at = torch.rand(4).tolist()
        area = width * height * (shares[0] + at[0] * (shares[1] - shares[0]))
        aspect = (3 / 4) ** (1 - 2 * at[1])
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(at[2] * (width - wide + 1)), int(at[3] * (height - high + 1))
            return left, top, left + wide, top + high
    return 0, 0, width, height


def _mixed(rows: list[dict[str, Any]], alpha: float) -> dict[str, Tensor]:
    """MixUp: each batch is mixed with itself in another order, with a share drawn from Beta(alpha, alpha)."""
    batch, order = default_data_collator(rows), torch.randperm(len(rows))
    share = torch.distributions.Beta(alpha, alpha).sample()
    return {name: share * values + (1 - share) * values[order] for name, values in batch.items()}


def build_config(recipe: Recipe) -> ReLUFormerVisionConfig:
    """The configuration of a row's model; a set of the Hub says itself how many classes it has."""
    fields = {"problem_type": "single_label_classification", **recipe["model"]}
    names = recipe["data"].get("class_names")
    if names is None:
        features = datasets.load_dataset_builder(recipe["data"]["dataset"]["path"]).info.features
        names = features["label"].names
    classes = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    attention = fields.pop("attn_implementation", None)
    config = ReLUFormerVisionConfig.from_preset(fields.pop("preset", "relu_vit"), **fields, **classes)
    config._attn_implementation = attention
    return config


def image_processor(config: ReLUFormerVisionConfig) -> ViTImageProcessorPil:
    """What makes the model's input of a user's picture, as `Pictures` does."""
    coloured = config.num_channels == 3
    half, size = [0.5] * 3 if coloured else 0.5, {"height": config.image_size, "width": config.image_size}
    return ViTImageProcessorPil(size=size, image_mean=half, image_std=half, do_convert_rgb=coloured)


def prepare(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """The arguments of the trainer: model, data and collator; the image processor is written into the folder."""
    config = build_config(recipe)
    alpha = (recipe.get("augmentation") or {}).get("mixup_alpha")
    validated = recipe["training"].get("eval_strategy", "no") != "no"
    return {
        "model": ReLUFormerForImageClassification(config),
        "train_dataset": Pictures(recipe, "train", config, training=True),
        "eval_dataset": Pictures(recipe, "validation", config) if validated else None,
        "data_collator": partial(_mixed, alpha=alpha) if alpha else default_data_collator,
        "processing_class": image_processor(config),
        "preprocess_logits_for_metrics": _hits,
        "compute_metrics": lambda output: accuracies(torch.as_tensor(output.predictions)),
    }


def _hits(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether the class of each picture is the highest, and among the `TOP` highest where there are more: (batch, 1 or
    2)."""
    classes = labels.argmax(-1) if labels.ndim == 2 else labels
    numbers = [number for number in (1, TOP) if number == 1 or number < logits.shape[-1]]
    hits = logits.topk(numbers[-1], dim=-1).indices == classes.unsqueeze(-1)
    return torch.stack([hits[:, :number].any(-1) for number in numbers], dim=1)


def accuracies(hits: Tensor) -> dict[str, float]:
    """Accuracy and, of more than `TOP` classes, top-5 accuracy in percent, of what `_hits` gives."""
    return dict(zip(("accuracy", "top_5_accuracy"), (100 * hits.double().mean(0)).tolist(), strict=False))


def evaluate(recipe: Recipe, split: str, model: PreTrainedModel, folder: Path) -> dict[str, Any]:
    """Classifies all pictures of a split, and again with noise; writes `predictions.<split>.tsv`.

    Returns:
        `images`, `accuracy` and, of more than 5 classes, `top_5_accuracy` in percent, `calibration_error` of classes
        that exclude each other, `noise`: accuracies for each standard deviation of the recipe's `evaluation.noise`, and
        `seconds`.
    """
    pictures, settings = Pictures(recipe, split, model.config), recipe["evaluation"]
    loader = DataLoader(pictures, batch_size=settings.get("batch_size", 250), collate_fn=default_data_collator)
    started = time.perf_counter()
    logits, labels = _classified(model, loader), torch.from_numpy(pictures.labels)
    measured: dict[str, Any] = {"seconds": time.perf_counter() - started, "images": len(pictures)}
    measured |= accuracies(_hits(logits, labels))
    if model.config.problem_type == "single_label_classification":
        measured["calibration_error"] = calibration_error(logits, labels)
    noisy = ((std, _classified(model, loader, std, recipe["training"]["seed"])) for std in settings.get("noise", ()))
    measured["noise"] = [{"std": std, **accuracies(_hits(noisy_logits, labels))} for std, noisy_logits in noisy]
    lines = zip(labels.tolist(), logits.argmax(-1).tolist(), strict=True)
    text = "".join(f"{label}\t{predicted}\n" for label, predicted in [("label", "prediction"), *lines])
    (folder / f"predictions.{split}.tsv").write_text(text, encoding="utf-8")
    return measured


@torch.inference_mode()
def _classified(model: PreTrainedModel, loader: DataLoader, noise: float = 0.0, seed: int = 0) -> Tensor:
    """Logits (pictures, classes), float32. The noise follows from the seed alone: models of one seed see the same."""
    generator, logits = torch.Generator().manual_seed(seed), []
    for batch in tqdm(loader, desc="classifying", unit="batch", leave=False, disable=None):
        pixels = batch["pixel_values"]
        if noise:
            pixels = pixels + noise * torch.randn(pixels.shape, generator=generator)
        logits.append(model(pixels.to(model.device)).logits.float().cpu())
    return torch.cat(logits)


def calibration_error(logits: Tensor, labels: Tensor) -> float:
    """The expected calibration error (arXiv 1706.04599) in percent: |accuracy − confidence| over `CALIBRATION_BINS`
    bins of equal width, weighted by their pictures. logits: (pictures, classes); labels: (pictures,)."""
    confidence, predicted = logits.softmax(-1).max(-1)
    bins = (confidence * CALIBRATION_BINS).long().clamp_max(CALIBRATION_BINS - 1)
    gaps = torch.zeros(CALIBRATION_BINS).index_add_(0, bins, (predicted == labels).float() - confidence)
    return float(100 * gaps.abs().sum() / len(labels))
