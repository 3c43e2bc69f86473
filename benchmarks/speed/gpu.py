"""Speed of attention alone on a CUDA GPU, in TFLOP/s: ReLU attention against FlashAttention, cuDNN and FlexAttention.

    python -m benchmarks.speed.gpu                    minutes, most of them for compiling
    python -m benchmarks.speed.gpu --quick            two small sizes

Forward, backward, and both; 1,024 to 16,384 tokens, heads of 64 and 128, bfloat16, causal and not, 16,384 tokens in a batch
and 2,048 features in all heads. torch's SDPA is forced to FlashAttention and to cuDNN in turn (by itself it takes the first);
FlexAttention computes ReLU + 1, normalised, by the score log(ReLU + 1): near ReLU attention, not the same. Operations are
counted as 4·batch·heads·n²·head_dim forward and 2.5 times that backward, half of both where causal.
Writes `benchmarks/results/attention-gpu.json` and a .csv beside it; without a CUDA device it says so and writes nothing.
"""

from __future__ import annotations

import csv
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from tqdm.auto import tqdm

from benchmarks.measurement_file import begin, benchmark_parser
from benchmarks.speed.contenders import (
    OURS,
    AttentionCase,
    AttentionInputs,
    Forward,
    fused,
    inference_step,
    random_inputs,
    sdpa,
    statistics_gradients,
    training_step,
)
from benchmarks.speed.correctness_gate import failures, run_gate
from benchmarks.speed.timing import Step, Timing, time_contenders
from reluformer.training.run.records import write_json

LENGTHS = (1024, 2048, 4096, 8192, 16384)
TOKENS, FEATURES, HEAD_DIMS = 16384, 2048, (64, 128)
PASSES = ("forward", "backward", "forward+backward")
FLASH, CUDNN, FLEX = "sdpa flash", "sdpa cuDNN", "flex log(ReLU+1)"
BACKENDS = {FLASH: SDPBackend.FLASH_ATTENTION, CUDNN: SDPBackend.CUDNN_ATTENTION}


def main(arguments: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, "attention-gpu.json")
    parser.add_argument("--budget", type=float, default=1.5, help="seconds for a cell and pass (default: 1.5)")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("gpu: no CUDA device; nothing is measured and nothing is written")
        return 0
    record = begin(options)
    start = time.perf_counter()
    gate = [
        check
        for head_dim in HEAD_DIMS
        for check in run_gate((torch.bfloat16,), seed=options.seed, head_dim=head_dim, device="cuda")
    ]
    if failures(gate):
        print("gpu: a fast path is wrong; nothing was timed.", *failures(gate), sep="\n", file=sys.stderr)
        return 1
    cells = []
    for case in tqdm(list(all_cases(options.quick)), desc="attention", unit="cell"):
        cells += measure(case, options.seed, budget=options.budget)
    settings = {"budget": options.budget, "cudnn": torch.backends.cudnn.version(), "cuda": torch.version.cuda}
    result = {**record, "settings": settings, "seconds": time.perf_counter() - start, "gate": gate, "cells": cells}
    print(write_json(options.output, result))
    print(write_csv(options.output.with_suffix(".csv"), cells))
    return 0


def all_cases(quick: bool = False) -> Iterator[AttentionCase]:
    lengths = LENGTHS[:1] if quick else LENGTHS
    for head_dim, causal, length in itertools.product(HEAD_DIMS, (False, True), lengths):
        yield AttentionCase(
            TOKENS // length, FEATURES // head_dim, length, head_dim, torch.bfloat16, causal, True, "cuda"
        )


def operations(case: AttentionCase, which: str) -> float:
    """Floating-point operations of one pass, as the literature counts them."""
    forward = 4 * case.batch * case.heads * case.length**2 * case.head_dim / (2 if case.causal else 1)
    return forward * {"forward": 1.0, "backward": 2.5, "forward+backward": 3.5}[which]


def measure(case: AttentionCase, seed: int, **effort: float) -> list[dict[str, Any]]:
    """One record for each pass. A rival that this GPU or version cannot run is left out, with the library's reason.

    Args:
        effort: budget, rounds and round_seconds of `time_contenders`.
    """
    inputs = random_inputs(case, seed, with_mask=False)
    synchronize = torch.cuda.synchronize if case.device == "cuda" else None
    forwards, gradients, left_out = {}, {}, {}
    for name, statistics in OURS.items():
        forwards[name] = fused(case, inputs, statistics)
        gradients[name] = (inputs.output_gradient, *statistics_gradients(case, inputs, statistics))
    for name, forward in rivals(case).items():
        try:
            _run_once(forward, inputs)
        except RuntimeError as error:
            left_out[name] = " ".join(str(error).split())[:200]
            continue
        forwards[name], gradients[name] = forward, (inputs.output_gradient,)
    records = []
    for which in PASSES:
        steps = {name: _step(which, forward, inputs, gradients[name]) for name, forward in forwards.items()}
        timing = time_contenders(steps, synchronize=synchronize, **effort)
        records.append(_record(case, which, timing, left_out))
    return records


def rivals(case: AttentionCase) -> dict[str, Forward]:
    """Each is given the gradient in the layout of its output, as a model would."""
    return {**{name: _forced(sdpa(case), backend) for name, backend in BACKENDS.items()}, FLEX: _flex(case)}


def _forced(forward: Forward, backend: SDPBackend) -> Forward:
    def run(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        with sdpa_kernel([backend]):
            return forward(query, key, value)

    return run


def _flex(case: AttentionCase) -> Forward:
    # without a reset the compiler gives up after some shapes, and FlexAttention then holds all its scores in memory
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    block_mask = None
    if case.causal:

        def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return query >= key

        block_mask = create_block_mask(causal, None, None, case.length, case.length, device=case.device)

    def log_relu(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.log(torch.relu(score) + 1.0)

    def run(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        return (compiled(query, key, value, score_mod=log_relu, block_mask=block_mask),)

    return run


def _run_once(forward: Forward, inputs: AttentionInputs) -> None:
    leaves = (inputs.query, inputs.key, inputs.value)
    torch.autograd.grad(forward(*leaves), leaves, inputs.output_gradient)


def _step(which: str, forward: Forward, inputs: AttentionInputs, gradients: tuple[Tensor, ...]) -> Step:
    leaves = (inputs.query, inputs.key, inputs.value)
    if which == "forward":
        return inference_step(forward, leaves)
    if which == "forward+backward":
        return training_step(forward, leaves, gradients)
    return _backward_step(forward(*leaves), leaves, gradients)


def _backward_step(
    outputs: tuple[Tensor, ...], leaves: tuple[Tensor, ...], gradients: tuple[Tensor, ...]
) -> Callable[[], Any]:
    return lambda: torch.autograd.grad(outputs, leaves, gradients, retain_graph=True)


def _record(case: AttentionCase, which: str, timing: Timing, left_out: dict[str, str]) -> dict[str, Any]:
    times = {name: timing.summary(name) for name in timing.seconds}
    fields = replace(case, backward=False).as_record()
    return {
        **fields,
        "pass": which,
        "times": times,
        "tflops": {name: operations(case, which) / figures["median_ms"] / 1e9 for name, figures in times.items()},
        "speedups": {name: {rival: timing.speedup(name, rival) for rival in times if rival != name} for name in OURS},
        "left_out": left_out,
    }


def write_csv(path: Path, cells: list[dict[str, Any]]) -> Path:
    """One line for each cell and contender."""
    columns = ["device", "dtype", "causal", "pass", "batch", "heads", "head_dim", "length"]
    figures = ["median_ms", "p10_ms", "p90_ms", "rounds", "repetitions"]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "contender", *figures, "tflops"])
        for cell in cells:
            for name, time_of in cell["times"].items():
                values = [*(cell[column] for column in columns), name, *(f"{time_of[key]:.6g}" for key in figures)]
                writer.writerow([*values, f"{cell['tflops'][name]:.4g}"])
    return path


if __name__ == "__main__":
    sys.exit(main())
