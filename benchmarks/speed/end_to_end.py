"""Whole training steps and beam search on a CPU: ReLUFormer against MarianMTModel (sdpa) of the same shape, and the baselines.

    python -m benchmarks.speed.end_to_end             some minutes
    python -m benchmarks.speed.end_to_end --quick     seconds; its figures mean nothing

Training: forward, backward and AdamW, target tokens a second; inputs like Multi30k's and of 1,024 tokens; float32 and bfloat16
autocast; dropout 0.1, and on the attention weights 0.1 or 0, since torch's SDPA takes its slow path on a CPU where weights
are dropped. The loss has label smoothing of 0.1; MarianMTModel is there without it, too. Generation: five beams, sentences a
second. Alternating rounds (see timing.py).
Writes `benchmarks/results/end-to-end-cpu.json`.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel
from transformers.utils import logging

from benchmarks.measurement_file import begin, benchmark_parser
from benchmarks.speed.timing import time_contenders
from benchmarks.speed.translation_models import (
    BASELINES,
    BATCH_TOKENS,
    BEAMS,
    INPUTS,
    LABEL_SMOOTHING,
    MARIAN,
    MARIAN_SMOOTHED,
    OURS,
    OURS_UNREGULARIZED,
    SHAPES,
    batch_facts,
    build,
    generation_config,
    padded_batch,
)
from reluformer.training.run.records import write_json

# sources of a generation batch, new tokens of each hypothesis
GENERATION = {"multi30k-like": (16, 15), "1,024 tokens": (2, 32), "quick": (2, 3)}
# Their rows of scores are sorted in float32 whatever the model computes in: one dtype and one dropout are enough.
SLOW = ("sparsemax", "entmax15")
# A large vocabulary, where the loss is most of a step.
LARGE = "wide, 32,000 pieces"


@dataclass(frozen=True)
class Cell:
    """task: training | generation. shape, inputs: names in SHAPES and INPUTS. dtype: float32, or bfloat16 by autocast."""

    task: str
    shape: str
    inputs: str
    dtype: str
    attention_dropout: float

    def contenders(self) -> tuple[str, ...]:
        rivals = tuple(name for name in BASELINES if name not in SLOW or self.dtype == "float32")
        if self.task == "generation":
            return (OURS, MARIAN, *rivals)
        ours_and_marian = (OURS, OURS_UNREGULARIZED, MARIAN, MARIAN_SMOOTHED)
        return (*ours_and_marian, *(rivals if self.attention_dropout > 0 and self.shape != LARGE else ()))


def main(arguments: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, "end-to-end-cpu.json")
    parser.add_argument("--budget", type=float, default=8.0, help="seconds for a cell (default: 8), at least 3 rounds")
    parser.add_argument("--slowest", type=float, default=4.0, help="longest call, in seconds (default: 4)")
    options = parser.parse_args(arguments)
    logging.set_verbosity_error()
    record = begin(options)
    start = time.perf_counter()
    cells = [measure(cell, options) for cell in tqdm(list(all_cells(options.quick)), desc="end to end", unit="cell")]
    settings = {
        "budget": options.budget,
        "slowest": options.slowest,
        "threads": torch.get_num_threads(),
        "shapes": SHAPES,
        "inputs": {name: asdict(lengths) for name, lengths in INPUTS.items()},
        "batch_tokens": BATCH_TOKENS,
        "label_smoothing": LABEL_SMOOTHING,
        "optimizer": "AdamW, fused",
        "beams": BEAMS,
    }
    result = {**record, "settings": settings, "seconds": time.perf_counter() - start, "cells": cells}
    print(write_json(options.output, result))
    return 0


def all_cells(quick: bool = False) -> Iterator[Cell]:
    shapes, inputs = (("quick",), ("quick",)) if quick else (("tiny", "wide"), ("multi30k-like", "1,024 tokens"))
    for shape, kind, dtype in itertools.product(shapes, inputs, ("float32", "bfloat16")):
        for attention_dropout in (0.1, 0.0):
            yield Cell("training", shape, kind, dtype, attention_dropout)
        yield Cell("generation", shape, kind, dtype, 0.0)
    for dtype in () if quick else ("float32", "bfloat16"):
        yield Cell("training", LARGE, "multi30k-like", dtype, 0.1)


def measure(cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    """Times, speeds in the unit of the task, and how ReLUFormer's speed compares with each of the others."""
    shape = SHAPES[cell.shape]
    tokens = 64 if options.quick else BATCH_TOKENS
    batch = padded_batch(INPUTS[cell.inputs], shape["vocab_size"], tokens, options.seed)
    facts = batch_facts(batch)
    models = {name: build(name, shape, cell.attention_dropout, options.seed) for name in cell.contenders()}
    if cell.task == "training":
        steps = {name: training_step(model, batch, cell.dtype) for name, model in models.items()}
        unit, done = "target tokens a second", facts["target_tokens"]
    else:
        sentences, new_tokens = GENERATION[cell.inputs]
        batch = {name: batch[name][:sentences] for name in ("input_ids", "attention_mask")}
        facts |= {"sentences": len(batch["input_ids"]), "new_tokens": new_tokens}
        steps = {name: generation_step(model, batch, new_tokens, cell.dtype) for name, model in models.items()}
        unit, done = "sentences a second", facts["sentences"]
    effort = {"rounds": 3, "round_seconds": 1e-3} if options.quick else {}
    always = (OURS, OURS_UNREGULARIZED, MARIAN, MARIAN_SMOOTHED)
    timing = time_contenders(steps, budget=options.budget, slowest=options.slowest, always=always, **effort)
    times = {name: timing.summary(name) for name in timing.seconds}
    ours = [name for name in (OURS, OURS_UNREGULARIZED) if name in times]
    return {
        **asdict(cell),
        "batch": facts,
        "parameters": {name: trained_parameters(model) for name, model in models.items()},
        "unit": unit,
        "times": times,
        "speeds": {name: 1e3 * done / figures["median_ms"] for name, figures in times.items()},
        "speedups": {name: {rival: timing.speedup(name, rival) for rival in times if rival != name} for name in ours},
        "left_out": timing.left_out,
    }


def trained_parameters(model: PreTrainedModel) -> int:
    """Without Marian's table of positions, which is a parameter there and a buffer here."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def training_step(model: PreTrainedModel, batch: dict[str, Tensor], dtype: str) -> Callable[[], Any]:
    """Forward, backward, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def inference_step(model: PreTrainedModel, inputs: Mapping[str, Any], dtype: str) -> Callable[[], Tensor]:
    """The logits of the inputs, without gradients and dropout."""
    model.eval()

    @torch.no_grad()
    def step() -> Tensor:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            return model(**inputs).logits

    return step


def generation_step(
    model: PreTrainedModel, batch: Mapping[str, Any], new_tokens: int, dtype: str, beams: int = BEAMS
) -> Callable[[], Tensor]:
    """Beam search over the batch, or with one beam greedy search: the sequences, those of a decoder alone with their prompts.

    Raises:
        RuntimeError: on the first call, sequences that have not the length which makes the contenders comparable.
    """
    model.eval()
    config = generation_config(new_tokens, beams)
    given = 1 if model.config.is_encoder_decoder else batch["input_ids"].shape[1]

    def step() -> Tensor:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            sequences = model.generate(**batch, generation_config=config)
        if sequences.shape[1] != given + new_tokens:
            raise RuntimeError(
                f"{type(model).__name__} generated {sequences.shape[1] - given} tokens, not {new_tokens}."
            )
        return sequences

    return step


if __name__ == "__main__":
    sys.exit(main())
