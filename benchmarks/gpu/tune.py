"""Tiles of each kernel: those that fit are compiled by processes side by side and timed one by one on 16,384 tokens."""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import timeit
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks.gpu.attention import FEATURES, HEAD_DIMS, TOKENS
from benchmarks.gpu.campaign import Cell
from benchmarks.gpu.models import kernel_times
from reluformer.modeling_reluformer.fused import triton_launch
from reluformer.modeling_reluformer.fused.specification import Specification
from reluformer.modeling_reluformer.fused.triton_launch import Tiles, tile_sizes, triton_backward, triton_forward

# products of matrices of each kernel, over those of the forward pass; which statistics change its code
KERNELS = {
    "forward": (1.0, ("none", "sum", "sum+entropy")),
    "query_gradient": (1.5, ("none", "sum+entropy")),
    "key_value_gradient": (2.0, ("none", "sum+entropy")),
}
SHARED_MEMORY, COMPILE_SECONDS, REPEAT = 227 * 1024, 150, 5


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    head_dims = (16,) if options.toy else HEAD_DIMS
    jobs = [(kernel, dim, which) for dim in head_dims for kernel, (_, several) in KERNELS.items() for which in several]
    if not options.toy:
        every = [(*job, tiles) for job in jobs for tiles in tiles_to_try(*job[:2])]
        with multiprocessing.get_context("spawn").Pool(min(15, os.cpu_count() or 1)) as pool:
            pool.map_async(compile_one, every, chunksize=1).wait(COMPILE_SECONDS)
    for job in jobs:
        names = dict(zip(("kernel", "head_dim", "statistics"), job, strict=True))
        yield Cell(names, partial(tune, options.toy, *job), 30)


def compile_one(job: tuple[str, int, str, Tiles]) -> None:
    """Into Triton's cache; what fails or takes too long fails again in `tune`."""
    with contextlib.suppress(Exception):
        runner(*job, 512, torch.bfloat16)()


def tiles_to_try(kernel: str, head_dim: int) -> Iterator[Tiles]:
    """Those whose operands fit the shared memory and whose accumulators the registers; the kernel's own rows are not few."""
    for queries, keys, warps, stages in product((32, 64, 128), (32, 64, 128), (4, 8), (2, 3, 4)):
        own, other = (keys, queries) if kernel == "key_value_gradient" else (queries, keys)
        forward = kernel == "forward"  # the others hold two tiles of their own rows, and the weights
        memory = 2 * head_dim * ((1 if forward else 2) * own + 2 * other * stages) + (not forward) * 4 * own * other
        crowded = queries * keys / warps > (4096 if forward else 2048)
        if own >= 64 and (warps == 4 or own == 128) and memory <= SHARED_MEMORY and not crowded:
            yield Tiles(queries, keys, warps, stages)


def tune(toy: bool, kernel: str, head_dim: int, statistics: str) -> dict[str, Any]:
    """Milliseconds of the kernel with the package's own tiles, and with the five best; what did not run, by its reason."""
    tokens, dtype = (32, torch.float32) if toy else (TOKENS, torch.bfloat16)
    query = torch.empty(1, 1, tokens, head_dim, dtype=dtype, device="cpu" if toy else "cuda")
    own = tile_sizes(kernel, query, statistics != "none")
    found, failed = {}, {}
    for tiles in dict.fromkeys((own, *([Tiles(16, 16, 4, 1)] if toy else tiles_to_try(kernel, head_dim)))):
        name = str(tuple(tiles))
        try:
            found[name] = milliseconds(kernel, runner(kernel, head_dim, statistics, tiles, tokens, dtype), toy)
        except Exception as error:
            if "CUDA error" in str(error):
                raise
            failed[name] = f"{type(error).__name__}: {str(error)[:80]}"
    if not found:
        raise RuntimeError(f"no tiles ran: {failed}")
    best, *others = sorted(found, key=found.__getitem__)[:5]
    tflops = KERNELS[kernel][0] * 4 * tokens**2 * FEATURES / found[best] / 1e9
    of_own = {"own": str(tuple(own)), "own_ms": found.get(str(tuple(own)))}
    of_best = {
        "best": best,
        "best_ms": found[best],
        "best_tflops": tflops,
        "next": {name: found[name] for name in others},
    }
    return {**of_own, **of_best, "tried": len(found), "left_out": failed}


def runner(
    kernel: str, head_dim: int, statistics: str, tiles: Tiles, tokens: int, dtype: torch.dtype
) -> Callable[[], None]:
    """A function that launches the kernel with these tiles, and the other of its pass with its own."""
    torch.manual_seed(0)
    heads, device = (1, "cpu") if dtype == torch.float32 else (FEATURES // head_dim, "cuda")
    inputs = [torch.randn(1, tokens, heads, head_dim, device=device).to(dtype).transpose(1, 2) for _ in range(4)]
    scale = torch.rand(1, 1, tokens, device=device) * 0.01 + 0.01
    gain = torch.randn(1, heads, tokens, device=device)
    gains = (gain if statistics != "none" else None, gain if statistics == "sum+entropy" else None)
    specification = Specification(row_scale=scale, scale=head_dim**-0.5, statistics=statistics)
    call = triton_forward if kernel == "forward" else partial(triton_backward, inputs.pop(), *gains)

    def run() -> None:
        triton_launch.tile_sizes = lambda name, *given: tiles if name == kernel else tile_sizes(name, *given)
        call(*inputs[:3], specification)

    return run


def milliseconds(kernel: str, run: Callable[[], None], toy: bool) -> float:
    run()
    if toy:
        return 1e3 * timeit.timeit(run, number=1)
    times = kernel_times(lambda: [run() for _ in range(REPEAT)])["kernels"]
    return sum(ms for name, ms in times.items() if name.startswith(kernel)) / REPEAT
