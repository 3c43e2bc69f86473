"""Tiles of each kernel: those that fit are compiled by processes side by side and timed one by one on 16,384 tokens.

By hand, for one of the processes: python -m benchmarks.gpu.tune PART/PARTS
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks.gpu.attention import FEATURES, HEAD_DIMS, TOKENS
from benchmarks.gpu.campaign import Cell
from benchmarks.gpu.models import kernel_times
from benchmarks.measurement_file import ROOT
from reluformer import attention_triton
from reluformer.attention_triton import Tiles, tile_sizes, triton_backward, triton_forward

# products of matrices of each kernel, over those of the forward pass; which statistics change its code
KERNELS = {
    "forward": (1.0, ("none", "sum", "sum+entropy")),
    "query_gradient": (1.5, ("none", "sum+entropy")),
    "key_value_gradient": (2.0, ("none", "sum+entropy")),
}
SHARED_MEMORY, COMPILE_SECONDS = 227 * 1024, 150


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    if not options.toy:
        compile_all(min(15, os.cpu_count() or 1))
    for head_dim, (kernel, (_, statistics)) in product((16,) if options.toy else HEAD_DIMS, KERNELS.items()):
        for which in statistics:
            names = {"kernel": kernel, "head_dim": head_dim, "statistics": which}
            yield Cell(names, partial(tune, kernel, head_dim, which, options.toy), 30)


def compile_all(parts: int) -> None:
    """Into Triton's cache. What a process that takes too long did not compile, the timing does."""
    command = [sys.executable, "-m", "benchmarks.gpu.tune"]
    processes = [subprocess.Popen([*command, f"{part}/{parts}"], cwd=ROOT) for part in range(parts)]
    end = time.monotonic() + COMPILE_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def compile_part(part: int, parts: int) -> None:
    jobs = [(k, d, s) for d, (k, (_, statistics)) in product(HEAD_DIMS, KERNELS.items()) for s in statistics]
    every = [(*job, tiles) for job in jobs for tiles in tiles_to_try(*job[:2])]
    for kernel, head_dim, statistics, tiles in every[part::parts]:
        try:
            runner(kernel, head_dim, statistics, tiles, 512, torch.bfloat16, "cuda")()
        except Exception as error:  # `tune` tells it, which meets it again
            print(f"{kernel} {tuple(tiles)}: {type(error).__name__}", file=sys.stderr)


def tiles_to_try(kernel: str, head_dim: int) -> Iterator[Tiles]:
    """Those whose operands fit the shared memory and whose accumulators the registers; the kernel's own rows are not few."""
    for queries, keys, warps, stages in product((32, 64, 128), (32, 64, 128), (4, 8), (2, 3, 4)):
        own, other = (keys, queries) if kernel == "key_value_gradient" else (queries, keys)
        held = 1 if kernel == "forward" else 2  # tiles of the own rows
        memory = 2 * head_dim * (held * own + 2 * other * stages) + (kernel != "forward") * 4 * own * other
        crowded = queries * keys / warps > (4096 if kernel == "forward" else 2048)
        if own >= 64 and (warps == 4 or own == 128) and memory <= SHARED_MEMORY and not crowded:
            yield Tiles(queries, keys, warps, stages)


def tune(kernel: str, head_dim: int, statistics: str, toy: bool) -> dict[str, Any]:
    """Milliseconds of the kernel with the package's own tiles, and with the five best; what did not run, by its reason."""
    tokens, dtype, device = (32, torch.float32, "cpu") if toy else (TOKENS, torch.bfloat16, "cuda")
    run = partial(runner, kernel, head_dim, statistics, tokens=tokens, dtype=dtype, device=device)
    own = tile_sizes(kernel, torch.empty(1, 1, tokens, head_dim, dtype=dtype))
    found, failed = {}, {}
    for tiles in dict.fromkeys((own, *([Tiles(16, 16, 4, 1)] if toy else tiles_to_try(kernel, head_dim)))):
        try:
            found[tiles] = milliseconds(kernel, run(tiles), toy)
        except Exception as error:
            if "CUDA error" in str(error):
                raise
            failed[str(tuple(tiles))] = f"{type(error).__name__}: {str(error)[:80]}"
    factor = KERNELS[kernel][0] * 4 * tokens**2 * FEATURES / 1e9
    best = sorted(found, key=found.__getitem__)[:5]
    show = [{"tiles": list(tiles), "ms": found[tiles], "tflops": factor / found[tiles]} for tiles in best]
    return {"own": {"tiles": list(own), "ms": found.get(own)}, "best": show, "tried": len(found), "left_out": failed}


def runner(
    kernel: str, head_dim: int, statistics: str, tiles: Tiles, tokens: int, dtype: torch.dtype, device: str
) -> Any:
    """A function that launches the kernel with these tiles, and the others of its pass with theirs."""
    torch.manual_seed(0)
    heads = 1 if device == "cpu" else FEATURES // head_dim
    query, key, value, gradient = (
        torch.randn(1, tokens, heads, head_dim, device=device).to(dtype).transpose(1, 2) for _ in range(4)
    )
    scale = torch.rand(1, 1, tokens, device=device) * 0.01 + 0.01
    gain = torch.randn(1, heads, tokens, device=device)
    gains = (gain if statistics != "none" else None, gain if statistics == "sum+entropy" else None)
    options: dict[str, Any] = {"activation": "relu", "scale": head_dim**-0.5, "causal": False, "query_offset": 0}
    options |= {"dropout_p": 0.0, "seed": 0, "statistics": statistics}
    inputs = (query, key, value, scale, None, None, None)

    def run() -> None:
        attention_triton.tile_sizes = lambda name, query: tiles if name == kernel else tile_sizes(name, query)
        triton_forward(*inputs, **options) if kernel == "forward" else triton_backward(
            gradient, *gains, *inputs, **options
        )

    return run


def milliseconds(kernel: str, run: Any, toy: bool, repeat: int = 5) -> float:
    run()
    start = time.perf_counter()
    if toy:
        run()
        return 1e3 * (time.perf_counter() - start)
    times = kernel_times(lambda: [run() for _ in range(repeat)])["kernels"]
    return sum(ms for name, ms in times.items() if name.startswith(kernel)) / repeat


if __name__ == "__main__":
    compile_part(*map(int, sys.argv[1].split("/")))
