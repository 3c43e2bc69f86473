"""Peak memory of one training step on a CPU: fused ReLU attention with its regulariser, eager ReLU, and softmax in SDPA.

    python -m benchmarks.memory.peak                 some minutes
    python -m benchmarks.memory.peak --quick         seconds; its figures mean nothing

Attention alone (forward, L_reg, backward) and a whole model with padded batches, at 1,024 to 16,384 tokens; and a model of short
sentences with 10,000 and 64,000 pieces, with its logits and without them, beside MarianMTModel. Every cell runs in
a process of its own; peak_step.py says how the peak is taken. Linux only. A cell that would need more than the limit is not
run: what it needs is then computed from the two shorter cells, as a part that grows with n and one that grows with n².
Writes `benchmarks/results/memory-cpu.json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from tqdm.auto import tqdm

from benchmarks.measurement_file import ROOT, begin, benchmark_parser
from benchmarks.memory import peak_step as memory_step
from reluformer.training.run.records import write_json

VOCABULARIES = (10_000, 64_000)
LENGTHS = (1024, 2048, 4096, 8192, 16384)
CLEAR_REFS = Path("/proc/self/clear_refs")
METHOD = (
    "a new process for each cell; VmHWM of the step (Linux, reset through /proc/self/clear_refs) less VmRSS before it, after "
    "inputs were made, a short step was done, and malloc_trim. Counted in pages of 4 KiB by the kernel, which updates its "
    "counters in batches: to about 1 MB. The allocator is glibc's as it comes: variables MALLOC_* are taken away."
)


def main(arguments: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, "memory-cpu.json")
    parser.add_argument("--limit", type=float, default=0.6, help="share of the available memory (default: 0.6)")
    parser.add_argument("--timeout", type=float, default=150, help="seconds for a cell (default: 150)")
    options = parser.parse_args(arguments)
    if not CLEAR_REFS.exists():
        print("memory: error: this program reads Linux's /proc, which is not here", file=sys.stderr)
        return 2
    record = begin(options)
    start = time.perf_counter()
    available = psutil.virtual_memory().available
    settings = {
        "method": METHOD,
        "attention": memory_step.ATTENTION,
        "model": {**memory_step.MODEL, "batch": memory_step.MODEL_BATCH},
        "vocabulary": memory_step.VOCABULARY_MODEL,
        "available_bytes": available,
        "limit_bytes": int(options.limit * available),
        "timeout_seconds": options.timeout,
        "threads": torch.get_num_threads(),
    }
    vocabularies = (100,) if options.quick else VOCABULARIES
    lengths = (64,) if options.quick else LENGTHS
    contenders = ("fused",) if options.quick else tuple(memory_step.CONTENDERS)
    ladders = list(itertools.product(("attention", "model"), contenders))
    cells: list[dict[str, Any]] = []
    losses = list(itertools.product(vocabularies, memory_step.VOCABULARY_CONTENDERS))
    with tqdm(total=len(ladders) * len(lengths) + len(losses), desc="memory", unit="cell") as progress:
        for what, contender in ladders:
            cells += climb(what, contender, lengths, settings, options, progress)
        for vocabulary, contender in losses:
            cell = {"what": "vocabulary", "contender": contender, "vocabulary": vocabulary}
            cell["length"] = memory_step.VOCABULARY_MODEL["tokens"]
            cells.append({**cell, **run_cell({**cell, "seed": options.seed}, options)})
            progress.update()
    result = {**record, "environment": child_environment(record["environment"]), "settings": settings}
    print(write_json(options.output, {**result, "seconds": time.perf_counter() - start, "cells": cells}))
    return 0


def climb(
    what: str,
    contender: str,
    lengths: tuple[int, ...],
    settings: dict[str, Any],
    options: argparse.Namespace,
    progress: tqdm,
) -> list[dict[str, Any]]:
    """The cells of one contender, from the shortest length up; `not_run` says why where there is no figure."""
    cells: list[dict[str, Any]] = []
    needs: dict[int, float] = {}
    stopped = None
    for length in lengths:
        needs[length] = expected_bytes(needs, length)
        cell = {"what": what, "contender": contender, "length": length}
        if needs[length] > settings["limit_bytes"]:
            cell |= {"expected_bytes": needs[length], "not_run": f"needs about {needs[length] / 1e9:.0f} GB"}
        elif stopped is not None:
            cell["not_run"] = stopped
        else:
            cell |= run_cell({**cell, "seed": options.seed}, options)
            stopped = cell.get("not_run")
            needs[length] = cell.get("extra_bytes", needs[length])
        cells.append(cell)
        progress.update()
    return cells


def expected_bytes(needs: dict[int, float], length: int) -> float:
    """a·n + b·n² through what half and a quarter of the length need; four times the half where there is no quarter."""
    half, quarter = needs.get(length // 2), needs.get(length // 4)
    if half is None:
        return 0.0
    if quarter is None:
        return 4 * half
    # with m = n/4: quarter = a m + b m², half = 2 a m + 4 b m²
    quadratic = max(0.0, (half - 2 * quarter) / 2)
    return 4 * (quarter - quadratic) + 16 * quadratic


def run_cell(cell: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """What the child measured, or `not_run` where it was stopped, or this is not Linux.

    Raises:
        RuntimeError: the child failed.
    """
    if not CLEAR_REFS.exists():
        return {"not_run": "needs Linux's /proc"}
    environment = child_environment(dict(os.environ))
    if options.threads is not None:
        environment["OMP_NUM_THREADS"] = str(options.threads)
    command = [sys.executable, "-m", "benchmarks.memory.peak_step", json.dumps(cell)]
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=options.timeout, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        return {"not_run": f"not finished within {options.timeout:g} s"}
    if done.returncode != 0:
        raise RuntimeError(f"{cell}: the process ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": time.perf_counter() - start}


def child_environment(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("MALLOC_")}


if __name__ == "__main__":
    sys.exit(main())
