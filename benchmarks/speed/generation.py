"""Beam search of all systems of the paper's Table 4 side by side on a CPU, and their speed against the softmax model's.

    python -m benchmarks.speed.generation             a minute or two
    python -m benchmarks.speed.generation --quick     seconds; its figures mean nothing

Random weights, float32, five beams, every hypothesis of the same length; alternating rounds (see timing.py). end_to_end.py
times the same models against MarianMTModel, but not ReLA. Writes `benchmarks/results/generation-cpu.json`, from which
`docs/reproduction.md` takes the speeds of Table 4.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers.utils import logging

from benchmarks.measurement_file import begin, benchmark_parser
from benchmarks.speed.end_to_end import GENERATION, generation_step
from benchmarks.speed.timing import time_contenders
from benchmarks.speed.translation_models import (
    BATCH_TOKENS,
    BEAMS,
    INPUTS,
    OURS,
    SHAPES,
    TABLE_4,
    batch_facts,
    build,
    padded_batch,
)
from reluformer.training.run.records import write_json

# All systems take part in each: a ratio is of one round, and a machine that others use needs many of them.
ROUNDS = {"multi30k-like": 15, "quick": 3}


def main(arguments: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, "generation-cpu.json")
    options = parser.parse_args(arguments)
    logging.set_verbosity_error()
    record = begin(options)
    kind, shapes = ("quick", ("quick",)) if options.quick else ("multi30k-like", ("tiny", "wide"))
    cells = [measure(shape, kind, options) for shape in tqdm(shapes, desc="generation", unit="cell")]
    settings = {"rounds": ROUNDS, "threads": torch.get_num_threads(), "dtype": "float32", "beams": BEAMS}
    print(write_json(options.output, {**record, "settings": settings, "cells": cells}))
    return 0


def measure(shape: str, kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Times of a call, and for each system how often it is done in the time of one call of the softmax model."""
    sentences, new_tokens = GENERATION[kind]
    tokens = 64 if options.quick else BATCH_TOKENS
    batch = padded_batch(INPUTS[kind], SHAPES[shape]["vocab_size"], tokens, options.seed)
    batch = {name: part[:sentences] for name, part in batch.items()}
    facts = {**batch_facts(batch), "new_tokens": new_tokens}
    del batch["labels"]
    models = {name: build(name, SHAPES[shape], 0.0, options.seed) for name in (OURS, *TABLE_4)}
    steps = {name: generation_step(model, batch, new_tokens, "float32") for name, model in models.items()}
    effort = {"round_seconds": 1e-3} if options.quick else {}
    timing = time_contenders(steps, rounds=ROUNDS[kind], **effort)
    return {
        "shape": shape,
        "inputs": kind,
        "batch": facts,
        "times": {name: timing.summary(name) for name in steps},
        "against_vanilla": {name: timing.speedup(name, "vanilla") for name in steps},
    }


if __name__ == "__main__":
    sys.exit(main())
