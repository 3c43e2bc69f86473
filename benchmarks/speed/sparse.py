"""Feed-forward networks that skip zeros, beside torch, the loop without skipping, and int8.

    python -m benchmarks.speed.sparse             about ten minutes on two idle cores
    python -m benchmarks.speed.sparse --quick     seconds; its figures mean nothing

A network is the decoder's own, `ReLUFormerMLP` or `ReLUFormerGatedMLP`, 4 times as wide inside as outside. Contenders in
float32, bfloat16 and int8: torch (int8: `quantize_dynamic`), "dense", our loop with every neuron active, and our loop at each
share of zeros. Weights have a column of ones, and inputs are moved along it until that share of a row is zero; rows are
independent.
Each call takes the next of several networks, so that their weights come from memory as in a model, and not from the cache of a
core. A cache of more than 128 MiB, as some servers have, would hold them all: its figures are not those of memory. The bound is
the time to read the weights that have to be read, by the bandwidth that is measured over as much memory. Alternating rounds
(see timing.py). Writes `benchmarks/results/sparse-cpu.json`; sparse_models.py measures whole models.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from benchmarks.measurement_file import benchmark_parser
from benchmarks.speed.sparse_models import DENSE, SPARSE, THREADS, TORCH, begin_decoding
from benchmarks.speed.timing import Timing, time_contenders
from reluformer import ReLUFormerDecoderConfig
from reluformer.modeling_reluformer.fused.compiled.library import sparse_library
from reluformer.modeling_reluformer.modeling_decoder import ReLUFormerGatedMLP, ReLUFormerMLP
from reluformer.modeling_reluformer.sparse_ffn.blocks import Block
from reluformer.modeling_reluformer.sparse_ffn.forward import MOST_ROWS, SparseFeedForward
from reluformer.training.run.records import write_json

WIDTHS, KINDS, ROWS = (512, 1024, 2048), ("MLP", "GLU"), (1, 5, 8)
ZEROS = (50, 80, 90, 95, 99)  # per cent of a row
DTYPES = ("float32", "bfloat16", "int8")
INNER = 4  # times the width
CYCLED_BYTES = 2**27  # of weights, at least, before one comes again
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class Cell:
    """width: features of a row. kind: MLP or GLU. rows: of a call. threads: of torch."""

    width: int
    kind: str
    rows: int
    threads: int

    @property
    def matrices(self) -> int:
        return 3 if self.kind == "GLU" else 2

    def bytes_read(self, dtype: str, active: float) -> float:
        """Of weights in one call, where this share of the neurons is active: the first matrix is always read."""
        return BYTES[dtype] * INNER * self.width**2 * (1 + (self.matrices - 1) * active)


def main(arguments: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, "sparse-cpu.json")
    parser.add_argument("--budget", type=float, default=7.0, help="seconds for a cell (default: 7), at least 15 rounds")
    options = parser.parse_args(arguments)
    counts, record = begin_decoding(options)
    start = time.perf_counter()
    cells = [
        measure(cell, options) for cell in tqdm(list(all_cells(counts, options.quick)), desc="networks", unit="cell")
    ]
    record["settings"] |= {"budget": options.budget, "inner": INNER, "cycled_bytes": CYCLED_BYTES}
    print(write_json(options.output, {**record, "seconds": time.perf_counter() - start, "cells": cells}))
    return 0


def all_cells(counts: tuple[int, ...] = THREADS, quick: bool = False) -> Iterator[Cell]:
    """Each width, kind, number of rows and of threads once; a small width and one row for a quick run."""
    widths, rows = ((32,), (1,)) if quick else (WIDTHS, ROWS)
    for values in itertools.product(widths, KINDS, rows, counts):
        yield Cell(*values)


@torch.no_grad()
def measure(cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    """Times of a call in every dtype, speedups over torch and over the dense loop, the zeros that there were, and the bound."""
    torch.set_num_threads(cell.threads)
    generator = torch.Generator().manual_seed(options.seed)
    cycled = 2**16 if options.quick else CYCLED_BYTES
    networks = {dtype: build(cell, dtype, cycled, generator) for dtype in DTYPES}
    inputs = {share: shifted_rows(cell, share, generator) for share in ZEROS}
    steps = {
        f"{dtype} {name}": step
        for dtype in DTYPES
        for name, step in dtype_steps(networks[dtype], inputs, dtype).items()
    }
    effort = {"rounds": 3, "round_seconds": 1e-3} if options.quick else {"budget": options.budget}
    timing = time_contenders(steps, **effort)
    zeros = {str(share): zeros_of(networks["float32"][0], x) for share, x in inputs.items()}
    bandwidth = measured_bandwidth(cycled)
    return {
        **asdict(cell),
        "zeros": zeros,
        "bandwidth": bandwidth,
        "copies": {dtype: len(stack) for dtype, stack in networks.items()},
        "times": {name: timing.summary(name) for name in steps},
        "speedups": speedups(timing),
        "bounds_ms": {
            f"{dtype} {share}": 1e3 * cell.bytes_read(dtype, figures["active"]) / bandwidth
            for dtype in DTYPES
            for share, figures in zeros.items()
        },
    }


def build(cell: Cell, dtype: str, cycled: int, generator: torch.Generator) -> list[nn.Module]:
    """Networks of the decoder with new weights, so many that their weights fill `cycled` bytes."""
    gated = cell.kind == "GLU"
    config = ReLUFormerDecoderConfig(
        hidden_size=cell.width,
        intermediate_size=INNER * cell.width,
        num_attention_heads=1,
        hidden_act="relu",
        ffn_type="glu" if gated else "mlp",
        ffn_bias=False,
    )
    count = max(1, -(-cycled // int(cell.bytes_read(dtype, 1.0))))
    stack = []
    for _ in range(count):
        network = (ReLUFormerGatedMLP if gated else ReLUFormerMLP)(config, layer_idx=0).eval()
        for name, weight in network.named_parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[1] ** 0.5)
            if name.startswith(("fc1", "gate_proj")):
                weight[:, 0] = 1.0
        stack.append(network.to(torch.bfloat16 if dtype == "bfloat16" else torch.float32))
    return stack


def shifted_rows(cell: Cell, share: int, generator: torch.Generator) -> Tensor:
    """Rows (rows, width) of which `share` per cent of the neurons are not above zero: their scores are normal around -z."""
    rows = torch.randn(cell.rows, cell.width, generator=generator)
    rows[:, 0] = -NormalDist().inv_cdf(share / 100)
    return rows


def zeros_of(network: nn.Module, rows: Tensor) -> dict[str, float]:
    """zeros: share of a row's activations; active: share of the neurons that are not zero in some row."""
    first = network.fc1 if isinstance(network, ReLUFormerMLP) else network.gate_proj
    asleep = first(rows) <= 0
    return {"zeros": float(asleep.float().mean()), "active": float(1 - asleep.all(0).float().mean())}


def dtype_steps(stack: list[nn.Module], inputs: Mapping[int, Tensor], dtype: str) -> dict[str, Callable[[], Tensor]]:
    """The contenders of a dtype: torch, the dense loop, and the loop at each share of zeros."""
    inputs = {share: rows.to(torch.bfloat16) if dtype == "bfloat16" else rows for share, rows in inputs.items()}
    sparse, dense = ([skipping(network, dtype == "int8", every) for network in stack] for every in (False, True))
    plain = [torch_int8(network) for network in stack] if dtype == "int8" else stack
    rows = inputs[ZEROS[0]]
    steps = {TORCH: cycle(plain, rows), DENSE: cycle(dense, rows)}
    return {**steps, **{f"{SPARSE} {share}": cycle(sparse, rows) for share, rows in inputs.items()}}


def skipping(network: nn.Module, int8: bool, all_active: bool) -> Callable[[Tensor], Tensor]:
    """What `use_sparse_ffn` puts in place of the forward; with `all_active`, the same loop without skipping."""
    gated = isinstance(network, ReLUFormerGatedMLP)
    names = ("gate_proj", "up_proj", "down_proj") if gated else ("fc1", None, "fc2")
    forward = SparseFeedForward(Block("", network, *names, "activation_fn", "relu", "identity", True), int8=int8)
    forward.all_active = all_active
    return forward


def torch_int8(network: nn.Module) -> nn.Module:
    """Dynamic quantisation by torch, of all `nn.Linear` in a copy."""
    return torch.ao.quantization.quantize_dynamic(network, {nn.Linear}, dtype=torch.qint8)


def cycle(calls: list[Callable[[Tensor], Tensor]], rows: Tensor) -> Callable[[], Tensor]:
    """Calls one after the other, and begins again."""
    following = itertools.cycle(calls)
    return lambda: next(following)(rows)


def speedups(timing: Timing) -> dict[str, dict[str, dict[str, float]]]:
    """Of each contender over torch and the dense loop in its dtype, and over torch in float32."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in timing.seconds:
        dtype = name.partition(" ")[0]
        rivals = dict.fromkeys((f"{dtype} {TORCH}", f"{dtype} {DENSE}", f"{DTYPES[0]} {TORCH}"))
        found[name] = {rival: timing.speedup(name, rival) for rival in rivals if rival != name}
    return found


def measured_bandwidth(size: int) -> float:
    """Bytes a second that all threads read together from so much memory: the best of five sums and five products."""
    matrix = torch.ones(max(1, size // 4096), 1024)
    vector, operators = torch.ones(1, 1024), sparse_library(large=False)
    reads: list[Callable[[], Any]] = [matrix.sum, lambda: matrix @ vector[0]]
    if operators is not None:
        reads.append(lambda: operators.dense_projection(vector, matrix, None, None))
    seconds = []
    for read in reads:
        for _ in range(5):
            start = time.perf_counter()
            read()
            seconds.append(time.perf_counter() - start)
    return 4 * matrix.numel() / min(seconds)


assert max(ROWS) <= MOST_ROWS
if __name__ == "__main__":
    sys.exit(main())
