"""Whole models beside the library's: training with AdamW in bfloat16 by autocast, generation in bfloat16.

Translation at the sizes of IWSLT14 (6 + 6 layers of 512, 10,000 pieces) and of WMT14 base (32,000); sentences or 1,024 tokens.
The decoder has the size of GPT-2; pictures go through ViT S/16. All contenders of a cell are timed in the same rounds, since
the speed of the CPU that launches the kernels drifts. Wall time is that of several steps between two synchronisations, as in a
training; the kernels' own time in one step says what of it the GPU was busy. MarianMTModel computes attention by `sdpa`; in
SDPA's FlashAttention where nothing is padded, which it needs.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from benchmarks import translation
from benchmarks import vision as vit
from benchmarks.gpu.campaign import Cell, timed
from benchmarks.translation import MARIAN, MARIAN_SMOOTHED, OURS, OURS_UNREGULARIZED, SHAPES, Lengths
from reluformer import ReLUFormerDecoderConfig, ReLUFormerForCausalLM

SENTENCES, LONG, UNPADDED = "sentences", "1,024 tokens", "1,024 tokens, no padding"
LENGTHS = translation.INPUTS | {
    SENTENCES: Lengths(25.0, 12.0, 4, 100),
    LONG: Lengths(1000.0, 20.0, 900, 1024, longest_first=True),
    UNPADDED: Lengths(1024.0, 0.0, 1024, 1024),
}
BATCHES = (("iwslt14", SENTENCES, 8192), ("iwslt14", LONG, 8192), ("wmt14 base", LONG, 16384))
QUICK = ("quick", "quick", 64)
TRAINED = (OURS, MARIAN_SMOOTHED, OURS_UNREGULARIZED, MARIAN, "vanilla")
FLASH, NEW_TOKENS, GENERATED = "MarianMTModel flash", 20, (1, 32)
DECODERS = ("ReLU", "ReLU, λ = 0", "GPT2LMHeadModel")

Made = tuple[Callable[[], Any], int]  # a step, and how many target tokens, sentences or pictures it computes


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for names, contenders, make, seconds in groups(options.toy):
        measured = functools.cache(partial(together, options.toy, contenders, make))
        for name in contenders:  # the first of them measures all
            left = 0 if measured.cache_info().currsize else seconds * len(contenders)
            yield Cell({**names, "model": name}, lambda name=name, measured=measured: measured()[name], left)


def groups(toy: bool) -> Iterator[tuple[dict[str, Any], tuple[str, ...], Callable[[str], Made], float]]:
    """What is compared: names of the cell, contenders, how one is made, and seconds for each."""
    batches = (QUICK,) if toy else BATCHES
    for sentences in GENERATED[:1] if toy else GENERATED:
        names = {"task": "generation", "shape": batches[0][0], "sentences": sentences}
        yield names, (OURS, MARIAN, "vanilla"), partial(generate, toy, *batches[0][:2], sentences), 10
    plain = [(batch, TRAINED, False) for batch in batches]
    plain += [] if toy else [(("iwslt14", UNPADDED, 8192), (OURS, MARIAN_SMOOTHED, FLASH), False)]
    for batch, contenders, compiled in [*plain, *((batch, (OURS, MARIAN_SMOOTHED), True) for batch in batches)]:
        names = {"task": "training", "shape": batch[0], "lengths": batch[1], "compiled": compiled}
        yield names, contenders, partial(train, toy, *batch, compiled), 80 if compiled else 10
    for shape, contenders, make in (("GPT-2", DECODERS, decoder), ("ViT S/16", (*vit.PRESETS, vit.VIT), vision)):
        yield {"task": "training", "shape": shape}, contenders, partial(make, toy), 12


def train(toy: bool, shape: str, lengths: str, tokens: int, compiled: bool, name: str) -> Made:
    batch = translation.padded_batch(LENGTHS[lengths], SHAPES[shape]["vocab_size"], tokens, 0)
    model = translation.build(MARIAN_SMOOTHED if name == FLASH else name, SHAPES[shape], 0.0 if toy else 0.1, 0)
    if compiled:
        model.compile(backend="eager" if toy else "inductor")
    step, tokens = trained(toy, model, batch, translation.batch_facts(batch)["target_tokens"])
    return partial(_with_flash, step) if name == FLASH else step, tokens


def _with_flash(step: Callable[[], Any]) -> None:
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        step()


def generate(toy: bool, shape: str, lengths: str, sentences: int, name: str) -> Made:
    """Sentences with five beams, each hypothesis of NEW_TOKENS."""
    device = "cpu" if toy else "cuda"
    batch = translation.padded_batch(LENGTHS[lengths], SHAPES[shape]["vocab_size"], 4096, 0)
    inputs = {key: batch[key][:sentences].to(device) for key in ("input_ids", "attention_mask")}
    model = translation.build(name, SHAPES[shape], 0.1, 0).to(device, torch.bfloat16)
    return translation.generation_step(model, inputs, 3 if toy else NEW_TOKENS, "float32"), sentences


def decoder(toy: bool, name: str) -> Made:
    """16 × 1,024 tokens, without dropout."""
    rows, length = (2, 8) if toy else (16, 1024)
    sizes = {"vocab_size": 60, "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2} if toy else {}
    torch.manual_seed(0)
    if name == DECODERS[-1]:
        no_dropout = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
        model: PreTrainedModel = GPT2LMHeadModel(GPT2Config(**sizes, **no_dropout, attn_implementation="sdpa"))
    else:
        sizes |= {"attention_activation": "relu", "attention_gamma": (2 * length) ** 0.5, "skip_logits": True}
        sizes |= {} if name == DECODERS[0] else {"regularization_weight": 0.0}
        model = ReLUFormerForCausalLM(ReLUFormerDecoderConfig(**sizes))
    ids = torch.randint(3, model.config.vocab_size, (rows, length))
    return trained(toy, model.train(), {"input_ids": ids, "labels": ids}, rows * length)


def vision(toy: bool, name: str) -> Made:
    """256 pictures of 224 × 224 in 196 patches, 1,000 classes; the library's ViT has one token more."""
    count, size, width, layers = (2, 32, 12, 1) if toy else (256, 224, 384, 12)
    shape = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": 6,
        "intermediate_size": 4 * width,
    }
    shape |= {"image_size": size, "patch_size": 16, "num_labels": 1000}
    batch = {"pixel_values": torch.randn(count, 3, size, size), "labels": torch.randint(1000, (count,))}
    return trained(toy, vit.build(name, shape, 0), batch, count)


def trained(toy: bool, model: PreTrainedModel, batch: dict[str, Tensor], amount: int) -> Made:
    """A training step with `amount` target tokens or pictures."""
    device = "cpu" if toy else "cuda"
    given = {name: tensor.to(device) for name, tensor in batch.items()}
    return translation.training_step(model.to(device), given, "bfloat16"), amount


def together(toy: bool, contenders: tuple[str, ...], make: Callable[[str], Made]) -> dict[str, dict[str, Any]]:
    """By contender: speed, milliseconds of a call, peak memory, and what one call keeps the GPU busy with."""
    made, peaks = {}, {}
    for name in contenders:
        before = 0 if toy else torch.cuda.memory_allocated()
        if not toy:
            torch.cuda.reset_peak_memory_stats()
        made[name] = make(name)
        for _ in range(1 if toy else 3):
            made[name][0]()
        peaks[name] = {} if toy else {"peak_gib": (torch.cuda.max_memory_allocated() - before) / 2**30}
    timing = timed({name: step for name, (step, _) in made.items()}, toy, 0.2)
    result = {}
    for name, (step, amount) in made.items():
        times = timing.summary(name)
        busy = {} if toy else kernel_times(step)
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
