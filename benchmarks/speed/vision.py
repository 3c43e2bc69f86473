"""Images a second of Vision Transformers on a CPU: ReLU divided by the length, softmax, and Transformers' ViT with sdpa.

    python -m benchmarks.speed.vision             about four minutes
    python -m benchmarks.speed.vision --quick     seconds; its figures mean nothing

The models of the recipes `fashion_mnist_vit_L49`, `_L196` and `_L784` with new weights, and `ViTForImageClassification` of the
same shape, which has one token more (CLS) and no norm of queries and keys. Training: forward, backward and AdamW; inference:
forward without gradients. Pictures lie in memory as the model takes them, about as many tokens a batch at every length. All
contenders of a cell in alternating rounds of one process (see timing.py). Writes `benchmarks/results/vision-cpu.json`.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel, ViTConfig, ViTForImageClassification
from transformers.utils import logging

from benchmarks.measurement_file import begin, benchmark_parser
from benchmarks.speed.end_to_end import inference_step, trained_parameters, training_step
from benchmarks.speed.rivals import a_second, time_rivals
from benchmarks.studies.parser import layer
from reluformer import ReLUFormerForImageClassification, ReLUFormerVisionConfig
from reluformer.training.run.records import write_json

RELU, SOFTMAX, VIT = "ReLU", "softmax", "ViTForImageClassification"
PRESETS = {RELU: "relu_vit", SOFTMAX: "softmax_vit"}
# name of the first → names of those that it is compared with
COMPARED = {RELU: (SOFTMAX, VIT), SOFTMAX: (VIT,)}
TASKS, DTYPES, THREADS, LENGTHS = ("training", "inference"), ("float32", "bfloat16"), (1, 2), (49, 196, 784)
BATCH_TOKENS = 128 * 49  # the batch of fashion_mnist_vit_L49
QUICK_SHAPE = {"hidden_size": 12, "num_hidden_layers": 1, "intermediate_size": 12}
QUICK_TOKENS = 2 * 49
# What makes ViT the same shape; all are fields of ViTConfig.
SHAPE = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "image_size",
    "patch_size",
    "num_channels",
    "num_labels",
)


@dataclass(frozen=True)
class Cell:
    """task: training | inference. dtype: float32, or bfloat16 by autocast. length: patches of a picture. threads: of torch."""

    task: str
    dtype: str
    length: int
    threads: int


def main(arguments: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, "vision-cpu.json")
    parser.add_argument("--budget", type=float, default=6.0, help="seconds for a cell (default: 6), at least 3 rounds")
    options = parser.parse_args(arguments)
    logging.set_verbosity_error()
    record = begin(options)
    counts = THREADS if options.threads is None else (options.threads,)
    start = time.perf_counter()
    cells = [
        measure(cell, options) for cell in tqdm(list(all_cells(counts, options.quick)), desc="vision", unit="cell")
    ]
    settings = {
        "budget": options.budget,
        "threads": " and ".join(map(str, counts)),
        "batch_tokens": QUICK_TOKENS if options.quick else BATCH_TOKENS,
        "shape": {name: getattr(vision_config(RELU, LENGTHS[0], options.quick), name) for name in SHAPE},
        "optimizer": "AdamW, fused",
    }
    result = {**record, "settings": settings, "seconds": time.perf_counter() - start, "cells": cells}
    print(write_json(options.output, result))
    return 0


def all_cells(counts: tuple[int, ...] = THREADS, quick: bool = False) -> Iterator[Cell]:
    """Each task, dtype, length and number of threads once; the shortest length alone for a quick run."""
    lengths = LENGTHS[:1] if quick else LENGTHS
    for values in itertools.product(TASKS, DTYPES, lengths, counts):
        yield Cell(*values)


def measure(cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    """Times of a step, images a second, and the speedups of `COMPARED`."""
    torch.set_num_threads(cell.threads)
    images = (QUICK_TOKENS if options.quick else BATCH_TOKENS) // cell.length
    models = {name: build(name, cell.length, options.quick, options.seed) for name in (*PRESETS, VIT)}
    batch = random_batch(vision_config(RELU, cell.length, options.quick), images, options.seed)
    make, given = (
        (training_step, batch) if cell.task == "training" else (inference_step, {"pixel_values": batch["pixel_values"]})
    )
    steps = {name: make(model, given, cell.dtype) for name, model in models.items()}
    figures = time_rivals(steps, COMPARED, budget=options.budget, quick=options.quick)
    return {
        **asdict(cell),
        "images": images,
        "parameters": {name: trained_parameters(model) for name, model in models.items()},
        "attn_implementation": {name: model.config._attn_implementation for name, model in models.items()},
        **figures,
        "images_a_second": a_second(images, figures),
    }


def vision_config(name: str, length: int, quick: bool = False) -> ReLUFormerVisionConfig:
    """The configuration of the recipe of this length, with the preset of the contender; a tiny one for a quick run."""
    recipe = layer(f"fashion_mnist_vit_L{length}")
    fields = {**recipe["model"], "num_labels": len(recipe["data"]["class_names"]), **(QUICK_SHAPE if quick else {})}
    return ReLUFormerVisionConfig.from_preset(**{**fields, "preset": PRESETS[name]})


def build(name: str, length: int, quick: bool, seed: int) -> PreTrainedModel:
    """A contender with new weights, in training mode; ours with the attention that they take by default."""
    torch.manual_seed(seed)
    if name != VIT:
        return ReLUFormerForImageClassification(vision_config(name, length, quick)).train()
    config = vision_config(RELU, length, quick)
    shape = {field: getattr(config, field) for field in SHAPE}
    return ViTForImageClassification(ViTConfig(**shape, attn_implementation="sdpa")).train()


def random_batch(config: ReLUFormerVisionConfig, images: int, seed: int) -> dict[str, Tensor]:
    """pixel_values (images, channels, height, width), from -1 to 1, and labels (images,)."""
    generator = torch.Generator().manual_seed(seed)
    size = images, config.num_channels, config.image_size, config.image_size
    labels = torch.randint(config.num_labels, (images,), generator=generator)
    return {"pixel_values": 2 * torch.rand(size, generator=generator) - 1, "labels": labels}


if __name__ == "__main__":
    sys.exit(main())
