"""Vision Transformers on a CPU: ReLU divided by the length, softmax, and Transformers' ViT with sdpa.

The models of Fashion-MNIST (arXiv 2309.08586) in 49, 196 and 784 patches with new weights, and
`ViTForImageClassification` of the same shape, which has one token more (CLS) and no norm of queries and keys. Training
is forward, backward and AdamW; inference is forward. Pictures lie in memory as the model takes them, about as many
tokens a batch at every length; bfloat16 is autocast.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import torch
from transformers import PreTrainedModel, ViTConfig, ViTForImageClassification

from benchmarks.measurement_file import Benchmark, Names, effort
from benchmarks.timing import time_contenders
from benchmarks.translation import inference_step, parameters_of, training_step
from reluformer import ReLUFormerForImageClassification, ReLUFormerVisionConfig

RELU, SOFTMAX, VIT = "ReLU", "softmax", "ViTForImageClassification"
PRESETS = {RELU: "relu_vit", SOFTMAX: "softmax_vit"}
COMPARED = {RELU: (SOFTMAX, VIT), SOFTMAX: (VIT,)}
TASKS, DTYPES, THREADS = ("training", "inference"), ("float32", "bfloat16"), (1, 2)
PATCHES = {49: 4, 196: 2, 784: 1}  # in a picture of 28 × 28 pixels → their size
BATCH_TOKENS, SECONDS = 128 * 49, 6.0
SHAPE = {"hidden_size": 96, "num_hidden_layers": 6, "num_attention_heads": 3, "intermediate_size": 384}
SHAPE |= {"hidden_act": "gelu"}
SHAPE |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SHAPE |= {"image_size": 28, "num_channels": 3, "num_labels": 10}
QUICK_SHAPE = {**SHAPE, "hidden_size": 12, "num_hidden_layers": 1, "intermediate_size": 12}


def cells(quick: bool) -> Iterator[Names]:
    for values in itertools.product(TASKS, DTYPES, (49,) if quick else PATCHES, (1,) if quick else THREADS):
        yield dict(zip(("task", "dtype", "length", "threads"), values, strict=True))


def measure(cell: Names, options: argparse.Namespace) -> Names:
    """Images a second, and the speedups of `COMPARED`."""
    shape = {**(QUICK_SHAPE if options.quick else SHAPE), "patch_size": PATCHES[cell["length"]]}
    count = (2 * 49 if options.quick else BATCH_TOKENS) // cell["length"]
    models = {name: build(name, shape, options.seed) for name in (*PRESETS, VIT)}
    pixels = 2 * torch.rand(count, shape["num_channels"], shape["image_size"], shape["image_size"]) - 1
    batch = {"pixel_values": pixels, "labels": torch.randint(shape["num_labels"], (count,))}
    if cell["task"] == "training":
        steps = {name: training_step(model, batch, cell["dtype"]) for name, model in models.items()}
    else:
        steps = {name: inference_step(model, {"pixel_values": pixels}, cell["dtype"]) for name, model in models.items()}
    record = time_contenders(steps, **effort(options, budget=SECONDS)).record(COMPARED, count, "images a second")
    return {"images": count, "parameters": parameters_of(models), **record}


def build(name: str, shape: Names, seed: int) -> PreTrainedModel:
    """A contender with new weights, in training mode; ours with the attention that they take by default."""
    torch.manual_seed(seed)
    if name == VIT:
        return ViTForImageClassification(ViTConfig(**shape, attn_implementation="sdpa")).train()
    return ReLUFormerForImageClassification(ReLUFormerVisionConfig.from_preset(PRESETS[name], **shape)).train()


SETTINGS = {"budget": SECONDS, "threads": "1 and 2", "batch_tokens": BATCH_TOKENS, "shape": SHAPE}
BENCHMARK = Benchmark("vision", cells, measure, {**SETTINGS, "optimizer": "AdamW, fused"})
