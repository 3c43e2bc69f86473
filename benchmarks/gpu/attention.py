"""Attention alone: TFLOP/s beside FlashAttention, cuDNN, FlexAttention and eager, forward, and forward and backward.

16,384 tokens in a batch and 2,048 features in all heads, bfloat16. SDPA is forced to FlashAttention-2 and to cuDNN in turn.
FlexAttention computes softmax, and ReLU + 1, normalised, by the score log(ReLU + 1): near ReLU attention, not the same.
Operations are counted as 4·batch·heads·n²·head_dim forward and 2.5 times that backward, half of both where causal.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import attention
from benchmarks.attention import EAGER_RELU, OURS, AttentionCase, AttentionInputs, Forward
from benchmarks.gpu.campaign import CUDA, DEVICE, Cell, timed

LENGTHS = (16384, 1024, 4096, 512, 2048, 8192)  # what the goals are about comes first
TOKENS, FEATURES, HEAD_DIMS = 16384, 2048, (64, 128)
FLASH, CUDNN, FLEX = "FlashAttention-2", "cuDNN", "FlexAttention softmax"
BACKENDS = {FLASH: SDPBackend.FLASH_ATTENTION, CUDNN: SDPBackend.CUDNN_ATTENTION}
PASSES = {"forward": 1.0, "forward+backward": 3.5}
LONGEST_EAGER = 4096  # which holds all weights


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    lengths, head_dims = (LENGTHS, HEAD_DIMS) if CUDA else ((32,), (16,))
    for dropout_p, length, head_dim, causal in itertools.product((0.0, 0.1), lengths, head_dims, (False, True)):
        sizes = (TOKENS // length, FEATURES // head_dim) if CUDA else (1, 2)
        dtype = torch.bfloat16 if CUDA else torch.float32
        case = AttentionCase(*sizes, length, head_dim, dtype, causal, True, DEVICE)
        names = {"head_dim": head_dim, "causal": causal, "dropout": dropout_p, "length": length}
        yield Cell(names, partial(measure, case, dropout_p), 25)


def operations(case: AttentionCase, which: str) -> float:
    """Floating-point operations of one pass, as the literature counts them."""
    return PASSES[which] * 4 * case.batch * case.heads * case.length**2 * case.head_dim / (2 if case.causal else 1)


def measure(case: AttentionCase, dropout_p: float) -> dict[str, Any]:
    """Milliseconds and TFLOP/s by pass and contender; `left_out`: what this card or version cannot run, with the reason."""
    inputs = attention.random_inputs(case, 0, with_mask=case.length <= LONGEST_EAGER)
    forwards, trainings, left_out = {}, {}, {}
    for name, forward in rivals(case, inputs, dropout_p).items():
        statistics = attention.statistics_gradients(case, inputs, OURS.get(name, "none"))
        train = attention.training_step(forward, inputs.leaves, (inputs.output_gradient, *statistics))
        try:
            train()
        except RuntimeError as error:
            if name in OURS:
                raise
            left_out[name] = " ".join(str(error).split())[:200]
        else:
            forwards[name], trainings[name] = attention.inference_step(forward, inputs.leaves), train
    result: dict[str, Any] = {"ms": {}, "tflops": {}, "left_out": left_out}
    for which, steps in zip(PASSES, (forwards, trainings), strict=True):
        timing = timed(steps, 0.03)
        times = result["ms"][which] = {name: timing.summary(name)["median_ms"] for name in steps}
        result["tflops"][which] = {name: operations(case, which) / ms / 1e9 for name, ms in times.items()}
    return result


def rivals(case: AttentionCase, inputs: AttentionInputs, dropout_p: float) -> dict[str, Forward]:
    """Ours first; FlexAttention has no dropout, and eager none here."""
    found = {name: attention.fused(case, inputs, statistics, dropout_p) for name, statistics in OURS.items()}
    softmax = attention.sdpa(case, dropout_p)
    found |= {name: sdpa_kernel([backend])(softmax) for name, backend in BACKENDS.items()}
    if dropout_p == 0:
        # without a reset the compiler gives up after some shapes, and FlexAttention then holds all its scores in memory
        torch.compiler.reset()
        found[FLEX] = attention.flex(case, None, CUDA)
        found["FlexAttention log(ReLU+1)"] = attention.flex(case, attention.log_relu, CUDA)
        if case.length <= LONGEST_EAGER:
            found[EAGER_RELU] = attention.eager(inputs, "relu")
    return found
