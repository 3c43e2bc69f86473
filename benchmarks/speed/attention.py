"""Speed of attention alone on a CPU: ReLU attention against softmax, sparsemax, entmax15, ReLA, and the products alone.

    python -m benchmarks.speed.attention              about ten minutes on two cores
    python -m benchmarks.speed.attention --quick      seconds; its figures mean nothing

Forward, and forward with backward, of heads of 64 at lengths of 64 to 4,096, float32 and bfloat16, causal and not, in
alternating rounds (see timing.py). Writes `benchmarks/results/attention-cpu.json` and the same cells as a .csv beside it.
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
from benchmarks.speed.contenders import EAGER, OURS, SDPA, AttentionCase, random_inputs, timed_steps
from benchmarks.speed.correctness_gate import failures, run_gate
from benchmarks.speed.matrix_products import FLOOR, FLOOR_MM, MatrixProducts
from benchmarks.speed.timing import Timing, time_contenders
from reluformer.training.run.records import write_json

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
# A batch of four as well, where one sequence alone is little work.
LONGEST_OF_BATCH = 512
# From here on, causal cells leave the eager rivals out: they compute the hidden scores, too.
LONGEST_CAUSAL_EAGER = 1024
DTYPES = (torch.float32, torch.bfloat16)
HEADS, HEAD_DIM = 8, 64


def main(arguments: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, "attention-cpu.json")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds for a cell (default: 3), at least 3 rounds")
    parser.add_argument("--slowest", type=float, default=2.5, help="longest call, in seconds (default: 2.5)")
    options = parser.parse_args(arguments)
    record = begin(options)
    start = time.perf_counter()
    gate = run_gate(DTYPES, seed=options.seed, **({"lengths": (65,)} if options.quick else {}))
    if failures(gate):
        print("attention: a fast path is wrong; nothing was timed.", *failures(gate), sep="\n", file=sys.stderr)
        return 1
    settings = {name: getattr(options, name) for name in ("budget", "slowest")}
    settings |= {"layout": "(batch, heads, length, head_dim), contiguous", "threads": torch.get_num_threads()}
    with MatrixProducts(torch.get_num_threads()) as floor:
        cells = measure_all(list(all_cases(options.quick)), floor, options)
    result = {**record, "settings": settings, "seconds": time.perf_counter() - start, "gate": gate, "cells": cells}
    print(write_json(options.output, result))
    print(write_csv(options.output.with_suffix(".csv"), cells))
    return 0


def all_cases(quick: bool = False) -> Iterator[AttentionCase]:
    """Every cell, each kind from its shortest length to its longest."""
    lengths = (32,) if quick else LENGTHS
    for dtype, causal, backward, length in itertools.product(DTYPES, (False, True), (False, True), lengths):
        yield AttentionCase(1, 2 if quick else HEADS, length, HEAD_DIM, dtype, causal, backward)
    if not quick:
        short = [length for length in lengths if length <= LONGEST_OF_BATCH]
        for dtype, backward, length in itertools.product(DTYPES, (False, True), short):
            yield AttentionCase(4, HEADS, length, HEAD_DIM, dtype, False, backward)


def measure_all(cases: list[AttentionCase], floor: MatrixProducts, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The records of all cells. A call is expected to last four times as long as at half the length."""
    cells = []
    expected: dict[tuple[AttentionCase, str], float] = {}
    for case in tqdm(cases, desc="attention", unit="cell"):
        names, left_out = [], {}
        for name in (*OURS, SDPA, *EAGER):
            seconds = expected.get((case, name), 0.0)
            if name in EAGER and case.causal and case.length > LONGEST_CAUSAL_EAGER:
                left_out[name] = "computes hidden scores, too: see the cell that is not causal"
            elif name in EAGER and seconds > options.slowest:
                left_out[name] = f"a call is expected to take {seconds:.1f} s, the limit is {options.slowest:g} s"
            else:
                names.append(name)
        inputs = random_inputs(case, options.seed, with_mask=any(name in EAGER for name in names))
        steps = timed_steps(case, inputs, tuple(names)) | floor.steps(case, inputs)
        effort = {"rounds": 3, "round_seconds": 1e-3} if options.quick else {}
        always = (*OURS, SDPA, FLOOR, FLOOR_MM)
        timing = time_contenders(steps, budget=options.budget, slowest=options.slowest, always=always, **effort)
        left_out |= timing.left_out
        cells.append(cell_record(case, timing, left_out))
        twice_as_long = replace(case, length=2 * case.length)
        for name in EAGER:
            seconds = timing.summary(name)["median_ms"] / 1e3 if name in timing.seconds else expected.get((case, name))
            # a call that was over the limit is so at every greater length
            expected[twice_as_long, name] = 4 * (options.slowest if seconds is None else seconds)
    return cells


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
