"""What every result file begins with, and the one form of all benchmarks: cells that are measured one after the
other."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from tqdm.auto import tqdm

from reluformer.modeling_reluformer.compiled.library import library
from reluformer.records.records import run_record, write_json

PAGES = Path(__file__).parent
ROOT = PAGES.parent  # where `python -m benchmarks…` works
RESULTS = PAGES / "results"
# They change what is measured: allocation, threads and instruction sets.
RECORDED_VARIABLES = ("RELUFORMER_", "MALLOC_", "OMP_", "KMP_", "GOMP_", "MKL_", "LD_PRELOAD")
RECORDED_VARIABLES += ("ATEN_", "CT2_", "ONEDNN_")
Names = dict[str, Any]


@dataclass(frozen=True)
class Benchmark:
    """One result file, `results/<file>-cpu.json`.

    cells: quick → what each cell is, by the names of its facts; `threads` among them are those of torch.
    measure: a cell and the options → what was measured: `Timing.record`, and facts beside it.
    settings: what all cells have in common.
    """

    file: str
    cells: Callable[[bool], Iterable[Names]]
    measure: Callable[[Names, argparse.Namespace], Names]
    settings: Mapping[str, Any]

    def run(self, options: argparse.Namespace) -> Path:
        """Measures every cell, with inputs and weights of the options' seed, and writes the file."""
        torch.manual_seed(options.seed)
        library(large=True)  # built before anything is timed
        record, start = circumstances(options), time.perf_counter()
        threads = torch.get_num_threads()
        cells: list[Names] = []
        for names in tqdm(list(self.cells(options.quick)), desc=self.file, unit="cell"):
            torch.set_num_threads(names.get("threads", threads))
            cells.append({**names, **self.measure(names, options)})
        torch.set_num_threads(threads)
        result = {
            **record,
            "settings": {"threads": threads, **self.settings},
            "seconds": time.perf_counter() - start,
            "cells": cells,
        }
        return write_json(options.output / f"{self.file}-cpu.json", result)


def read_result(path: Path) -> Names | None:
    """The content of a result file; None where it was not measured."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def circumstances(options: argparse.Namespace) -> Names:
    """`run_record` with the machine's memory and its load of the last minute (1 is one busy core), and `environment`
    (variables that change timing or allocation), `loop` (which loop computes attention, compiled or python),
    `quick`."""
    record = run_record(f"python -m benchmarks {shlex.join(sys.argv[1:])}", None, options.seed)
    record["machine"]["memory_gb"] = round(psutil.virtual_memory().total / 1e9, 1)
    record["machine"]["load_average"] = round(os.getloadavg()[0], 2)
    environment = {name: value for name, value in sorted(os.environ.items()) if name.startswith(RECORDED_VARIABLES)}
    operators = library(large=False)
    loop = "compiled" if operators is not None and operators.supports(torch.float32) else "python"
    return {**record, "environment": environment, "loop": loop, "quick": options.quick}


def effort(options: argparse.Namespace, **usual: float) -> dict[str, float]:
    """How long `time_contenders` times a cell: as given, and three short rounds of a quick run."""
    return {"rounds": 3, "round_seconds": 1e-3} if options.quick else usual
