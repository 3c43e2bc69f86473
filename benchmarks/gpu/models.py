"""Whole models beside the library's: training with AdamW in bfloat16 by autocast, generation in bfloat16.

Translation at the sizes of IWSLT14 (6 + 6 layers of 512, 10,000 pieces) and WMT14 base (32,000), sentences or 1,024 tokens; the
decoder in the size of GPT-2, and ViT S/16. Wall time is that of several steps between two synchronisations, as in a training;
the kernels' own time in one step says what of it the GPU was busy. MarianMTModel computes attention by `sdpa`; in SDPA's
FlashAttention where nothing is padded, which it needs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, ViTConfig, ViTForImageClassification

from benchmarks.gpu.campaign import Cell
from benchmarks.speed.end_to_end import generation_step, training_step
from benchmarks.speed.timing import Step, time_contenders
from benchmarks.speed.translation_models import (
    INPUTS,
    MARIAN,
    MARIAN_SMOOTHED,
    OURS,
    OURS_UNREGULARIZED,
    SHAPES,
    Lengths,
    batch_facts,
    build,
    padded_batch,
)
from reluformer import (
    ReLUFormerDecoderConfig,
    ReLUFormerForCausalLM,
    ReLUFormerForImageClassification,
    ReLUFormerVisionConfig,
)

SENTENCES, LONG, UNPADDED = "sentences", "1,024 tokens", "1,024 tokens, no padding"
LENGTHS = {
    SENTENCES: Lengths(25.0, 12.0, 4, 100),
    LONG: Lengths(1000.0, 20.0, 900, 1024, longest_first=True),
    UNPADDED: Lengths(1024.0, 0.0, 1024, 1024),
}
BATCHES = (("iwslt14", SENTENCES, 8192), ("iwslt14", LONG, 8192), ("wmt14 base", LONG, 16384))
TRAINED = (OURS, MARIAN_SMOOTHED, OURS_UNREGULARIZED, MARIAN, "vanilla")
FLASH, NEW_TOKENS = "MarianMTModel flash", 20
GPT2, VIT = GPT2LMHeadModel.__name__, ViTForImageClassification.__name__
DECODERS, VISION = ("ReLU", "ReLU, λ = 0", GPT2), ("ReLU", "softmax", VIT)


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    toy = options.toy
    batches = (("quick", "quick", 64),) if toy else BATCHES
    for shape, lengths, tokens in batches:
        for name in TRAINED:
            yield _training(toy, shape, lengths, tokens, name)
    for sentences in (2,) if toy else (1, 32):
        for name in (OURS, MARIAN, "vanilla"):
            names = {"task": "generation", "shape": batches[0][0], "sentences": sentences, "model": name}
            yield Cell(names, partial(generate, toy, *batches[0][:2], sentences, name), 15)
    for name in DECODERS:
        yield Cell({"task": "training", "shape": "GPT-2", "model": name}, partial(decoder, toy, name), 20)
    for name in VISION:
        yield Cell({"task": "training", "shape": "ViT S/16", "model": name}, partial(vision, toy, name), 20)
    unpadded = ("quick", "quick", 64) if toy else ("iwslt14", UNPADDED, 8192)
    for name in (OURS, MARIAN_SMOOTHED, FLASH):
        yield _training(toy, *unpadded, name)
    for shape, lengths, tokens in batches:
        for name in (OURS, MARIAN_SMOOTHED):
            yield _training(toy, shape, lengths, tokens, name, compiled=True)


def _training(toy: bool, shape: str, lengths: str, tokens: int, name: str, compiled: bool = False) -> Cell:
    names = {"task": "training", "shape": shape, "lengths": lengths, "model": name, "compiled": compiled}
    return Cell(names, partial(train, toy, shape, lengths, tokens, name, compiled), 90 if compiled else 15)


def train(toy: bool, shape: str, lengths: str, tokens: int, name: str, compiled: bool) -> dict[str, Any]:
    batch = padded_batch((LENGTHS | INPUTS)[lengths], SHAPES[shape]["vocab_size"], tokens, 0)
    model = build(MARIAN_SMOOTHED if name == FLASH else name, SHAPES[shape], 0.0 if toy else 0.1, 0)
    facts = batch_facts(batch)
    return {**trained(toy, model, batch, facts["target_tokens"], compiled, flash=name == FLASH), "batch": facts}


def generate(toy: bool, shape: str, lengths: str, sentences: int, name: str) -> dict[str, Any]:
    """Sentences a second with five beams, each hypothesis of NEW_TOKENS."""
    batch = padded_batch((LENGTHS | INPUTS)[lengths], SHAPES[shape]["vocab_size"], 4096, 0)
    device = "cpu" if toy else "cuda"
    inputs = {key: batch[key][:sentences].to(device) for key in ("input_ids", "attention_mask")}
    model = build(name, SHAPES[shape], 0.1, 0).to(device, torch.bfloat16)
    return timed(toy, generation_step(model, inputs, 3 if toy else NEW_TOKENS, "float32"), sentences)


def decoder(toy: bool, name: str) -> dict[str, Any]:
    """16 × 1,024 tokens, without dropout."""
    rows, length = (2, 8) if toy else (16, 1024)
    sizes = {"vocab_size": 60, "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2} if toy else {}
    torch.manual_seed(0)
    if name == GPT2:
        no_dropout = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
        model: PreTrainedModel = GPT2LMHeadModel(GPT2Config(**sizes, **no_dropout, attn_implementation="sdpa"))
    else:
        weight = {} if name == DECODERS[0] else {"regularization_weight": 0.0}
        relu = {"attention_activation": "relu", "attention_gamma": (2 * length) ** 0.5, "skip_logits": True}
        model = ReLUFormerForCausalLM(ReLUFormerDecoderConfig(**sizes, **relu, **weight))
    ids = torch.randint(3, model.config.vocab_size, (rows, length))
    return trained(toy, model.train(), {"input_ids": ids, "labels": ids}, rows * length)


def vision(toy: bool, name: str) -> dict[str, Any]:
    """256 pictures of 224 × 224 in 196 patches, 1,000 classes; the library's ViT has one token more."""
    pictures, size = (2, 32) if toy else (256, 224)
    shape = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536}
    shape |= {"hidden_size": 12, "num_hidden_layers": 1, "intermediate_size": 12} if toy else {}
    shape |= {"image_size": size, "patch_size": 16, "num_labels": 1000}
    torch.manual_seed(0)
    if name == VIT:
        model: PreTrainedModel = ViTForImageClassification(ViTConfig(**shape, attn_implementation="sdpa"))
    else:
        preset = "relu_vit" if name == VISION[0] else "softmax_vit"
        model = ReLUFormerForImageClassification(ReLUFormerVisionConfig.from_preset(preset, **shape))
    batch = {"pixel_values": torch.randn(pictures, 3, size, size), "labels": torch.randint(1000, (pictures,))}
    return trained(toy, model.train(), batch, pictures)


def trained(
    toy: bool,
    model: PreTrainedModel,
    batch: dict[str, Tensor],
    amount: int,
    compiled: bool = False,
    flash: bool = False,
) -> dict[str, Any]:
    """Figures of a training step with `amount` target tokens or pictures."""
    device = "cpu" if toy else "cuda"
    model.to(device)
    if compiled:
        model.compile(backend="eager" if toy else "inductor")
    step = training_step(model, {name: tensor.to(device) for name, tensor in batch.items()}, "bfloat16")
    return timed(toy, partial(_with_flash, step) if flash else step, amount)


def _with_flash(step: Step) -> None:
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        step()


def timed(toy: bool, step: Callable[[], Any], amount: int) -> dict[str, Any]:
    """Speed, milliseconds of a call, peak memory, and what one call keeps the GPU busy with."""
    effort = {"rounds": 2, "round_seconds": 1e-4} if toy else {"rounds": 7, "round_seconds": 0.2}
    if not toy:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(1 if toy else 3):
        step()
    timing = time_contenders({"step": step}, synchronize=None if toy else torch.cuda.synchronize, **effort)
    summary = timing.summary("step")
    figures = {"a_second": 1e3 * amount / summary["median_ms"], **summary}
    if toy:
        return figures
    figures["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return {**figures, **kernel_times(step)}


def kernel_times(step: Callable[[], Any]) -> dict[str, Any]:
    """Milliseconds that the GPU is busy in one call, and of the ten kernels that take most of them."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as run:
        step()
        torch.cuda.synchronize()
    kernels = [
        event for event in run.key_averages() if event.device_type == DeviceType.CUDA and not event.is_user_annotation
    ]
    kernels.sort(key=lambda event: -event.self_device_time_total)
    longest = {event.key[:70]: event.self_device_time_total / 1e3 for event in kernels[:10]}
    return {"gpu_busy_ms": sum(event.self_device_time_total for event in kernels) / 1e3, "kernels": longest}
