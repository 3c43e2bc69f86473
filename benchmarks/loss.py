"""The loss that holds no logits beside the same loss from logits: forward, and the gradients of hidden states and matrix."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from benchmarks.measurement_file import Benchmark, Names, effort
from benchmarks.timing import time_contenders
from reluformer.modeling_reluformer.fused.vocabulary_loss import vocabulary_loss

WITHOUT_LOGITS, WITH_LOGITS = "without logits", "from logits"
LABEL_SMOOTHING = 0.1
# bfloat16 keeps eight bits of logits and gradients; sums over the batch are wide in both.
TOLERANCES = {"float32": 1e-4, "bfloat16": 3e-2}


def cells(quick: bool) -> Iterator[Names]:
    """A batch of the recipes (4,096 tokens on both sides together), with the widths of Transformer-Tiny and Transformer-Base."""
    positions, widths, sizes = (24, (8,), (50,)) if quick else (2048, (64, 512), (10_000, 64_000))
    for dtype, width, vocabulary in itertools.product(TOLERANCES, widths, sizes):
        yield {"dtype": dtype, "positions": positions, "width": width, "vocabulary": vocabulary}


def measure(cell: Names, options: argparse.Namespace, earlier: list[Names]) -> Names:
    """Times of forward and backward with either loss; one position in eight is padding.

    Raises:
        RuntimeError: the two losses or their gradients differ by more than rounding.
    """
    generator = torch.Generator().manual_seed(options.seed)
    dtype, vocabulary = getattr(torch, cell["dtype"]), cell["vocabulary"]
    hidden = torch.randn(cell["positions"], cell["width"], generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, cell["width"], generator=generator) * cell["width"] ** -0.5
    weight = weight.to(dtype).requires_grad_()
    labels = torch.randint(vocabulary, (cell["positions"],), generator=generator)
    labels[::8] = -100

    def without_logits() -> tuple[Tensor, ...]:
        return with_gradients(vocabulary_loss(hidden, weight, labels, label_smoothing=LABEL_SMOOTHING))

    def from_logits() -> tuple[Tensor, ...]:  # as models of Transformers do
        logits = nn.functional.linear(hidden, weight).float()
        options = {"label_smoothing": LABEL_SMOOTHING, "reduction": "sum"}
        return with_gradients(nn.functional.cross_entropy(logits, labels, **options))

    def with_gradients(loss: Tensor) -> tuple[Tensor, ...]:
        return loss.detach(), *torch.autograd.grad(loss, (hidden, weight))

    for ours, theirs in zip(without_logits(), from_logits(), strict=True):
        difference = (ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()
        if not difference <= TOLERANCES[cell["dtype"]]:
            raise RuntimeError(f"loss: {cell}: the two losses or their gradients differ by {difference:.2g}")
    steps = {WITHOUT_LOGITS: without_logits, WITH_LOGITS: from_logits}
    return time_contenders(steps, **effort(options, budget=6.0)).record({WITHOUT_LOGITS: [WITH_LOGITS]})


BENCHMARK = Benchmark("loss", cells, measure, {"label_smoothing": LABEL_SMOOTHING, "budget": 6.0})
