"""A stage: cells that are measured one after the other until the time is over, in a file that is whole after each of
them."""

from __future__ import annotations

import argparse
import gc
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from benchmarks import attention, decoder, measurement_file, timing, translation, vision
from benchmarks.measurement_file import read_result
from benchmarks.timing import Step, Timing, time_contenders
from reluformer import modeling_reluformer
from reluformer.records.records import command_line, run_record, write_json
from reluformer.records.redaction import public_text

RESULTS, ROOT = measurement_file.RESULTS / "gpu", measurement_file.ROOT
COMMIT_FILE = ROOT / "COMMIT.json"  # of a bundle, which is no checkout
CUDA = torch.cuda.is_available()  # without, all sizes are those of a toy
DEVICE = "cuda" if CUDA else "cpu"


class Cell(NamedTuple):
    """names: what it is, alone in its stage. measure: returns results. seconds: it is not begun where less time is
    left.

    together: of cells that are measured at once by the first of them, which alone takes these seconds; else None.
    """

    names: dict[str, Any]
    measure: Callable[[], dict[str, Any]]
    seconds: float = 20.0
    together: str | None = None


def run_stage(stage: str, cells: Callable[[], Iterable[Cell]], options: argparse.Namespace) -> int:
    """Measures what the file does not hold yet; the exit status is 1 if a cell failed."""
    end = time.monotonic() + 60 * options.minutes
    transformers.logging.set_verbosity_error()
    path = options.output / f"{stage}.json"
    result = {**stage_record(), "stage": stage, "toy": not CUDA}
    result["cells"] = done = list(_earlier_cells(path, result))
    left = 0
    for cell in _pending(cells, done):
        if time.monotonic() + cell.seconds > end:
            left += 1
            continue
        done[:] = [record for record in done if record["cell"] != cell.names] + [_measure(cell)]
        write_json(path, result)
        print({name: value for name, value in done[-1].items() if name != "kernels"}, flush=True)
        if "CUDA error" in done[-1].get("failed", ""):
            print(f"{stage}: this process cannot use the GPU any more; the same command goes on with the next cell")
            break
    failed = sum("failed" in record for record in done)
    print(f"{stage}: {len(done)} cells, {failed} of them failed, no time for {left}: {path}")
    return int(failed > 0)


def plan_stage(stage: str, cells: Callable[[], Iterable[Cell]], options: argparse.Namespace) -> int:
    """Prints what the stage would measure, its seconds as they are allowed for, and what would be left for a second
    call."""
    path = options.output / f"{stage}.json"
    done = _earlier_cells(path, {**stage_record(), "toy": options.toy})
    fitting: dict[str, bool] = {}
    spent, planned, left, repeats = 0.0, 0, 0.0, 0
    for cell in _pending(cells, done):
        group = cell.together or str(cell.names)
        seconds = 0.0 if group in fitting else cell.seconds
        fits = fitting.setdefault(group, spent + seconds <= 60 * options.minutes)
        spent, left = (spent + seconds, left) if fits else (spent, left + seconds)
        planned, repeats = planned + fits, repeats + (not fits)
        print(f"  {'' if fits else 'later: '}{', '.join(map(str, cell.names.values()))}: {seconds:.0f} s")
    measured = sum("failed" not in record for record in done)
    print(
        f"{stage}: {measured} cells are measured; at most {spent / 60:.1f} minutes for {planned} more, "
        f"and {left / 60:.1f} for {repeats} in further calls"
    )
    return 0


def clocks() -> dict[str, float] | None:
    """MHz of the card's processors and memory, degrees and watts, as they are now; None without a GPU."""
    if not CUDA:
        return None
    query = {"sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem", "celsius": "temperature.gpu", "watts": "power.draw"}
    command = ["nvidia-smi", f"--query-gpu={','.join(query.values())}", "--format=csv,noheader,nounits", "--id=0"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    return dict(zip(query, map(float, output.split(",")), strict=True))


def stage_record() -> dict[str, Any]:
    """Command, commit, machine, card and versions; `source`: a digest of the code whose speed is measured, and of
    these."""
    # of this package, not of `reluformer`, and without the folders of a machine that was lent
    record = run_record(public_text(f"python -m {command_line(['benchmarks.gpu', *sys.argv[1:]])}"), None, 0)
    record |= read_result(COMMIT_FILE) or {}
    record["versions"] |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    folders = Path(modeling_reluformer.__file__).parent, Path(__file__).parent
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    paths += [Path(module.__file__) for module in (attention, decoder, timing, translation, vision)]
    files = sorted((path.name, path.read_bytes()) for path in paths)
    versions = [record["versions"].get(name) for name in ("torch", "triton", "transformers")]  # of ours, and of rivals
    measured = repr((files, record["machine"].get("accelerators"), versions))
    return {**record, "source": hashlib.sha256(measured.encode()).hexdigest()[:16]}


def timed(steps: Mapping[str, Step], round_seconds: float) -> Timing:
    """All steps in the same rounds, between two synchronisations with the GPU."""
    if not CUDA:
        return time_contenders(steps, rounds=2, round_seconds=1e-4)
    return time_contenders(steps, synchronize=torch.cuda.synchronize, rounds=9, round_seconds=round_seconds)


def peak_bytes(step: Step) -> int:
    """Of the GPU's memory that a call needs beside what is held already; 0 without a GPU."""
    before = torch.cuda.memory_allocated()
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated() - before


def _pending(cells: Callable[[], Iterable[Cell]], done: list[dict[str, Any]]) -> Iterator[Cell]:
    """The cells that were not tried before, then once more those that failed."""
    tried = [record["cell"] for record in done]
    failed = [record["cell"] for record in done if "failed" in record]
    yield from (cell for cell in cells() if cell.names not in tried)
    yield from (cell for cell in cells() if cell.names in failed)


def _earlier_cells(path: Path, result: dict[str, Any]) -> list[dict[str, Any]]:
    for earlier in (read_result(path), read_result(RESULTS / path.name)):
        if earlier and all(earlier[name] == result[name] for name in ("toy", "source")):
            return earlier["cells"]
    return []


def failure(error: Exception) -> dict[str, str]:
    """The result of a cell that could not be measured."""
    return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"}


def release_memory() -> None:
    """Gives the card what no tensor needs any more."""
    gc.collect()
    torch.cuda.empty_cache()


def _measure(cell: Cell) -> dict[str, Any]:
    start = time.monotonic()
    try:
        result = cell.measure()
    except Exception as error:  # told in the file: the other cells are worth their time
        result = failure(error)
    release_memory()
    return {"cell": cell.names, **result, "seconds": round(time.monotonic() - start, 1)}
