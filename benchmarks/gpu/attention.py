"""Attention alone: TFLOP/s beside FlashAttention, cuDNN, FlexAttention and eager, forward, and forward and backward.

16,384 tokens in a batch and 2,048 features in all heads, bfloat16. SDPA is forced to FlashAttention-2 and to cuDNN in turn.
FlexAttention computes softmax, and ReLU + 1, normalised, by the score log(ReLU + 1): near ReLU attention, not the same.
Operations are counted as 4·batch·heads·n²·head_dim forward and 2.5 times that backward, half of both where causal.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.campaign import Cell
from benchmarks.speed.contenders import (
    EAGER_RELU,
    OURS,
    AttentionCase,
    AttentionInputs,
    Forward,
    eager,
    inference_step,
    random_inputs,
    statistics_gradients,
    training_step,
)
from benchmarks.speed.timing import time_contenders
from reluformer import relu_attention

LENGTHS = (16384, 1024, 4096, 512, 2048, 8192)  # what the goals are about comes first
TOKENS, FEATURES, HEAD_DIMS = 16384, 2048, (64, 128)
FLASH, CUDNN, FLEX, FLEX_RELU = "FlashAttention-2", "cuDNN", "FlexAttention softmax", "FlexAttention log(ReLU+1)"
BACKENDS = {FLASH: SDPBackend.FLASH_ATTENTION, CUDNN: SDPBackend.CUDNN_ATTENTION}
PASSES = {"forward": 1.0, "forward+backward": 3.5}
LONGEST_EAGER = 4096  # which holds all weights


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    lengths, head_dims = ((32,), (16,)) if options.toy else (LENGTHS, HEAD_DIMS)
    for dropout_p in (0.0, 0.1):
        for length, head_dim, causal in itertools.product(lengths, head_dims, (False, True)):
            sizes = (1, 2) if options.toy else (TOKENS // length, FEATURES // head_dim)
            dtype, device = (torch.float32, "cpu") if options.toy else (torch.bfloat16, "cuda")
            case = AttentionCase(*sizes, length, head_dim, dtype, causal, True, device)
            names = {"length": length, "head_dim": head_dim, "causal": causal, "dropout": dropout_p}
            yield Cell(names, partial(measure, case, dropout_p, options.toy), 25)


def operations(case: AttentionCase, which: str) -> float:
    """Floating-point operations of one pass, as the literature counts them."""
    return PASSES[which] * 4 * case.batch * case.heads * case.length**2 * case.head_dim / (2 if case.causal else 1)


def measure(case: AttentionCase, dropout_p: float, toy: bool) -> dict[str, Any]:
    """Milliseconds and TFLOP/s by pass and contender; `left_out`: what this card or version cannot run, with the reason."""
    inputs = random_inputs(case, 0, with_mask=case.length <= LONGEST_EAGER)
    leaves = (inputs.query, inputs.key, inputs.value)
    forwards: dict[str, Forward] = {}
    gradients, left_out = {}, {}
    for name, forward in contenders(case, inputs, dropout_p, toy).items():
        statistics = OURS.get(name, "none")
        gradients[name] = (inputs.output_gradient, *statistics_gradients(case, inputs, statistics))
        try:
            training_step(forward, leaves, gradients[name])()
        except RuntimeError as error:
            if name in OURS:
                raise
            left_out[name] = " ".join(str(error).split())[:200]
            continue
        forwards[name] = forward
    figures: dict[str, Any] = {"ms": {}, "tflops": {}, "left_out": left_out}
    for which in PASSES:
        steps = {
            name: inference_step(forward, leaves)
            if which == "forward"
            else training_step(forward, leaves, gradients[name])
            for name, forward in forwards.items()
        }
        effort = {"rounds": 2, "round_seconds": 1e-4} if toy else {"rounds": 9, "round_seconds": 0.03}
        timing = time_contenders(steps, synchronize=None if toy else torch.cuda.synchronize, **effort)
        times = {name: timing.summary(name)["median_ms"] for name in steps}
        figures["ms"][which] = times
        figures["tflops"][which] = {name: operations(case, which) / ms / 1e9 for name, ms in times.items()}
    return figures


def contenders(case: AttentionCase, inputs: AttentionInputs, dropout_p: float, toy: bool) -> dict[str, Forward]:
    """Ours first; FlexAttention has no dropout, and eager rivals none here."""
    found: dict[str, Forward] = {
        name: partial(_fused, statistics, dropout_p, inputs.row_scale, case.causal) for name, statistics in OURS.items()
    }
    found |= {name: partial(_forced, backend, dropout_p, case.causal) for name, backend in BACKENDS.items()}
    if dropout_p == 0:
        found |= {FLEX: flex(case, None, toy), FLEX_RELU: flex(case, _log_relu, toy)}
        if case.length <= LONGEST_EAGER:
            found[EAGER_RELU] = eager(inputs, "relu")
    return found


def _fused(
    statistics: str, dropout_p: float, row_scale: Tensor, causal: bool, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, ...]:
    result = relu_attention(
        query, key, value, row_scale=row_scale, causal=causal, statistics=statistics, dropout_p=dropout_p
    )
    return (result,) if statistics == "none" else tuple(result)


def _forced(
    backend: SDPBackend, dropout_p: float, causal: bool, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, ...]:
    with sdpa_kernel([backend]):
        return (scaled_dot_product_attention(query, key, value, dropout_p=dropout_p, is_causal=causal),)


def flex(case: AttentionCase, score: Callable[..., Tensor] | None, toy: bool) -> Forward:
    # without a reset the compiler gives up after some shapes, and FlexAttention then holds all its scores in memory
    torch.compiler.reset()
    compiled = flex_attention if toy else torch.compile(flex_attention, dynamic=False)
    mask = create_block_mask(_causal, None, None, case.length, case.length, device=case.device) if case.causal else None
    return lambda query, key, value: (compiled(query, key, value, score_mod=score, block_mask=mask),)


def _causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def _log_relu(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return torch.log(torch.relu(score) + 1.0)
