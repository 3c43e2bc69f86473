"""What is lost where there is no compiled library: on Windows, without a compiler, and with RELUFORMER_COMPILED=0.

    python -m benchmarks without-library         # five minutes of an idle machine

Attention with it and without it, beside softmax, in the same rounds; and translating with it, beside `generate`, which
is what `Translator` runs without it.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from unittest import mock

import torch

from benchmarks.attention import (
    DTYPES,
    HEAD_DIM,
    HEADS,
    PASSES,
    PLAIN,
    SDPA,
    WITH_STATISTICS,
    AttentionCase,
    random_inputs,
    timed_step,
)
from benchmarks.measurement_file import Benchmark, Names, effort
from benchmarks.timing import Step, time_contenders
from benchmarks.translating import NEW_TOKENS, our_step, texts_of, without_end
from benchmarks.translation import BEAMS, OURS, SHAPES, build, generation_step
from reluformer.modeling_reluformer.fused import attention
from reluformer.translating.fast_translation import Search

LIBRARY, WITHOUT = "with the library", "without the library"
SHAPES_OF_ATTENTION = ((64, 64), (16, 128), (1, 512), (1, 1024), (1, 4096))  # batch and length
SECONDS = 2.0


def cells(quick: bool) -> Iterator[Names]:
    shapes = ((2, 16),) if quick else SHAPES_OF_ATTENTION
    for (batch, length), dtype, which in itertools.product(shapes, DTYPES, PASSES):
        yield {"task": "attention", "batch": batch, "length": length, "dtype": dtype, "pass": which}
    for shape, beams, sentences in itertools.product(("quick",) if quick else ("tiny", "wide"), (1, BEAMS), (1, 16)):
        yield {"task": "translation", "shape": shape, "beams": beams, "sentences": sentences}


def measure(cell: Names, options: argparse.Namespace) -> Names:
    """Milliseconds of a call, with S and T in training, or of a batch of translations."""
    steps = _attention(cell, options) if cell["task"] == "attention" else _translation(cell, options)
    rivals = [name for name in steps if name != LIBRARY]
    return time_contenders(steps, **effort(options, budget=SECONDS)).record({LIBRARY: rivals})


def _attention(cell: Names, options: argparse.Namespace) -> dict[str, Step]:
    sizes = {"batch": cell["batch"], "heads": HEADS, "length": cell["length"], "head_dim": HEAD_DIM}
    case = AttentionCase(**sizes, dtype=getattr(torch, cell["dtype"]), causal=False, backward=cell["pass"] == PASSES[1])
    inputs = random_inputs(case, options.seed)
    ours = timed_step(case, inputs, WITH_STATISTICS if case.backward else PLAIN)
    return {LIBRARY: ours, WITHOUT: _without_library(ours), SDPA: timed_step(case, inputs, SDPA)}


def _without_library(step: Step) -> Step:
    """The same calls where no compiled operator takes them."""

    def uncompiled() -> object:
        with mock.patch.object(attention, "compiled_operator", return_value=None):
            return step()

    return uncompiled


def _translation(cell: Names, options: argparse.Namespace) -> dict[str, Step]:
    """Sentences as those of Multi30k, in float32, of a model with random weights."""
    shape, inputs = SHAPES[cell["shape"]], "quick" if cell["shape"] == "quick" else "multi30k-like"
    batch, sources = texts_of(shape, inputs, cell["sentences"], options.seed)
    new_tokens = NEW_TOKENS[inputs]
    model = build(OURS, shape, 0.0, options.seed).eval()
    generate = _without_library(generation_step(model, batch, new_tokens, "float32", cell["beams"]))
    return {
        LIBRARY: our_step(without_end(model, "float32"), sources, Search(cell["beams"], new_tokens)),
        WITHOUT: generate,
    }


BENCHMARK = Benchmark("without-library", cells, measure, {"budget": SECONDS, "heads": HEADS, "head_dim": HEAD_DIM})
