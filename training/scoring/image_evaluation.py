"""One split of a run's pictures, classified: accuracy, top-5 accuracy and every prediction, written into the run folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import PreTrainedModel, default_data_collator

from reluformer.configuration.image_recipe import ImageRecipe
from reluformer.configuration.scores import IMAGE_SCORES
from reluformer.configuration.whole_files import write_whole
from reluformer.modeling_reluformer.configuration_vision import pair
from reluformer.training.data.image_batches import PixelValues
from reluformer.training.data.images import load_image_split
from reluformer.training.image_trainer import accuracies, hits
from reluformer.training.run.progress import say
from reluformer.training.run.records import run_record, write_json

CALIBRATION_BINS = 15


def evaluate_image_split(
    recipe: ImageRecipe, split: str, model: PreTrainedModel, *, command: str | None = None
) -> dict[str, Any]:
    """Classifies all pictures of a split, and again with noise; writes `evaluation.<split>.json`, `predictions.<split>.tsv`.

    Args:
        recipe: of the run.
        split: "train", "validation" or "test".
        model: a classifier; it stays in evaluation mode.
        command: the command line, for the record; None takes the process' own.

    Returns:
        The run record, `split`, `dataset`, `images`, `accuracy` and, of more than 5 classes, `top_5_accuracy` in percent,
        `calibration_error` (see there) of classes that exclude each other, `noise`, a row of accuracies for each standard
        deviation, `device`, `seconds` of classifying, and `images_per_second`.

    Raises:
        UserError: files that cannot be used.
    """
    config, folder = model.config, recipe.run_folder
    pictures = load_image_split(recipe.data, split, pair(config.image_size), config.num_channels)
    data = PixelValues(pictures, pair(config.image_size), config.num_channels)
    loader = DataLoader(data, batch_size=recipe.evaluation.batch_size, collate_fn=default_data_collator)
    model.eval()
    started = time.perf_counter()
    logits, labels = _classified(model, loader, split), torch.from_numpy(pictures.labels)
    seconds = time.perf_counter() - started
    _write_predictions(folder / f"predictions.{split}.tsv", pictures.labels.tolist(), logits.argmax(-1).tolist())
    measured = accuracies(hits(logits, labels))
    if config.problem_type == "single_label_classification":
        measured["calibration_error"] = calibration_error(logits, labels)
    if recipe.evaluation.noise:
        noisy = {std: _classified(model, loader, split, std, recipe.training.seed) for std in recipe.evaluation.noise}
        measured["noise"] = [{"std": std, **accuracies(hits(found, labels))} for std, found in noisy.items()]
    result = {
        **run_record(command, recipe.name, recipe.training.seed),
        "split": split,
        "dataset": split,
        "images": len(pictures),
        **measured,
        "device": str(model.device),
        "seconds": round(seconds, 3),
        "images_per_second": round(len(pictures) / seconds, 2),
    }
    write_json(folder / f"evaluation.{split}.json", result)
    told = [f"{score.label} {score.value(result)}" for score in IMAGE_SCORES if score.name in result]
    say(recipe, f"{split}: {', '.join(told)}")
    return result


@torch.inference_mode()
def _classified(
    model: PreTrainedModel, loader: DataLoader, split: str, noise: float = 0.0, seed: int = 0
) -> torch.Tensor:
    """Logits (pictures, classes), float32. The noise follows from the seed alone: models of one seed see the same."""
    generator = torch.Generator().manual_seed(seed)
    logits = []
    for batch in tqdm(loader, desc=f"classifying {split}", unit="batch", leave=False, disable=None):
        pixels = batch["pixel_values"]
        if noise:
            pixels = pixels + noise * torch.randn(pixels.shape, generator=generator)
        logits.append(model(pixels.to(model.device)).logits.float().cpu())
    return torch.cat(logits)


def calibration_error(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The expected calibration error (arXiv 1706.04599) in percent: |accuracy − confidence| over `CALIBRATION_BINS` bins of
    equal width, weighted by their pictures. logits: (pictures, classes); labels: (pictures,)."""
    confidence, found = logits.softmax(-1).max(-1)
    bins = (confidence * CALIBRATION_BINS).long().clamp_max(CALIBRATION_BINS - 1)
    gaps = torch.zeros(CALIBRATION_BINS).index_add_(0, bins, (found == labels).float() - confidence)
    return float(100 * gaps.abs().sum() / len(labels))


def _write_predictions(path: Path, labels: list[int], predicted: list[int]) -> None:
    """One line for each picture, in the order of the split: the number of its class, and of the one that the model found."""
    lines = [f"{label}\t{found}\n" for label, found in zip(labels, predicted, strict=True)]
    write_whole(path, "".join(["label\tprediction\n", *lines]))
