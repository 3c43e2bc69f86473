"""Updates in one process and in two (torchrun, gloo, one thread each) on this machine: tokens a second, and what is sent.

    python -m benchmarks.scaling.processes             a few minutes
    python -m benchmarks.scaling.processes --quick     seconds; its figures mean nothing

The same global batch of four batches either way: one process computes all four, two compute two each. Both groups of processes
live the whole time and take turns, round after round, so that drift of the machine hits all alike; who waits sleeps. A third
contender is two processes that send nothing: by how much an update is longer with communication is what it costs there.
Writes `benchmarks/results/scaling-cpu.json`; `benchmarks/scaling/tables.py` makes `docs/scaling.md` of it.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tqdm.auto import tqdm

from benchmarks.measurement_file import ROOT, begin, benchmark_parser
from benchmarks.scaling.step import MICRO_BATCHES
from benchmarks.speed.translation_models import SHAPES
from reluformer.training.run.records import write_json

# A module, since it imports others of this folder.
STEP = "benchmarks.scaling.step"
# name → group of processes, and what they do in their turn
CONTENDERS = {
    "1 process": ("one", "update"),
    "2 processes": ("two", "update"),
    "2 processes, nothing sent": ("two", "update alone"),
}
GROUPS = {"one": 1, "two": 2}
PATIENCE = 900.0  # seconds that a process waits for its turn, and we for its answer


class Groups:
    """The processes of both groups, in turns.

    Args:
        store: through which turns and answers go.
        processes: the launchers.
    """

    def __init__(self, store: dist.TCPStore, processes: dict[str, subprocess.Popen]) -> None:
        self._store, self._processes = store, processes
        self._turns = dict.fromkeys(GROUPS, 0)

    def ask(self, group: str, **turn: Any) -> Any:
        """What the group answers to its turn.

        Raises:
            RuntimeError: it has ended.
        """
        number = self._turns[group]
        self._store.set(f"{group}/{number}", json.dumps(turn))
        self._turns[group] += 1
        if turn["do"] == "end":
            return None
        key, deadline = f"{group}/{number}/done", time.monotonic() + PATIENCE
        while not self._store.check([key]):
            if self._processes[group].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the processes of {group!r} gave no answer; what they printed is above")
            time.sleep(0.002)
        return json.loads(self._store.get(key))


def main(arguments: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, "scaling-cpu.json")
    parser.add_argument("--rounds", type=int, default=11, help="of each shape (default: 11)")
    parser.add_argument(
        "--round_seconds", type=float, default=1.0, help="a turn lasts so long (default: 1) or one update"
    )
    parser.add_argument(
        "--shapes", nargs="+", choices=list(SHAPES), default=["tiny", "wide"], help="default: tiny wide"
    )
    options = parser.parse_args(arguments)
    record = begin(options)
    start = time.perf_counter()
    shapes = ["quick"] if options.quick else options.shapes
    settings = {
        "inputs": "quick" if options.quick else "multi30k-like",
        "tokens_per_batch": 64 if options.quick else 1024,
        "attention_dropout": 0.1,
        "seed": options.seed,
        "patience": PATIENCE,
    }
    rounds, seconds = (3, 0.05) if options.quick else (options.rounds, options.round_seconds)
    with started(settings) as groups:
        cells = [measure(groups, shape, rounds, seconds) for shape in shapes]
    described = {
        **settings,
        "batches_per_update": MICRO_BATCHES,
        "threads": 1,
        "backend": "gloo",
        "optimizer": "AdamW, fused",
        "shapes": {shape: SHAPES[shape] for shape in shapes},
        "rounds": rounds,
    }
    result = {**record, "settings": described, "seconds": time.perf_counter() - start, "cells": cells}
    result["load_average_at_the_end"] = round(os.getloadavg()[0], 2)
    print(write_json(options.output, result))
    return 0


@contextmanager
def started(settings: dict[str, Any]) -> Iterator[Groups]:
    """Both groups, from their start to their end."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=datetime.timedelta(seconds=PATIENCE))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    processes = {}
    for group, count in GROUPS.items():
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
        command += ["-m", STEP, group, str(store.port), json.dumps(settings)]
        processes[group] = subprocess.Popen(command, env=environment, cwd=ROOT)
    groups = Groups(store, processes)
    try:
        yield groups
        for group, process in processes.items():
            groups.ask(group, do="end")
            if process.wait(timeout=60):
                raise RuntimeError(f"the processes of {group!r} ended with status {process.returncode}")
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.terminate()
                process.wait()


def measure(groups: Groups, shape: str, rounds: int, round_seconds: float) -> dict[str, Any]:
    """Times and speeds of the contenders, and what two processes send."""
    one = groups.ask("one", do="describe", shape=shape)
    two = groups.ask("two", do="describe", shape=shape)
    sizes = [bucket["bytes"] for bucket in two["buckets"]]
    target_tokens = sum(facts["target_tokens"] for facts in one["batches"])
    repetitions = {}
    for name, (group, what) in CONTENDERS.items():
        once = [groups.ask(group, do=what, shape=shape, repetitions=1) for _ in range(2)][-1]
        repetitions[name] = max(1, math.ceil(round_seconds / once))
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    all_reduce = []
    for number in tqdm(range(rounds), desc=shape, unit="round"):
        order = list(CONTENDERS) if number % 2 else list(reversed(CONTENDERS))
        for name in order:
            group, what = CONTENDERS[name]
            seconds[name].append(groups.ask(group, do=what, shape=shape, repetitions=repetitions[name]))
        all_reduce.append(groups.ask("two", do="all_reduce", shape=shape, sizes=sizes, repetitions=5))
    times = {name: np.array(values) for name, values in seconds.items()}
    one_process, two_processes, alone = (times[name] for name in CONTENDERS)
    return {
        "shape": shape,
        "parameters": one["parameters"],
        "batches": one["batches"],
        "target_tokens_per_update": target_tokens,
        "updates_per_turn": repetitions,
        "seconds_per_update": {name: spread(values) for name, values in times.items()},
        "target_tokens_per_second": {name: spread(target_tokens / values) for name, values in times.items()},
        "speedup": spread(one_process / two_processes),
        "speedup_if_nothing_were_sent": spread(one_process / alone),
        "all_reduce": {
            "bytes": two["bytes"],
            "buckets": two["buckets"],
            "seconds_alone": spread(np.array(all_reduce)),
            "share_of_the_update_alone": spread(np.array(all_reduce) / two_processes),
            "share_by_which_updates_are_longer": spread(1 - alone / two_processes),
        },
    }


def spread(values: np.ndarray) -> dict[str, float]:
    """Median, P10 and P90 over the rounds."""
    median, low, high = np.percentile(values, [50, 10, 90])
    return {"median": float(median), "p10": float(low), "p90": float(high)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
