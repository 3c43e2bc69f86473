"""Beam search with the compiled step of decoding (torch.compile, static cache) beside the step as it is, on a CPU.

    python -m benchmarks.speed.compiled_step             some minutes: compiling takes most of them
    python -m benchmarks.speed.compiled_step --quick     half a minute; its figures mean nothing

Random weights, five beams, inputs like Multi30k's, alternating rounds (see timing.py). Prints how much faster a call gets and
how long the first one takes, and writes `benchmarks/results/compiled-step-cpu.json`.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers.utils import logging

from benchmarks.measurement_file import begin, benchmark_parser
from benchmarks.speed.end_to_end import GENERATION
from benchmarks.speed.timing import time_contenders
from benchmarks.speed.translation_models import (
    BATCH_TOKENS,
    INPUTS,
    OURS,
    SHAPES,
    build,
    generation_config,
    padded_batch,
)
from reluformer.training.run.records import write_json

ROUNDS = 15


def main(arguments: list[str] | None = None) -> int:
    options = benchmark_parser(__doc__, "compiled-step-cpu.json").parse_args(arguments)
    logging.set_verbosity_error()
    record = begin(options)
    shapes = ("quick",) if options.quick else ("tiny", "wide")
    cells = [measure(shape, options) for shape in tqdm(shapes, desc="compiled step", unit="shape")]
    for cell in cells:
        gain = cell["speedup"]
        print(
            f"{cell['shape']}: the compiled step generates {gain['median']:.2f} times as fast [{gain['p10']:.2f}, "
            f"{gain['p90']:.2f}]; its first call took {cell['first_call_seconds']:.0f} s"
        )
    settings = {"rounds": ROUNDS, "threads": torch.get_num_threads(), "dtype": "float32", "beams": 5}
    print(write_json(options.output, {**record, "settings": settings, "cells": cells}))
    return 0


def measure(shape: str, options: argparse.Namespace) -> dict[str, Any]:
    """Times of a call, and seconds of the first one, which compiles.

    Raises:
        RuntimeError: the two generate different sequences.
    """
    kind = "quick" if options.quick else "multi30k-like"
    sentences, new_tokens = GENERATION[kind]
    batch = padded_batch(INPUTS[kind], SHAPES[shape]["vocab_size"], BATCH_TOKENS, options.seed)
    batch = {name: batch[name][:sentences] for name in ("input_ids", "attention_mask")}
    plain, compiled = (build(OURS, SHAPES[shape], 0.0, options.seed).eval() for _ in range(2))
    compiled.forward = torch.compile(compiled.forward, fullgraph=True, dynamic=False)
    growing, static = generation_config(new_tokens), generation_config(new_tokens)
    static.cache_implementation = "static"
    steps = {
        "growing cache": lambda: plain.generate(**batch, generation_config=growing),
        "compiled step, static cache": lambda: compiled.generate(**batch, generation_config=static),
    }
    start = time.perf_counter()
    found = steps["compiled step, static cache"]()
    first = time.perf_counter() - start
    if not torch.equal(found, steps["growing cache"]()):
        raise RuntimeError(
            f"The compiled step of the shape {shape!r} generates other sequences than the step as it is."
        )
    timing = time_contenders(steps, rounds=3 if options.quick else ROUNDS)
    times = {name: timing.summary(name) for name in steps}
    return {"shape": shape, "first_call_seconds": first, "times": times, "speedup": timing.speedup(*reversed(steps))}


if __name__ == "__main__":
    sys.exit(main())
