"""What every benchmark file of this folder begins with, and the options that every benchmark program has."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from reluformer.modeling_reluformer.fused.compiled.library import library, loop_name
from reluformer.training.run.records import run_record

PAGES = Path(__file__).parent
ROOT = PAGES.parent  # where `python -m benchmarks.…` works
RESULTS = PAGES / "results"
# They change what is measured: allocation and threads.
RECORDED_VARIABLES = ("RELUFORMER_", "MALLOC_", "OMP_", "KMP_", "GOMP_", "MKL_", "LD_PRELOAD")


def benchmark_parser(description: str, output: str) -> argparse.ArgumentParser:
    """A parser with the options --output, --quick, --threads and --seed.

    Args:
        description: the docstring of the program.
        output: name of the file that is written by default, in `benchmarks/results/`.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS / output, help=f"default: benchmarks/results/{output}")
    parser.add_argument("--quick", action="store_true", help="seconds, sizes that mean nothing: does the program work?")
    parser.add_argument("--threads", type=int, help="threads of torch; default: as many as torch takes by itself")
    parser.add_argument("--seed", type=int, default=0, help="of inputs and weights (default: 0)")
    return parser


def begin(options: argparse.Namespace) -> dict[str, Any]:
    """Sets threads and seed as the options say; what stands beside the figures of this run.

    Returns:
        `run_record` with the machine's memory and its load of the last minute (1 is one busy core), and `environment`
        (variables that change timing or allocation), `loop` (which loop computes attention, compiled or python), `quick`.
    """
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    record = run_record(None, None, options.seed)
    record["machine"]["memory_gb"] = round(psutil.virtual_memory().total / 1e9, 1)
    record["machine"]["load_average"] = round(os.getloadavg()[0], 2)
    record["environment"] = {
        name: value for name, value in sorted(os.environ.items()) if name.startswith(RECORDED_VARIABLES)
    }
    library(large=True)  # built before anything is timed
    return {**record, "loop": loop_name(), "quick": options.quick}


def origin(result: Mapping[str, Any], file: str) -> list[str]:
    """The lines of a page that say where its figures are from: command, file, commit, machine, versions.

    Args:
        result: the content of the file.
        file: its name in `benchmarks/results/`; one with `gpu` in it names the accelerators.
    """
    machine, versions = result["machine"], result["versions"]
    device = ", ".join(machine.get("accelerators", [])) if "gpu" in file else machine["cpu"]
    commit = (result["git_commit"] or "unknown")[:12] + (", with local changes" if result["git_dirty"] else "")
    threads = result["settings"].get("threads", machine["torch_threads"])
    environment = " ".join(f"{name}={value}" for name, value in result["environment"].items()) or "none of note"
    # Files from before the compiled loop was the default do not name theirs, which was the Python loop.
    lines = [
        f"`{result['command']}` → [{file}](results/{file})",
        f": {result['date'][:10]}, commit {commit}, {result['seconds'] / 60:.1f} min on {device} ({threads} threads, "
        f"{machine['usable_cores']} cores, {machine['memory_gb']:.0f} GB, load before the start "
        f"{machine['load_average']:.1f}), torch {versions['torch']}, transformers "
        f"{versions['transformers']}, Python {machine['python']}; loop: {result.get('loop', 'python')}; environment: "
        f"{environment}.",
    ]
    return ["**A quick run, to try the programs: its figures mean nothing.**", "", *lines] if result["quick"] else lines
