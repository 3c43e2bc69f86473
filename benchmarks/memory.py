"""Peak memory of one training step on a CPU, each in a process of its own: see `METHOD`. Linux only; needs 8 GB."""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.attention import AttentionCase, eager, fused, penalty, random_inputs, sdpa
from benchmarks.measurement_file import ROOT, Benchmark, Names
from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration

LENGTHS = (1024, 2048, 4096, 8192, 16384)
LONGEST_EAGER = {"attention": 4096, "model": 2048}  # some 4 GB each
WARM_UP_LENGTH = 256  # long enough that the fused path takes its blocks and starts its threads
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
    """Attention alone and a model with padded batches."""
    contenders = ("fused",) if quick else CONTENDERS
    for what, contender, length in itertools.product(LONGEST_EAGER, contenders, (64,) if quick else LENGTHS):
        if contender != "eager relu" or length <= LONGEST_EAGER[what]:
            yield {"what": what, "contender": contender, "length": length}


def measure(cell: Names, options: argparse.Namespace) -> Names:
    """`extra_bytes` of the step, and what it stood on.

    Raises:
        CalledProcessError: the process failed.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    environment["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    command = [sys.executable, "-m", "benchmarks.memory", json.dumps({**cell, "seed": options.seed})]
    done = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


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
            forwards = {"fused": fused(case, inputs, "sum+entropy"), "eager relu": eager(inputs, "relu", "sum+entropy")}
            output, *sums = {**forwards, "sdpa": sdpa(case)}[cell["contender"]](*inputs.leaves)
            outputs, gradients = [output], [inputs.output_gradient]
            if sums:
                outputs.append(penalty(inputs.visible_keys, *sums))
                gradients.append(torch.ones(()))
            torch.autograd.grad(outputs, inputs.leaves, gradients)

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


SETTINGS = {"method": METHOD, "attention": ATTENTION, "model": {**MODEL, "batch": MODEL_BATCH}}
BENCHMARK = Benchmark("memory", cells, measure, SETTINGS)

if __name__ == "__main__":
    sys.exit(main())
