"""Attention alone: TFLOP/s beside FlashAttention, cuDNN, FlexAttention and eager, forward, and forward and backward.

16,384 tokens in a batch and 2,048 features in all heads, bfloat16. SDPA is forced to FlashAttention-2 and to cuDNN in
turn. FlexAttention computes softmax, and ReLU + 1, normalised, by the score log(ReLU + 1): near ReLU attention, not the
same. Operations are counted as 4·batch·heads·n²·head_dim forward and 2.5 times that backward, half of both where
causal.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import attention
from benchmarks.attention import EAGER_RELU, OURS, AttentionCase, AttentionInputs, Forward
from benchmarks.gpu.campaign import CUDA, DEVICE, Cell, clocks, timed
from benchmarks.timing import Step
from reluformer.modeling_reluformer.attention_reluformer import reference_attention

LENGTHS = (16384, 1024, 4096, 512, 2048, 8192)  # what the goals are about comes first
TOKENS, FEATURES, HEAD_DIMS = 16384, 2048, (64, 128)
FLASH, FLASH_3, CUDNN, FLEX = "FlashAttention-2", "FlashAttention-3", "cuDNN", "FlexAttention softmax"
PRODUCT, PRODUCT_SIZE, CHECKED_ROWS = "product", 8192, 32
BACKENDS = {FLASH: SDPBackend.FLASH_ATTENTION, CUDNN: SDPBackend.CUDNN_ATTENTION}
PASSES = {"forward": 1.0, "forward+backward": 3.5}
LONGEST_EAGER = 4096  # which holds all weights


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    lengths, head_dims = ((32,), (16,)) if options.toy else (LENGTHS, HEAD_DIMS)
    for dropout_p, length, head_dim, causal in itertools.product((0.0, 0.1), lengths, head_dims, (False, True)):
        sizes = (1, 2) if options.toy else (TOKENS // length, FEATURES // head_dim)
        dtype = torch.float32 if options.toy else torch.bfloat16
        case = AttentionCase(*sizes, length, head_dim, dtype, causal, True, DEVICE)
        names = {"head_dim": head_dim, "causal": causal, "dropout": dropout_p, "length": length}
        yield Cell(names, partial(measure, case, dropout_p), 25)


def operations(case: AttentionCase, which: str) -> float:
    """Floating-point operations of one pass, as the literature counts them."""
    return PASSES[which] * 4 * case.batch * case.heads * case.length**2 * case.head_dim / (2 if case.causal else 1)


def measure(case: AttentionCase, dropout_p: float) -> dict[str, Any]:
    """Milliseconds, their P10 and P90, and TFLOP/s by pass and contender; `left_out`: what this card or version cannot
    run, with the reason. `product`: TFLOP/s of the library's own product in the same rounds, the limit. `errors`: see
    `row_errors`.
    """
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
    result: dict[str, Any] = {
        "ms": {},
        "p10_p90_ms": {},
        "tflops": {},
        "product": {},
        "clocks": {},
        "left_out": left_out,
    }
    product, work = product_step(case)
    for which, steps in zip(PASSES, (forwards, trainings), strict=True):
        timing = timed({**steps, PRODUCT: product}, 0.03)
        summaries = {name: timing.summary(name) for name in (*steps, PRODUCT)}
        result["product"][which] = work / summaries.pop(PRODUCT)["median_ms"] / 1e9
        times = result["ms"][which] = {name: summary["median_ms"] for name, summary in summaries.items()}
        result["p10_p90_ms"][which] = {name: [each["p10_ms"], each["p90_ms"]] for name, each in summaries.items()}
        result["tflops"][which] = {name: operations(case, which) / ms / 1e9 for name, ms in times.items()}
        result["clocks"][which] = clocks()
    if dropout_p == 0:
        result["errors"] = {name: row_errors(case, inputs, statistics) for name, statistics in OURS.items()}
    return {"dtype": str(case.dtype).removeprefix("torch."), **result}


def product_step(case: AttentionCase) -> tuple[Step, float]:
    """A square product in the dtype of the case, which is the most that the card does, and its operations."""
    size = PRODUCT_SIZE if CUDA else 64
    left, right = (torch.randn(size, size, dtype=case.dtype, device=case.device) for _ in range(2))
    return lambda: left @ right, 2.0 * size**3


@torch.no_grad()
def row_errors(case: AttentionCase, inputs: AttentionInputs, statistics: str) -> dict[str, float]:
    """Of the output, S and T at the size that is timed: their error over their norm, against float64, on some rows of
    each head of the last sequence, the first and the last query among them."""
    results = attention.fused(case, inputs, statistics)(*inputs.leaves)
    rows = torch.linspace(0, case.length - 1, min(CHECKED_ROWS, case.length), device=case.device).long()
    query, key, value = (states[-1:].double() for states in inputs.leaves)
    positions = torch.arange(case.length, device=case.device)
    exact = reference_attention(
        query[:, :, rows],
        key,
        value,
        activation="relu",
        mask=(positions <= rows[:, None])[None, None] if case.causal else None,
        row_scale=inputs.row_scale[-1:, :, rows].double(),
        statistics="sum+entropy",
    )
    errors = {}
    for name, own, right in zip(("output", "S", "T"), results, (exact.output, *exact[2:]), strict=False):
        errors[name] = float((own[-1:, :, rows].double() - right).norm() / right.norm())
    return errors


def flash_attention_3(case: AttentionCase) -> Forward:
    """FlashAttention-3, which has no dropout, from a wheel of its own; a `RuntimeError` where there is none."""
    try:
        attend = importlib.import_module("flash_attn_interface").flash_attn_func
    except ImportError as error:
        reason = f"no package flash_attn_interface: {error}"

        def missing(*states: Tensor) -> tuple[Tensor, ...]:
            raise RuntimeError(reason)

        return missing

    def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        output = attend(*(states.transpose(1, 2) for states in (query, key, value)), causal=case.causal)
        return ((output[0] if isinstance(output, tuple) else output).transpose(1, 2),)

    return forward


def rivals(case: AttentionCase, inputs: AttentionInputs, dropout_p: float) -> dict[str, Forward]:
    """Ours first; FlexAttention has no dropout, and eager none here."""
    contenders = {name: attention.fused(case, inputs, statistics, dropout_p) for name, statistics in OURS.items()}
    softmax = attention.sdpa(case, dropout_p)
    contenders |= {name: sdpa_kernel([backend])(softmax) for name, backend in BACKENDS.items()}
    if dropout_p == 0:
        contenders[FLASH_3] = flash_attention_3(case)
        # without a reset the compiler gives up after some shapes, and FlexAttention then holds all its scores in memory
        torch.compiler.reset()
        contenders[FLEX] = attention.flex(case, None, CUDA)
        contenders["FlexAttention log(ReLU+1)"] = attention.flex(case, attention.log_relu, CUDA)
        if case.length <= LONGEST_EAGER:
            contenders[EAGER_RELU] = attention.eager(inputs, "relu")
    return contenders
