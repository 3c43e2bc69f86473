"""Is it right on this card? The kernels against float64, whole models against their eager selves, torch.compile, memory."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.gpu.campaign import Cell
from benchmarks.measurement_file import ROOT
from benchmarks.speed.contenders import OURS, AttentionCase, fused, random_inputs, statistics_gradients
from benchmarks.speed.correctness_gate import failures, run_gate
from benchmarks.speed.translation_models import INPUTS, SHAPES, padded_batch
from reluformer import (
    ReLUFormerConfig,
    ReLUFormerDecoderConfig,
    ReLUFormerForCausalLM,
    ReLUFormerForConditionalGeneration,
    ReLUFormerForImageClassification,
    ReLUFormerVisionConfig,
)

NUMERICS = "tests/modeling_reluformer/triton_numerics.py"
KINDS = ("translation", "decoder", "vision")
# A step of attention alone may hold besides its inputs so many tensors of their size: the output, its gradient times the
# row scale, and three gradients.
TENSORS, LENGTH = 5.5, 16384


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    device = "cpu" if options.toy else "cuda"
    yield Cell({"what": "kernels against float64"}, lambda: kernel_tests(options.toy), 100)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for head_dim in (16,) if options.toy else (64, 128):
            lengths = {"lengths": (17,)} if options.toy else {}
            gate = {"head_dim": head_dim, "device": device, **lengths}
            names = {"what": "operator against float64", "dtype": str(dtype), "head_dim": head_dim}
            yield Cell(names, lambda dtype=dtype, gate=gate: operator_errors(dtype, gate), 15)
    for kind in KINDS:
        for dtype in (torch.float32, torch.bfloat16):
            names = {"what": "model, fused against eager", "kind": kind, "dtype": str(dtype)}
            yield Cell(names, lambda kind=kind, dtype=dtype: model_errors(kind, dtype, device), 15)
        names = {"what": "model, torch.compile", "kind": kind}
        yield Cell(names, lambda kind=kind: compiled_errors(kind, device, options.toy), 60)
    for name, statistics in OURS.items():
        names = {"what": f"peak memory, n = {LENGTH:,}", "contender": name}
        yield Cell(names, lambda statistics=statistics: peak_memory(statistics, device, options.toy), 10)


def kernel_tests(toy: bool) -> dict[str, Any]:
    """The tests of the kernels, in a process of their own; one length in Triton's interpreter where it is a toy."""
    command = [sys.executable, "-m", "pytest", NUMERICS, "--noconftest", "-p", "no:cacheprovider", "--tb=short"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"} if toy else os.environ
    if toy:
        command += ["-k", "test_lengths and 15", "-W", "ignore::RuntimeWarning"]
    elif importlib.util.find_spec("xdist"):
        command += ["-n", str(min(14, os.cpu_count() or 1))]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=150)
    if run.returncode:
        raise RuntimeError(f"the tests of the kernels: {run.stdout[-2000:]}{run.stderr[-500:]}")
    return {"tests_passed": int(re.search(r"(\d+) passed", run.stdout)[1])}


def operator_errors(dtype: torch.dtype, gate: dict[str, Any]) -> dict[str, Any]:
    records = run_gate((dtype,), seed=0, **gate)
    if wrong := failures(records):
        raise RuntimeError("; ".join(wrong))
    worst = max(error["relative_rms"] for record in records for error in record["errors"].values())
    return {"checks": len(records), "largest_relative_error": worst}


def model_errors(kind: str, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """The gradients of all parameters, their error against float64 over their size; fused may have twice that of eager."""
    model, batch = model_and_batch(kind, device)
    exact = gradient(model, batch, torch.float64, "eager")
    error = {
        path: float((gradient(model, batch, dtype, path) - exact).norm() / exact.norm()) for path in ("fused", "eager")
    }
    if not error["fused"] <= max(1e-5, 2 * error["eager"]):
        raise RuntimeError(
            f"fused gives gradients with a relative error of {error['fused']:.1e}, eager {error['eager']:.1e}"
        )
    return {"relative_error": error}


def compiled_errors(kind: str, device: str, toy: bool) -> dict[str, Any]:
    model, batch = model_and_batch(kind, device)
    expected = gradient(model, batch, torch.float32, "fused")
    model.compile(fullgraph=True, backend="eager" if toy else "inductor")
    error = float((gradient(model, batch, torch.float32, "fused") - expected).norm() / expected.norm())
    if not error <= 1e-4:
        raise RuntimeError(f"the compiled model's gradients differ by {error:.1e} of their size")
    return {"relative_difference": error}


def model_and_batch(kind: str, device: str) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """A small model of two layers without dropout, float64, and a batch with padding."""
    torch.manual_seed(0)
    shape = {**SHAPES["tiny"], "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 500}
    batch = padded_batch(INPUTS["multi30k-like"], shape["vocab_size"], 600, 0)
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    if kind == "translation":
        config = ReLUFormerConfig.from_preset("reluformer", **shape, dropout=0.0, attention_dropout=0.0)
        model: PreTrainedModel = ReLUFormerForConditionalGeneration(config)
    elif kind == "decoder":
        config = ReLUFormerDecoderConfig(
            **sizes, vocab_size=500, attention_activation="relu", attention_gamma=8.0, regularization_weight=0.0
        )
        model = ReLUFormerForCausalLM(config)
        hidden = batch["attention_mask"] == 0
        batch["labels"] = batch["input_ids"].masked_fill(hidden, -100)
    else:
        config = ReLUFormerVisionConfig.from_preset("relu_vit", **sizes, image_size=60, patch_size=4)
        model = ReLUFormerForImageClassification(config)
        batch = {"pixel_values": torch.randn(4, 3, 60, 60), "labels": torch.tensor([0, 1, 1, 0])}
    return model.double().to(device), {name: tensor.to(device) for name, tensor in batch.items()}


def gradient(model: PreTrainedModel, batch: dict[str, Tensor], dtype: torch.dtype, path: str) -> Tensor:
    """Of the loss by all parameters, one vector of float64; bfloat16 by autocast, as models are trained."""
    weights = torch.float32 if dtype == torch.bfloat16 else dtype
    model = model.to(weights)
    model.set_attn_implementation(path)
    if "pixel_values" in batch:
        batch = {**batch, "pixel_values": batch["pixel_values"].to(weights)}
    with torch.autocast(model.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = model(**batch).loss
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.cat([part.flatten().double() for part in torch.autograd.grad(loss, parameters)])


def peak_memory(statistics: str, device: str, toy: bool) -> dict[str, Any]:
    """Of forward and backward, beyond inputs, over the size of one of them."""
    case = (
        AttentionCase(1, 2, 64, 16, torch.float32, False, True, device)
        if toy
        else AttentionCase(1, 32, LENGTH, 64, torch.bfloat16, False, True, device)
    )
    inputs = random_inputs(case, 0)
    forward: Callable[..., tuple[Tensor, ...]] = fused(case, inputs, statistics)
    gradients = (inputs.output_gradient, *statistics_gradients(case, inputs, statistics))
    leaves = inputs.query, inputs.key, inputs.value
    if toy:
        torch.autograd.grad(forward(*leaves), leaves, gradients)
        return {"tensors": 0.0}
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(forward(*leaves), leaves, gradients)
    extra = torch.cuda.max_memory_allocated() - before
    tensors = extra / (inputs.query.numel() * inputs.query.element_size())
    if tensors > TENSORS:
        raise RuntimeError(f"a step holds {tensors:.1f} tensors of the size of the query, not {TENSORS} at most")
    return {"extra_mib": extra / 2**20, "tensors": tensors}
