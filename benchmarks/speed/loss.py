"""The loss that holds no logits beside the same loss from logits, forward and backward, on a CPU.

    python -m benchmarks.speed.loss             about two minutes
    python -m benchmarks.speed.loss --quick     seconds; its figures mean nothing

From hidden states and the vocabulary's matrix to the gradients of both: label smoothing 0.1, one position in eight is padding.
Alternating rounds, see timing.py. Writes `benchmarks/results/loss-cpu.json`.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from benchmarks.measurement_file import begin, benchmark_parser
from benchmarks.speed.timing import time_contenders
from reluformer.modeling_reluformer.fused.vocabulary_loss import vocabulary_loss
from reluformer.training.run.records import write_json

WITHOUT_LOGITS, WITH_LOGITS = "without logits", "from logits"
LABEL_SMOOTHING = 0.1
# A batch of the recipes (4,096 tokens on both sides together), with the widths of Transformer-Tiny and Transformer-Base.
POSITIONS, WIDTHS, VOCABULARIES = 2048, (64, 512), (10_000, 64_000)
QUICK = {"positions": 24, "widths": (8,), "vocabularies": (50,)}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def main(arguments: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, "loss-cpu.json")
    parser.add_argument("--budget", type=float, default=6.0, help="seconds for a cell (default: 6)")
    options = parser.parse_args(arguments)
    record = begin(options)
    start = time.perf_counter()
    sizes = QUICK if options.quick else {"positions": POSITIONS, "widths": WIDTHS, "vocabularies": VOCABULARIES}
    cases = list(itertools.product(DTYPES, sizes["widths"], sizes["vocabularies"]))
    cells = [
        measure(dtype, sizes["positions"], width, vocabulary, options)
        for dtype, width, vocabulary in tqdm(cases, desc="loss", unit="cell")
    ]
    for cell in cells:
        gain = cell["speedup"]
        print(
            f"{cell['dtype']}, width {cell['width']}, {cell['vocabulary']:,} pieces: {gain['median']:.2f} times as fast as "
            f"{WITH_LOGITS} [{gain['p10']:.2f}, {gain['p90']:.2f}]"
        )
    settings = {"label_smoothing": LABEL_SMOOTHING, "threads": torch.get_num_threads(), "budget": options.budget}
    seconds = time.perf_counter() - start
    print(write_json(options.output, {**record, "settings": settings, "seconds": seconds, "cells": cells}))
    return 0


def measure(dtype: str, positions: int, width: int, vocabulary: int, options: argparse.Namespace) -> dict[str, Any]:
    """Times of forward and backward with either loss.

    Raises:
        RuntimeError: the two losses or their gradients differ by more than rounding.
    """
    generator = torch.Generator().manual_seed(options.seed)
    hidden = torch.randn(positions, width, generator=generator).to(DTYPES[dtype]).requires_grad_()
    weight = (torch.randn(vocabulary, width, generator=generator) * width**-0.5).to(DTYPES[dtype]).requires_grad_()
    labels = torch.randint(vocabulary, (positions,), generator=generator)
    labels[::8] = -100
    losses = {WITHOUT_LOGITS: _without_logits, WITH_LOGITS: _from_logits}
    steps = {name: _step(loss, hidden, weight, labels) for name, loss in losses.items()}
    found, expected = (steps[name]() for name in losses)
    # bfloat16 keeps eight bits of logits and gradients; sums over the batch are wide in both.
    tolerance = {"float32": 1e-4, "bfloat16": 3e-2}[dtype]
    for name, ours, theirs in zip(("loss", "of the hidden states", "of the matrix"), found, expected, strict=True):
        difference = (ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()
        if not difference <= tolerance:
            raise RuntimeError(f"{dtype}, {vocabulary} pieces: the two losses differ in {name}: {difference:.2g}")
    timing = time_contenders(steps, budget=options.budget, rounds=3 if options.quick else None)
    times = {name: timing.summary(name) for name in steps}
    sizes = {"dtype": dtype, "positions": positions, "width": width, "vocabulary": vocabulary}
    return {**sizes, "times": times, "speedup": timing.speedup(WITHOUT_LOGITS, WITH_LOGITS)}


def _step(loss: Callable[..., Tensor], hidden: Tensor, weight: Tensor, labels: Tensor) -> Callable[[], tuple]:
    def step() -> tuple[Tensor, ...]:
        value = loss(hidden, weight, labels)
        return value.detach(), *torch.autograd.grad(value, (hidden, weight))

    return step


def _without_logits(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return vocabulary_loss(hidden, weight, labels, label_smoothing=LABEL_SMOOTHING)


def _from_logits(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """As models of Transformers compute it: logits of every position, the loss in float32."""
    logits = nn.functional.linear(hidden, weight).float()
    return nn.functional.cross_entropy(logits, labels, label_smoothing=LABEL_SMOOTHING, reduction="sum")


if __name__ == "__main__":
    sys.exit(main())
