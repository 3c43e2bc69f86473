"""Peak memory of one training step on a CPU, each in a process of its own. Linux only.

The inputs are made, and the same step is done once with short ones, so that libraries are loaded and threads started. Freed
memory is given back (malloc_trim), Linux is told to forget the peak so far (/proc/self/clear_refs), and then the step runs:
its extra peak is VmHWM after it less VmRSS before it. Gradients of parameters exist before; those of inputs do not.

A cell that would need more than the limit is not run: what it needs is then computed from the two shorter ones, as a part that
grows with n and one that grows with n².
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import torch

from benchmarks.attention import AttentionCase, eager, fused, penalty, random_inputs
from benchmarks.measurement_file import ROOT, Benchmark, Names
from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration

LENGTHS = (1024, 2048, 4096, 8192, 16384)
WARM_UP_LENGTH = 256  # long enough that the fused path takes its blocks and starts its threads
LIMIT, TIMEOUT = 0.6, 300.0  # of the available memory; seconds of a cell
METHOD = (
    "a new process for each cell; VmHWM of the step (Linux, reset through /proc/self/clear_refs) less VmRSS before it, after "
    "inputs were made, a short step was done, and malloc_trim. Counted in pages of 4 KiB by the kernel, which updates its "
    "counters in batches: to about 1 MB. The allocator is glibc's as it comes: variables MALLOC_* are taken away."
)
ATTENTION = {"batch": 1, "heads": 8, "head_dim": 64, "dtype": "float32"}
MODEL = {"vocab_size": 512, "d_model": 512, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 2048}
MODEL |= {"decoder_ffn_dim": 2048, "encoder_attention_heads": 8, "decoder_attention_heads": 8}
MODEL |= {"dropout": 0.1, "attention_dropout": 0.0}
MODEL_BATCH = 2
# contender → preset and attn_implementation of the model; alone, softmax is torch's own function
CONTENDERS = {"fused": ("reluformer", "fused"), "eager relu": ("reluformer", "eager"), "sdpa": ("vanilla", "sdpa")}
Run = Callable[[], None]
MakeRun = Callable[[int], Run]  # length → one training step, its inputs already made


def cells(quick: bool) -> Iterator[Names]:
    """Attention alone and a model with padded batches, each from its shortest length up."""
    contenders = ("fused",) if quick else CONTENDERS
    for what, contender, length in itertools.product(("attention", "model"), contenders, (64,) if quick else LENGTHS):
        yield {"what": what, "contender": contender, "length": length}


def measure(cell: Names, options: argparse.Namespace, earlier: list[Names]) -> Names:
    """`extra_bytes` of the step, or `not_run`, which says why there are none, with `expected_bytes`.

    Raises:
        RuntimeError: the process failed.
    """
    ladder = [each for each in earlier if all(each[name] == cell[name] for name in ("what", "contender"))]
    needed = expected_bytes(
        {each["length"]: each.get("extra_bytes", each.get("expected_bytes")) for each in ladder}, cell
    )
    if needed > LIMIT * psutil.virtual_memory().available:
        return {"expected_bytes": needed, "not_run": f"needs about {needed / 1e9:.0f} GB"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    environment["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    command = [sys.executable, "-m", "benchmarks.memory", json.dumps({**cell, "seed": options.seed})]
    start = time.perf_counter()
    run = {"capture_output": True, "text": True, "check": False, "timeout": TIMEOUT, "cwd": ROOT}
    try:
        done = subprocess.run(command, env=environment, **run)
    except subprocess.TimeoutExpired:
        return {"not_run": f"not finished within {TIMEOUT:g} s"}
    if done.returncode != 0:
        raise RuntimeError(f"{cell}: the process ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": time.perf_counter() - start}


def expected_bytes(needs: dict[int, float | None], cell: Names) -> float:
    """a·n + b·n² through what half and a quarter of the length need; four times the half where there is no quarter."""
    half, quarter = needs.get(cell["length"] // 2), needs.get(cell["length"] // 4)
    if half is None:
        return 0.0
    if quarter is None:
        return 4 * half
    # with m = n/4: quarter = a m + b m², half = 2 a m + 4 b m²
    quadratic = max(0.0, (half - 2 * quarter) / 2)
    return 4 * (quarter - quadratic) + 16 * quadratic


def main() -> int:
    """The process of one cell, which is its argument; prints one JSON object."""
    cell = json.loads(sys.argv[1])
    torch.manual_seed(cell["seed"])
    make = {"attention": attention_step, "model": model_step}
    print(json.dumps(peak(make[cell["what"]](cell), cell["length"])))
    return 0


def peak(step: MakeRun, length: int) -> Names:
    """Extra peak of the step at this length in bytes, and what it stood on."""
    run, warm_up = step(length), step(min(length, WARM_UP_LENGTH))
    warm_up()
    del warm_up
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    run()
    return {"extra_bytes": resident("VmHWM") - before, "before_bytes": before}


def resident(field: str) -> int:
    """VmRSS (now) or VmHWM (peak) of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def attention_step(cell: Names) -> MakeRun:
    """Attention alone with the regulariser (softmax without): forward, L_reg of its rows, backward to q, k and v."""
    sizes = {name: ATTENTION[name] for name in ("batch", "heads", "head_dim")}

    def step(length: int) -> Run:
        case = AttentionCase(**sizes, length=length, dtype=torch.float32, causal=False, backward=True)
        inputs = random_inputs(case, cell["seed"])

        def run() -> None:
            if cell["contender"] == "sdpa":
                output = torch.nn.functional.scaled_dot_product_attention(*inputs.leaves)
                torch.autograd.grad(output, inputs.leaves, inputs.output_gradient)
                return
            statistics = "sum+entropy"
            ours = cell["contender"] == "fused"
            forward = fused(case, inputs, statistics) if ours else eager(inputs, "relu", statistics)
            output, *sums = forward(*inputs.leaves)
            outputs = [output, penalty(inputs.visible_keys, *sums)]
            torch.autograd.grad(outputs, inputs.leaves, [inputs.output_gradient, torch.ones(())])

        return run

    return step


def model_step(cell: Names) -> MakeRun:
    """A model with its loss: forward and backward of two padded sequences; the second is three quarters as long."""
    preset, implementation = CONTENDERS[cell["contender"]]
    config = ReLUFormerConfig.from_preset(preset, **MODEL, max_position_embeddings=max(cell["length"], WARM_UP_LENGTH))
    config._attn_implementation = implementation
    model = ReLUFormerForConditionalGeneration(config).train()

    def step(length: int) -> Run:
        real = torch.arange(length) < torch.tensor([[length], [max(1, 3 * length // 4)]])
        tokens = torch.randint(4, MODEL["vocab_size"], (2, MODEL_BATCH, length))
        inputs, labels = tokens[0].masked_fill(~real, config.pad_token_id), tokens[1].masked_fill(~real, -100)
        return lambda: model(input_ids=inputs, attention_mask=real.long(), labels=labels).loss.backward()

    return step


SETTINGS = {
    "method": METHOD,
    "timeout_seconds": TIMEOUT,
    "attention": ATTENTION,
    "model": {**MODEL, "batch": MODEL_BATCH},
    "limit_bytes": int(LIMIT * psutil.virtual_memory().available),
}
BENCHMARK = Benchmark("memory", cells, measure, SETTINGS)

if __name__ == "__main__":
    sys.exit(main())
