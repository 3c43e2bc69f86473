"""Tiles of each kernel, timed on 16,384 tokens."""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks.gpu.attention import FEATURES, HEAD_DIMS, TOKENS
from benchmarks.gpu.campaign import CUDA, DEVICE, Cell
from benchmarks.gpu.models import kernel_times
from reluformer.modeling_reluformer.fused import triton_launch
from reluformer.modeling_reluformer.fused.specification import Specification
from reluformer.modeling_reluformer.fused.triton_launch import Tiles, tile_sizes, triton_backward, triton_forward

# kernel → the statistics that change its code
KERNELS = {
    "forward": ("none", "sum", "sum+entropy"),
    "query_gradient": ("none", "sum+entropy"),
    "key_value_gradient": ("none", "sum+entropy"),
}
# some two seconds each, most of them to compile
TILES = [Tiles(*sizes) for sizes in product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4))]
TILES, LENGTH = (TILES, TOKENS) if CUDA else ([Tiles(16, 16, 4, 1)], 32)
OF_KIND = {"dtype": torch.bfloat16 if CUDA else torch.float32, "device": DEVICE}
REPEAT = 5


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for head_dim in (16,) if options.toy else HEAD_DIMS:
        for kernel, several in KERNELS.items():
            for which in several:
                names = {"kernel": kernel, "head_dim": head_dim, "statistics": which}
                yield Cell(names, partial(tune, **names), 80)


def tune(kernel: str, head_dim: int, statistics: str) -> dict[str, Any]:
    """Milliseconds of the kernel with the package's own tiles, and with the five best; what did not run, by its
    reason."""
    own = tile_sizes(kernel, torch.empty(1, 1, LENGTH, head_dim, **OF_KIND), statistics != "none")
    milliseconds_of, failed = {}, {}
    for tiles in dict.fromkeys((own, *TILES)):
        name = str(tuple(tiles))
        try:
            milliseconds_of[name] = milliseconds(kernel, runner(kernel, head_dim, statistics, tiles))
        except Exception as error:
            if "CUDA error" in str(error):
                raise
            failed[name] = f"{type(error).__name__}: {str(error)[:80]}"
    best = sorted(milliseconds_of, key=milliseconds_of.__getitem__)[:5]
    if not best:
        raise RuntimeError(f"no tiles ran: {failed}")
    named = {
        "own": str(tuple(own)),
        "own_ms": milliseconds_of.get(str(tuple(own))),
        "best": best[0],
        "best_ms": milliseconds_of[best[0]],
    }
    return {
        **named,
        "next": {name: milliseconds_of[name] for name in best[1:]},
        "tried": len(milliseconds_of),
        "left_out": failed,
    }


def runner(kernel: str, head_dim: int, statistics: str, tiles: Tiles) -> Callable[[], None]:
    """A function that launches the kernel with these tiles, and the other of its pass with its own."""
    torch.manual_seed(0)
    heads = FEATURES // head_dim if CUDA else 1
    inputs = [torch.randn(1, LENGTH, heads, head_dim, **OF_KIND).transpose(1, 2) for _ in range(4)]
    gain = torch.randn(1, heads, LENGTH, device=DEVICE)
    gains = (gain if statistics != "none" else None, gain if statistics == "sum+entropy" else None)
    row_scale = torch.rand(1, 1, LENGTH, device=DEVICE) * 0.01 + 0.01
    specification = Specification(row_scale=row_scale, scale=head_dim**-0.5, statistics=statistics)
    call = triton_forward if kernel == "forward" else partial(triton_backward, inputs.pop(), *gains)

    triton_launch.tile_sizes = lambda name, *arguments: tiles if name == kernel else tile_sizes(name, *arguments)
    triton_launch._plan_of.cache_clear()  # which hold those of before
    return lambda: call(*inputs[:3], specification)


def milliseconds(kernel: str, run: Callable[[], None]) -> float:
    run()
    if not CUDA:
        return 1e3 * timeit.timeit(run, number=1)
    times = kernel_times(lambda: [run() for _ in range(REPEAT)])["kernels"]
    return sum(ms for name, ms in times.items() if name.startswith(kernel)) / REPEAT
