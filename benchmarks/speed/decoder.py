"""Tokens a second of language models on a CPU, with ReLU and softmax attention and beside the library's own; and peak memory.

    python -m benchmarks.speed.decoder             about ten minutes
    python -m benchmarks.speed.decoder --quick     seconds; its figures mean nothing

Models of the size of the recipe `code_decoder_tiny` in GPT-2's and in Llama's architecture, with new weights, for contexts of
128, 1,024 and 4,096 tokens. Training: forward, backward and AdamW, bfloat16 by autocast. Prefill: a prompt as long as the
context, up to its last logits. Generation: greedy, with a growing cache that ends at the context; weights in bfloat16 in the
last two. All contenders of a cell in alternating rounds of one process (see timing.py).

Memory: the extra peak of one training step, each in a process of its own (see memory/peak_step.py).
Writes `benchmarks/results/decoder-cpu.json`.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import DynamicCache, PreTrainedModel
from transformers.utils import logging

from benchmarks.measurement_file import begin, benchmark_parser
from benchmarks.memory import peak_step as memory_step
from benchmarks.memory.peak import METHOD, run_cell
from benchmarks.speed.decoder_models import COMPARED, GPT2, LLAMA, RECIPE, build, shape
from benchmarks.speed.end_to_end import generation_step, inference_step, trained_parameters, training_step
from benchmarks.speed.rivals import a_second, time_rivals
from reluformer.modeling_reluformer.configuration_reluformer import CACHE_NAME
from reluformer.training.run.progress import library_bars
from reluformer.training.run.records import write_json

TASKS, LIBRARIES, DTYPES = ("training", "prefill", "generation"), (GPT2, LLAMA), ("float32", "bfloat16")
CONTEXTS, QUICK_CONTEXTS = (128, 1024, 4096), (16,)
BATCH_TOKENS = 4096  # of an update, as in the recipe
NEW_TOKENS, QUICK_NEW_TOKENS = 32, 3
MEMORY_LENGTHS, QUICK_MEMORY_LENGTHS = (1024, 16384), (64,)


@dataclass(frozen=True)
class Cell:
    """task: training | prefill | generation. library: GPT2 or LLAMA. dtype: float32 | bfloat16. context: tokens."""

    task: str
    library: str
    dtype: str
    context: int


def main(arguments: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, "decoder-cpu.json")
    parser.add_argument("--budget", type=float, default=8.0, help="seconds for a cell (default: 8), at least 3 rounds")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a cell of memory (default: 300)")
    options = parser.parse_args(arguments)
    logging.set_verbosity_error()
    record = begin(options)
    start = time.perf_counter()
    with library_bars(shown=False):  # of loading the weights that are converted
        # first, since a child that fails ends the program
        memory = [measure_memory(cell, options) for cell in tqdm(list(memory_cells(options.quick)), desc="memory")]
        cells = [measure(cell, options) for cell in tqdm(list(all_cells(options.quick)), desc="decoder", unit="cell")]
    settings = {
        "budget": options.budget,
        "threads": torch.get_num_threads(),
        "recipe": RECIPE,
        "shape": shape(options.quick),
        "optimizer": "AdamW, fused",
        "memory": {**memory_step.DECODER, "method": METHOD, "timeout_seconds": options.timeout},
    }
    result = {**record, "settings": settings, "seconds": time.perf_counter() - start, "cells": cells, "memory": memory}
    print(write_json(options.output, result))
    return 0


def all_cells(quick: bool = False) -> Iterator[Cell]:
    """Each task, library, dtype and context once; one short context for a quick run."""
    for values in itertools.product(TASKS, LIBRARIES, DTYPES, QUICK_CONTEXTS if quick else CONTEXTS):
        yield Cell(*values)


def measure(cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    """Times of a step, tokens a second, and the speedups of `COMPARED`."""
    training = cell.task == "training"
    dtype = torch.float32 if training else getattr(torch, cell.dtype)
    models = build(cell.library, cell.context, training=training, dtype=dtype, quick=options.quick, seed=options.seed)
    rows = (2 if options.quick else BATCH_TOKENS // cell.context) if training else 1
    generator = torch.Generator().manual_seed(options.seed)
    ids = torch.randint(3, shape(options.quick)["vocab_size"], (rows, cell.context), generator=generator)
    tokens = ids.numel()
    if training:
        steps = {
            name: training_step(model, {"input_ids": ids, "labels": ids}, cell.dtype) for name, model in models.items()
        }
    elif cell.task == "prefill":
        inputs = {"input_ids": ids, "use_cache": True, "logits_to_keep": 1}
        steps = {name: inference_step(model, inputs, "float32") for name, model in models.items()}
    else:
        tokens = QUICK_NEW_TOKENS if options.quick else NEW_TOKENS
        steps = {name: decoding_step(model, ids[:, :-tokens], tokens) for name, model in models.items()}
    figures = time_rivals(steps, COMPARED, budget=options.budget, quick=options.quick)
    return {
        **asdict(cell),
        "rows": rows,
        "tokens": tokens,
        "parameters": {name: trained_parameters(model) for name, model in models.items()},
        "attn_implementation": {name: model.config._attn_implementation for name, model in models.items()},
        **figures,
        "tokens_a_second": a_second(tokens, figures),
    }


def decoding_step(model: PreTrainedModel, prompt: Tensor, new_tokens: int) -> Callable[[], Tensor]:
    """Greedy generation behind a prompt of which the cache holds all but the last token: the sequences.

    Args:
        prompt: (rows, tokens), at least two tokens.
        new_tokens: of each row; each is one forward pass.
    """
    cache, held = DynamicCache(config=model.config), prompt.shape[1] - 1
    inference_step(model, {"input_ids": prompt[:, :-1], CACHE_NAME: cache, "logits_to_keep": 1}, "float32")()
    batch = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt), CACHE_NAME: cache}
    generate = generation_step(model, batch, new_tokens, "float32", beams=1)

    def step() -> Tensor:
        cache.crop(held - cache.get_seq_length())  # a negative number: so many tokens are removed
        return generate()

    return step


def memory_cells(quick: bool = False) -> Iterator[dict[str, Any]]:
    """Each contender and length once; one contender for a quick run."""
    contenders = tuple(memory_step.DECODER_CONTENDERS)[: 1 if quick else None]
    for contender, length in itertools.product(contenders, QUICK_MEMORY_LENGTHS if quick else MEMORY_LENGTHS):
        yield {"what": "decoder", "contender": contender, "length": length}


def measure_memory(cell: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The cell with its extra peak, or `not_run`, which says why there is none."""
    return {**cell, **run_cell({**cell, "seed": options.seed}, options)}


if __name__ == "__main__":
    sys.exit(main())
