"""Whole models beside the library's: training with AdamW in bfloat16 by autocast, generation in bfloat16.

Translation at the sizes of IWSLT14 (6 + 6 layers of 512, 10,000 pieces) and of WMT14 base (32,000); sentences or 1,024
tokens. The decoder has the size of GPT-2; pictures go through ViT S/16. All contenders of a cell are timed in the same
rounds, since the speed of the CPU that launches the kernels drifts. Wall time is that of several steps between two
synchronisations, as in a training; the kernels' own time in one step says what of it the GPU was busy. MarianMTModel
computes attention by `sdpa`, which takes FlashAttention or cuDNN where nothing is padded.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedModel

from benchmarks import decoder as language_models
from benchmarks import translation
from benchmarks import vision as vit
from benchmarks.decoder import GPT2, RELU, UNREGULARIZED
from benchmarks.gpu.campaign import CUDA, DEVICE, Cell, failure, peak_bytes, release_memory, timed
from benchmarks.translation import MARIAN, MARIAN_SMOOTHED, OURS, OURS_UNREGULARIZED, SHAPES, Lengths
from reluformer import ReLUFormerForConditionalGeneration
from reluformer.modeling_reluformer.configuration_vision import SIZES

SENTENCES, LONG, UNPADDED = "sentences", "1,024 tokens", "1,024 tokens, no padding"
LENGTHS = translation.INPUTS | {
    SENTENCES: Lengths(25.0, 12.0, 4, 100),
    LONG: Lengths(1000.0, 20.0, 900, 1024, longest_first=True),
    UNPADDED: Lengths(1024.0, 0.0, 1024, 1024),
}
BATCHES = (("iwslt14", SENTENCES, 8192), ("iwslt14", LONG, 8192), ("wmt14 base", LONG, 16384))
BATCHES += (("iwslt14", UNPADDED, 8192),)
TRAINED = (OURS, MARIAN_SMOOTHED, OURS_UNREGULARIZED, MARIAN, "vanilla")
NEW_TOKENS = 20

GRAPHS = "CUDA graphs"  # torch.compile(mode="reduce-overhead")

Made = tuple[Callable[[], Any], int]  # a step, and how many target tokens, sentences or pictures it computes
# What is compared: names of the cell, contenders, how one is made, and seconds for each.
Group = tuple[dict[str, Any], tuple[str, ...], Callable[[str], Made], float]


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    yield from cells_of(groups(options.toy))


def cells_of(groups: Iterable[Group]) -> Iterator[Cell]:
    """A cell for each contender of each group."""
    for names, contenders, make, seconds in groups:
        measured = functools.cache(partial(together, contenders, make))
        for name in contenders:  # the first of them measures all
            left = 0 if measured.cache_info().currsize else seconds * len(contenders)
            run = lambda name=name, measured=measured: measured()[name]  # noqa: E731
            yield Cell({**names, "model": name}, run, left, together=str(names))


def groups(toy: bool) -> Iterator[Group]:
    batches = (("quick", "quick", 64),) if toy else BATCHES
    for sentences in (1,) if toy else (1, 32):
        names = {"task": "generation", "shape": batches[0][0], "sentences": sentences}
        yield names, (OURS, MARIAN, "vanilla"), partial(generate, *batches[0][:2], sentences), 10
        for static in (False, True):  # with one beam, `generate` compiles the steps of a static cache, with CUDA graphs
            greedy = {**names, "beams": 1, "cache": "static, compiled" if static else "growing"}
            make = partial(generate, *batches[0][:2], sentences, beams=1, static=static)
            yield greedy, (OURS, MARIAN), make, 60 if static else 10
    for compiled, batch in product((False, GRAPHS, True), batches):
        names = {"task": "training", "shape": batch[0], "lengths": batch[1], "compiled": compiled}
        contenders, seconds = (TRAINED[:2], 80) if compiled else (TRAINED, 10)
        yield names, contenders, partial(train, *batch, compiled), seconds
    yield {"task": "training", "shape": "GPT-2"}, (RELU, UNREGULARIZED, GPT2), decoder, 20
    yield {"task": "training", "shape": "ViT S/16"}, (*vit.PRESETS, vit.VIT), vision, 12


def train(shape: str, lengths: str, tokens: int, compiled: bool | str, name: str) -> Made:
    batch = translation.padded_batch(LENGTHS[lengths], SHAPES[shape]["vocab_size"], tokens, 0)
    model = translation.build(name, SHAPES[shape], 0.1 if CUDA else 0.0, 0)
    if compiled:
        is_ours = isinstance(model, ReLUFormerForConditionalGeneration)
        if is_ours:
            model.config.skip_logits = False  # which would end the graph
        mode = "reduce-overhead" if CUDA and compiled == GRAPHS else None
        model.compile(fullgraph=is_ours, backend="inductor" if CUDA else "eager", mode=mode)  # a rival may break it
    return trained_by(model, batch, translation.batch_facts(batch)["target_tokens"])


def generate(
    shape: str, lengths: str, sentences: int, name: str, beams: int = translation.BEAMS, static: bool = False
) -> Made:
    """Sentences with five beams or one, each hypothesis of NEW_TOKENS."""
    batch = translation.padded_batch(LENGTHS[lengths], SHAPES[shape]["vocab_size"], 4096, 0)
    inputs = {key: batch[key][:sentences].to(DEVICE) for key in ("input_ids", "attention_mask")}
    model = translation.build(name, SHAPES[shape], 0.1, 0).to(DEVICE, torch.bfloat16)
    settings = {**inputs, "cache_implementation": "static"} if static else inputs
    return translation.generation_step(model, settings, NEW_TOKENS if CUDA else 3, "float32", beams), sentences


def decoder(name: str) -> Made:
    """16 × 1,024 tokens, without dropout, in GPT-2's own size; ours are converted from the library's."""
    rows, length = (16, 1024) if CUDA else (2, 8)
    sizes = {**({"vocab_size": 50257} if CUDA else language_models.QUICK_SHAPE), "max_position_embeddings": length}
    model = language_models.build(GPT2, sizes, True, torch.float32)[name]
    ids = torch.randint(3, model.config.vocab_size, (rows, length))
    return trained_by(model, {"input_ids": ids, "labels": ids}, rows * length)


def vision(name: str) -> Made:
    """256 pictures of 224 × 224 in 196 patches, 1,000 classes; the library's ViT has one token more."""
    count = 256 if CUDA else 2
    shape = {**SIZES["S/16"], "num_labels": 1000} if CUDA else {**vit.QUICK_SHAPE, "patch_size": 14}
    pictures = torch.randn(count, 3, shape["image_size"], shape["image_size"])
    batch = {"pixel_values": pictures, "labels": torch.randint(shape["num_labels"], (count,))}
    return trained_by(vit.build(name, shape, 0), batch, count)


def trained_by(model: PreTrainedModel, batch: dict[str, Tensor], amount: int) -> Made:
    """A training step with `amount` target tokens or pictures."""
    on_device = {name: tensor.to(DEVICE) for name, tensor in batch.items()}
    return translation.training_step(model.to(DEVICE), on_device, "bfloat16"), amount


def together(contenders: tuple[str, ...], make: Callable[[str], Made]) -> dict[str, dict[str, Any]]:
    """By contender: speed, milliseconds of a call, peak memory, and what one call keeps the GPU busy with."""
    made: dict[str, Made] = {}

    def begin(name: str) -> None:
        made[name] = make(name)
        for _ in range(3):
            made[name][0]()

    peaks, result = {}, {}
    for name in contenders:
        try:
            peaks[name] = {"peak_gib": peak_bytes(partial(begin, name)) / 2**30}
        except Exception as error:  # for want of memory, say; the others are compared without it
            result[name] = failure(error)
            made.pop(name, None)
            release_memory()
    timing = timed({name: step for name, (step, _) in made.items()}, 0.2)
    for name, (step, amount) in made.items():
        times = timing.summary(name)
        busy = kernel_times(step) if CUDA else {}
        result[name] = {"a_second": 1e3 * amount / times["median_ms"], **times, **peaks[name], **busy}
    return result


def kernel_times(step: Callable[[], Any]) -> dict[str, Any]:
    """Milliseconds that the GPU is busy in one call, and of the ten kernels that take most of them."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as run:
        step()
        torch.cuda.synchronize()
    events = run.key_averages()
    kernels = [event for event in events if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    kernels.sort(key=lambda event: -event.self_device_time_total)
    longest = {event.key[:70]: event.self_device_time_total / 1e3 for event in kernels[:10]}
    return {"gpu_busy_ms": sum(event.self_device_time_total for event in kernels) / 1e3, "kernels": longest}
