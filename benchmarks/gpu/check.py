"""Is it right on this card? The kernels against float64, whole models against their eager selves, torch.compile,
memory."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks import attention
from benchmarks.gpu.campaign import CUDA, DEVICE, ROOT, Cell, peak_bytes
from benchmarks.translation import INPUTS, SHAPES, padded_batch
from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration

NUMERICS = "tests/modeling_reluformer/fused/test_paths.py"
QUIETLY = ("--noconftest", "-p", "no:cacheprovider", "--tb=short", "-W", "ignore::RuntimeWarning")
# A step of attention alone may hold besides its inputs so many tensors of their size: the output, its gradient times
# the row scale, and three gradients.
TENSORS, LENGTH = 5.5, 16384


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    yield Cell({"what": "kernels against float64"}, kernel_tests, 100)
    for what in (torch.float32, torch.bfloat16, "compiled"):
        yield Cell({"what": "model against eager", "as": str(what)}, partial(model_errors, what), 60)
    for name, statistics in attention.OURS.items():
        names = {"what": f"peak memory, n = {LENGTH:,}", "contender": name}
        yield Cell(names, partial(peak_memory, statistics), 10)


def require(right: bool, what: str) -> None:
    if not right:
        raise RuntimeError(what)


def kernel_tests() -> dict[str, Any]:
    """The tests of the kernels, in a process of their own; without a GPU, one length in Triton's interpreter."""
    command = [sys.executable, "-m", "pytest", NUMERICS, *QUIETLY]
    command += ["-k", "triton" if CUDA else "test_every_mask and triton-15-15"]
    if CUDA and importlib.util.find_spec("xdist"):
        command += ["-n", str(min(14, os.cpu_count() or 1))]
    environment = os.environ if CUDA else {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=150)
    require(run.returncode == 0, f"the tests of the kernels: {run.stdout[-2000:]}{run.stderr[-500:]}")
    return {"tests_passed": int(re.search(r"(\d+) passed", run.stdout)[1])}


def model_errors(what: torch.dtype | str) -> dict[str, Any]:
    """The error of all gradients over their size: against float64, fused may have twice that of eager; compiled against
    not."""
    torch.manual_seed(0)
    shape = SHAPES["tiny"] | {"encoder_layers": 2, "decoder_layers": 2, "vocab_size": 500}
    config = ReLUFormerConfig.from_preset("reluformer", **shape, dropout=0.0, attention_dropout=0.0)
    model = ReLUFormerForConditionalGeneration(config).to(DEVICE)
    padded = padded_batch(INPUTS["multi30k-like"], config.vocab_size, 600, 0)
    batch = {name: tensor.to(DEVICE) for name, tensor in padded.items()}
    if what == "compiled":
        expected = gradient(model, batch, torch.float32, "fused")
        model.compile(fullgraph=True, backend="inductor" if CUDA else "eager")
        gradients = {"fused": gradient(model, batch, torch.float32, "fused")}
    else:
        expected = gradient(model, batch, torch.float64, "eager")
        gradients = {path: gradient(model, batch, what, path) for path in ("fused", "eager")}
    error = {path: float((own - expected).norm() / expected.norm()) for path, own in gradients.items()}
    require(error["fused"] <= max(1e-4, 2 * error.get("eager", 0.0)), f"the relative error of the gradients is {error}")
    return {"relative_error": error["fused"], "of_eager": error.get("eager")}


def gradient(model: PreTrainedModel, batch: dict[str, Tensor], dtype: torch.dtype, path: str) -> Tensor:
    """Of the loss by all parameters, one vector of float64; bfloat16 by autocast, as models are trained."""
    model = model.to(torch.float32 if dtype == torch.bfloat16 else dtype)
    model.set_attn_implementation(path)
    with torch.autocast(model.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = model(**batch).loss
    gradients = torch.autograd.grad(loss, tuple(model.parameters()))
    return torch.cat([part.flatten().double() for part in gradients])


def peak_memory(statistics: str) -> dict[str, Any]:
    """Of forward and backward, beyond inputs, over the size of one of them; 0 on a CPU."""
    sizes = (1, 32, LENGTH, 64, torch.bfloat16) if CUDA else (1, 2, 64, 16, torch.float32)
    case = attention.AttentionCase(*sizes, False, True, DEVICE)
    inputs = attention.random_inputs(case, 0)
    gradients = (inputs.output_gradient, *attention.statistics_gradients(case, inputs, statistics))
    extra = peak_bytes(attention.training_step(attention.fused(case, inputs, statistics), inputs.leaves, gradients))
    tensors = extra / inputs.output_gradient.nbytes
    require(tensors <= TENSORS, f"a step holds {tensors:.1f} tensors of the size of the query, not {TENSORS} at most")
    return {"extra_mib": extra / 2**20, "tensors": tensors}
