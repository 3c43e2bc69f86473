"""A stage: cells that are measured one after the other until the time is over, in a file that is whole after each of them."""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import reluformer
from benchmarks.measurement_file import RESULTS as ALL_RESULTS
from benchmarks.measurement_file import ROOT
from benchmarks.pages import read_result
from reluformer.training.run.records import run_record, write_json

RESULTS = ALL_RESULTS / "gpu"
COMMIT_FILE = ROOT / "COMMIT.json"  # of a bundle, which is no checkout


@dataclass(frozen=True)
class Cell:
    """One thing to measure.

    names: what it is; no two cells of a stage have the same.
    measure: returns its figures.
    seconds: that it takes at most, about; it is not begun where less time is left.
    """

    names: dict[str, Any]
    measure: Callable[[], dict[str, Any]]
    seconds: float = 20.0


def run_stage(stage: str, cells: Callable[[], Iterable[Cell]], options: argparse.Namespace) -> int:
    """Measures what the file does not hold yet.

    Returns:
        The exit status: 1 if a cell failed.
    """
    end = time.monotonic() + 60 * options.minutes
    transformers.logging.set_verbosity_error()
    path = options.output / f"{stage}.json"
    result = {**stage_record(), "stage": stage, "toy": options.toy, "cells": []}
    result["cells"] = _earlier_cells(path, result)
    options.done = [record["cell"] for record in result["cells"]]
    left = 0
    for cell in cells():
        if cell.names in options.done:
            continue
        if time.monotonic() + cell.seconds > end:
            left += 1
            continue
        record = _measure(cell)
        result["cells"].append(record)
        write_json(path, result)
        print(_line(record), flush=True)
        if "CUDA error" in record.get("failed", ""):
            print(f"{stage}: this process cannot use the GPU any more; the same command goes on with the next cell")
            break
    failed = sum("failed" in record for record in result["cells"])
    print(f"{stage}: {len(result['cells'])} cells, {failed} of them failed, no time for {left}: {path}")
    return int(failed > 0)


def stage_record() -> dict[str, Any]:
    """Command, commit, machine, card and versions; `source`: a digest of the code whose speed is measured."""
    record = run_record(None, None, 0)
    if COMMIT_FILE.exists():
        record |= json.loads(COMMIT_FILE.read_text(encoding="utf-8"))
    record["versions"]["triton"] = _triton_version()
    record["versions"]["cuda"], record["versions"]["cudnn"] = torch.version.cuda, torch.backends.cudnn.version()
    folders = Path(reluformer.__file__).parent, Path(__file__).parent
    files = sorted((path.name, path.read_bytes()) for folder in folders for path in folder.glob("*.py"))
    return {**record, "source": hashlib.sha256(repr(files).encode()).hexdigest()[:16]}


def _triton_version() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return triton.__version__


def _earlier_cells(path: Path, result: dict[str, Any]) -> list[dict[str, Any]]:
    for earlier in (read_result(path), read_result(RESULTS / path.name)):
        if earlier is not None and _origin(earlier) == _origin(result):
            return earlier["cells"]
    return []


def _origin(result: dict[str, Any]) -> tuple[Any, ...]:
    if result["stage"] == "science":  # of which each training tells its commit
        return (result["toy"],)
    return result["source"], result["toy"], result["machine"].get("accelerators"), result["versions"]["torch"]


def _measure(cell: Cell) -> dict[str, Any]:
    start = time.monotonic()
    try:
        figures = cell.measure()
    except Exception as error:  # told in the file: the other cells are worth their time
        figures = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"}
    gc.collect()
    torch.cuda.empty_cache()
    return {"cell": cell.names, **figures, "seconds": round(time.monotonic() - start, 1)}


def _line(record: dict[str, Any]) -> str:
    """What is worth a look while the stage runs."""
    names = ", ".join(f"{name} {value}" for name, value in record["cell"].items())
    return f"{names}: {', '.join(_words(name, value) for name, value in record.items() if name not in ('cell', 'kernels'))}"


def _words(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return f"{name} ({', '.join(_words(*item) for item in value.items())})"
    return f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
