"""Wrong labels in training, and noise and calibration in the evaluation of a classifier of pictures."""

import json

import numpy as np
import pytest
import torch

from reluformer.commands.train import train_and_document as train
from reluformer.configuration.image_recipe import AugmentationConfig
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.training.data.image_batches import AugmentedPixelValues
from reluformer.training.data.images import ImageSplit
from reluformer.training.scoring.image_evaluation import CALIBRATION_BINS, calibration_error

from .tiny_pictures import NAMES, SIZE, pictures, write_recipe

COUNT = 3000


def labels_of(share: float, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """True labels, and those of training."""
    found, labels = pictures(COUNT, 5)
    split = ImageSplit("train", labels, NAMES, found)
    data = AugmentedPixelValues(split, (SIZE, SIZE), 1, augmentation=AugmentationConfig(random_labels=share), seed=seed)
    assert np.array_equal(split.labels, labels), "the split itself stays as it is"
    items = data.__getitems__([(0, index) for index in range(COUNT)])
    later = data.__getitems__([(7, index) for index in range(COUNT)])
    drawn = np.array([int(item["labels"]) for item in items])
    assert drawn.tolist() == [int(item["labels"]) for item in later], "the same in every epoch"
    return labels, drawn


def test_a_share_of_the_labels_is_drawn_from_all_classes():
    assert np.array_equal(*labels_of(0.0))
    true, drawn = labels_of(0.4)
    # a third of those that are drawn anew are right by chance; 1,200 are drawn, and 0.05 is 4 standard deviations
    assert (true != drawn).mean() == pytest.approx(0.4 * 2 / 3, abs=0.05)
    true, random = labels_of(1.0)
    assert (true == random).mean() == pytest.approx(1 / 3, abs=0.05)
    assert np.bincount(random, minlength=3) / COUNT == pytest.approx([1 / 3] * 3, abs=0.05)
    assert not np.array_equal(drawn, labels_of(0.4, seed=2)[1])


def test_the_calibration_error_by_hand():
    # confidences 0.9 (right, wrong) and 0.6 (right): |0.5 - 0.9| of two pictures and |1 - 0.6| of one
    chances = torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.4, 0.6]])
    found = calibration_error(chances.log(), torch.tensor([0, 0, 1]))
    assert found == pytest.approx(100 * (2 * 0.4 + 0.4) / 3, abs=1e-3)
    sure = torch.eye(4) * 1000
    assert calibration_error(sure, torch.arange(4)) == 0 and calibration_error(sure, torch.arange(4).flip(0)) == 100
    # two bins that err in opposite directions do not cancel
    edges = torch.tensor([[0.5 + 0.6 / CALIBRATION_BINS, 0.5 - 0.6 / CALIBRATION_BINS], [0.99, 0.01]])
    assert calibration_error(edges.log(), torch.tensor([0, 1])) > 60


def test_an_evaluation_tells_the_accuracy_with_noise(tmp_path):
    recipe = load_recipe(write_recipe(tmp_path, evaluation={"noise": [0.01, 50.0]}, training={"max_steps": 60}))
    folder = train(recipe)
    found = json.loads((folder / "evaluation.test.json").read_text())
    little, much = found["noise"]
    assert (little["std"], much["std"]) == (0.01, 50.0)
    assert little["accuracy"] == pytest.approx(found["accuracy"], abs=8) and much["accuracy"] < 80 < found["accuracy"]
    assert 0 <= found["calibration_error"] <= 100
