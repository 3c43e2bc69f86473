"""Speed of attention alone on a CPU: ReLU attention against softmax, sparsemax, entmax15, ReLA, and the products alone.

    python -m benchmarks.speed.attention              about ten minutes on two cores
    python -m benchmarks.speed.attention --quick      seconds; its figures mean nothing

Forward, and forward with backward, float32 and bfloat16, causal and not, in alternating rounds (see timing.py):

- all rivals: one sequence, 8 heads of 64, lengths of 64 to 4,096
- short: lengths of 16 to 256, batches of 1, 4 and 64, heads of 32 and 64, against eager ReLU and softmax SDPA
- batches of 4 and 8 at 512 and 1,024, against softmax SDPA
- a length of 1: what a call costs by itself

Writes `benchmarks/results/attention-cpu.json` and the same cells as a .csv beside it.
Ends with status 1, before anything is timed, where a fast path differs from the float64 reference.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from benchmarks.measurement_file import begin, benchmark_parser
from benchmarks.speed.contenders import (
    EAGER,
    EAGER_RELU,
    OURS,
    PLAIN,
    SDPA,
    WITH_STATISTICS,
    AttentionCase,
    random_inputs,
    timed_steps,
)
from benchmarks.speed.correctness_gate import failures, run_gate
from benchmarks.speed.matrix_products import FLOOR, FLOOR_MM, MatrixProducts
from benchmarks.speed.timing import Timing, time_contenders
from reluformer.training.run.records import write_json

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
SHORT_LENGTHS, SHORT_BATCHES, SHORT_HEAD_DIMS = (16, 32, 64, 128, 256), (1, 4, 64), (32, 64)
# Batch and length: one batch alone hid a whole cell that was four times as slow as softmax.
LONG_BATCHES = ((4, 512), (4, 1024), (8, 512))
LONGEST_CAUSAL = 2048
# From here on, causal cells leave the eager rivals out, which compute the hidden scores, too, and all cells the slowest ones.
LONGEST_CAUSAL_EAGER = LONGEST_SPARSE = 1024
SPARSE = ("sparsemax", "entmax15", "rela")
DTYPES = (torch.float32, torch.bfloat16)
HEADS, HEAD_DIM = 8, 64


def main(arguments: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, "attention-cpu.json")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds for a cell (default: 3), at least 3 rounds")
    parser.add_argument("--short_budget", type=float, default=0.6, help="of a cell up to n = 256 (default: 0.6)")
    parser.add_argument("--slowest", type=float, default=2.5, help="longest call, in seconds (default: 2.5)")
    options = parser.parse_args(arguments)
    record = begin(options)
    start = time.perf_counter()
    where = {"lengths": (65,)} if options.quick else {}
    gate = [
        check
        for head_dim in SHORT_HEAD_DIMS
        for check in run_gate(DTYPES, seed=options.seed, head_dim=head_dim, **where)
    ]
    if failures(gate):
        print("attention: a fast path is wrong; nothing was timed.", *failures(gate), sep="\n", file=sys.stderr)
        return 1
    settings = {name: getattr(options, name) for name in ("budget", "short_budget", "slowest")}
    settings |= {"layout": "(batch, heads, length, head_dim), contiguous", "threads": torch.get_num_threads()}
    with MatrixProducts(torch.get_num_threads()) as floor:
        cells = measure_all(list(all_cases(options.quick)), floor, options)
    result = {**record, "settings": settings, "seconds": time.perf_counter() - start, "gate": gate, "cells": cells}
    print(write_json(options.output, result))
    print(write_csv(options.output.with_suffix(".csv"), cells))
    return 0


def all_cases(quick: bool = False) -> Iterator[AttentionCase]:
    """Every cell once, each kind from its shortest length to its longest."""
    kinds = tuple(itertools.product(DTYPES, (False, True), (False, True)))
    lengths, heads = ((LENGTHS[0],), 2) if quick else (LENGTHS, HEADS)
    for (dtype, causal, backward), length in itertools.product(kinds, lengths):
        if not causal or length <= LONGEST_CAUSAL:
            yield AttentionCase(1, heads, length, HEAD_DIM, dtype, causal, backward)
    batches, head_dims, lengths = ((4,), (32,), (16,)) if quick else (SHORT_BATCHES, SHORT_HEAD_DIMS, SHORT_LENGTHS)
    for (dtype, causal, backward), *shape in itertools.product(kinds, batches, head_dims, lengths):
        case = AttentionCase(shape[0], heads, shape[2], shape[1], dtype, causal, backward)
        if not has_all_rivals(case):
            yield case
    for (dtype, causal, backward), (batch, length) in itertools.product(kinds, () if quick else LONG_BATCHES):
        yield AttentionCase(batch, heads, length, HEAD_DIM, dtype, causal, backward)
    for dtype, backward in itertools.product(DTYPES, (False, True)):
        yield AttentionCase(1, heads, 1, HEAD_DIM, dtype, False, backward)


def has_all_rivals(case: AttentionCase) -> bool:
    """Whether this is a cell of the first kind, with every contender."""
    return case.batch == 1 and case.head_dim == HEAD_DIM and case.length >= LENGTHS[0]


def contenders_of(case: AttentionCase) -> tuple[str, ...]:
    if has_all_rivals(case):
        return (*OURS, SDPA, *EAGER, FLOOR, FLOOR_MM)
    return (PLAIN, WITH_STATISTICS, SDPA, *((EAGER_RELU,) if case.length <= SHORT_LENGTHS[-1] else ()))


def measure_all(cases: list[AttentionCase], floor: MatrixProducts, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The records of all cells. A call is expected to last four times as long as at half the length."""
    cells = []
    expected: dict[tuple[AttentionCase, str], float] = {}
    for case in tqdm(cases, desc="attention", unit="cell"):
        names, left_out = _chosen(case, expected, options.slowest)
        inputs = random_inputs(case, options.seed, with_mask=any(name in EAGER for name in names))
        floors = floor.steps(case, inputs) if FLOOR in names else {}
        steps = timed_steps(case, inputs, tuple(name for name in names if name not in floors)) | floors
        timing = time_contenders(
            steps, slowest=options.slowest, always=(*OURS, SDPA, FLOOR, FLOOR_MM), **_effort(case, options)
        )
        left_out |= timing.left_out
        cells.append(cell_record(case, timing, left_out))
        twice_as_long = replace(case, length=2 * case.length)
        for name in EAGER:
            seconds = timing.summary(name)["median_ms"] / 1e3 if name in timing.seconds else expected.get((case, name))
            # a call that was over the limit is so at every greater length
            expected[twice_as_long, name] = 4 * (options.slowest if seconds is None else seconds)
    return cells


def _chosen(
    case: AttentionCase, expected: dict[tuple[AttentionCase, str], float], slowest: float
) -> tuple[list[str], dict[str, str]]:
    """The contenders of a cell, and why each of the others is left out."""
    left_out = {}
    for name in contenders_of(case):
        seconds = expected.get((case, name), 0.0)
        if name in EAGER and case.causal and case.length > LONGEST_CAUSAL_EAGER:
            left_out[name] = "computes hidden scores, too: see the cell that is not causal"
        elif name in SPARSE and case.length > LONGEST_SPARSE:
            left_out[name] = f"timed up to n = {LONGEST_SPARSE:,}"
        elif name in EAGER and seconds > slowest:
            left_out[name] = f"a call is expected to take {seconds:.1f} s, the limit is {slowest:g} s"
    return [name for name in contenders_of(case) if name not in left_out], left_out


def _effort(case: AttentionCase, options: argparse.Namespace) -> dict[str, Any]:
    """How long a cell is timed; one of the many small ones in shorter rounds."""
    if options.quick:
        return {"rounds": 3, "round_seconds": 1e-3}
    if has_all_rivals(case) or case.length > SHORT_LENGTHS[-1]:
        return {"budget": options.budget}
    return {"budget": options.short_budget, "round_seconds": 0.01}


def cell_record(case: AttentionCase, timing: Timing, left_out: dict[str, str]) -> dict[str, Any]:
    """Times of all contenders; `speedups[a][b]`: how often a is done in the time of one call of b."""
    baselines = [name for name in (*OURS, FLOOR) if name in timing.seconds]
    return {
        **case.as_record(),
        "times": {name: timing.summary(name) for name in timing.seconds},
        "speedups": {
            name: {rival: timing.speedup(name, rival) for rival in timing.seconds if rival != name}
            for name in baselines
        },
        "left_out": left_out,
    }


def write_csv(path: Path, cells: list[dict[str, Any]]) -> Path:
    """One line for each cell and contender; speedups are those of the fused function without statistics over it."""
    columns = ["device", "dtype", "causal", "pass", "batch", "heads", "head_dim", "length"]
    figures = ["median_ms", "p10_ms", "p90_ms", "rounds", "repetitions"]
    speedups = ["median", "p10", "p90"]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "contender", *figures, *(f"fused_speedup_{name}" for name in speedups)])
        for cell in cells:
            for name, time_of in cell["times"].items():
                over = cell["speedups"].get("fused", {}).get(name, {})
                values = [cell[column] for column in columns] + [name]
                values += [f"{time_of[figure]:.6g}" for figure in figures]
                writer.writerow([*values, *(f"{over[key]:.4f}" if over else "" for key in speedups)])
    return path


if __name__ == "__main__":
    sys.exit(main())
