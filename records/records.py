"""What makes a figure traceable: command, seed, date, commit, machine and versions; and JSON files that hold it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch

from reluformer.configuration.errors import UserError, one_line
from reluformer.records.redaction import without_secrets

# In the checkout: results, the pages and pictures generated from them, and what `benchmarks.ship` writes of a model.
WRITTEN_BY_MEASUREMENTS = (
    "benchmarks/results",
    "benchmarks/*.md",
    "docs/reproduction*",
    "models/*/figures.json",
    "models/*/README.md",
    "models/*/onnx/*",
)
PACKAGES = (
    "reluformer",
    "torch",
    "triton",
    "transformers",
    "accelerate",
    "datasets",
    "tokenizers",
    "safetensors",
    "sacrebleu",
    "sacremoses",
    "entmax",
    "numpy",
)


def command_line(argv: Sequence[str] | None = None) -> str:
    """The command that repeats this run, of `sys.argv` or of `argv`, quoted for a shell, without the path of the
    program."""
    program, *arguments = argv if argv is not None else sys.argv
    path = Path(program)
    name = "reluformer" if path.stem in ("reluformer", "__main__") else path.name
    return shlex.join([name, *arguments])


def machine_facts() -> dict[str, Any]:
    """Processor, cores (of the machine, and those this process may use), threads, platform, Python and accelerators."""
    facts: dict[str, Any] = {
        "cpu": _in_file("/proc/cpuinfo", r"^model name\s*: (.+)$") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }
    if torch.cuda.is_available():
        facts["accelerators"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts


def peak_memory(device: torch.device) -> int | None:
    """Bytes that this process has held at most: allocated by torch on a CUDA device, else resident, which only Linux
    tells.

    Not `ru_maxrss` of getrusage: a process begins with that of the program that started it.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = _in_file("/proc/self/status", r"^VmHWM:\s*(\d+) kB$")
    return int(peak) * 1024 if peak else None


def package_versions() -> dict[str, str | None]:
    """Installed version of everything that can change a figure; None where a package is not installed."""
    distributions_by_name = {name: [*distributions(name=name)] for name in PACKAGES}
    return {name: installed[0].version if installed else None for name, installed in distributions_by_name.items()}


def git_state(source: Path) -> dict[str, Any]:
    """`git_commit` of the checkout that the code in `source`, a file or folder, runs from, and `git_dirty`: whether
    tracked files differ from it, other than those that measurements write.

    Both are None where the code does not run from a checkout: installed from a wheel (even into an environment that
    lies inside somebody's repository), before the first commit, or on a machine without git.
    """
    source = source.resolve()
    base = source if source.is_dir() else source.parent
    if _git(base, "ls-files", "--error-unmatch", str(source)) is None:
        return {"git_commit": None, "git_dirty": None}
    written = [f":(top,exclude){path}" for path in WRITTEN_BY_MEASUREMENTS]
    changes = _git(base, "status", "--porcelain", "--untracked-files=no", "--", ":/", *written)
    return {"git_commit": _git(base, "rev-parse", "HEAD"), "git_dirty": None if changes is None else bool(changes)}


def run_record(command: str | None, recipe_name: str | None, seed: int | None) -> dict[str, Any]:
    """What has to stand beside any measured figure: `command` (default: `command_line()`) without secrets, `recipe`,
    `seed`, `date` (ISO 8601, UTC), `git_commit`, `git_dirty`, `machine` and `versions`."""
    return {
        "command": without_secrets(command_line() if command is None else command),
        "recipe": recipe_name,
        "seed": seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **git_state(Path(__file__)),
        "machine": machine_facts(),
        "versions": package_versions(),
    }


def write_whole(path: str | Path, text: str) -> None:
    """Writes a text file (UTF-8) whole or not at all: an interruption leaves an older file as it was."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8", newline="\n")
    os.replace(partial, path)


@contextlib.contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A folder to fill, which gets its name when the block ends, so that it appears whole or not at all.

    Raises:
        UserError: there is such a folder, and it holds something.
    """
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path}: is in use; give a new folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as partial:
        filled = Path(partial) / path.name
        filled.mkdir()
        yield filled
        if path.is_dir():
            path.rmdir()  # Windows replaces no folder
        os.replace(filled, path)


def write_json(path: str | Path, obj: Any) -> Path:
    """Writes `obj` as indented JSON, as `write_whole` does, NaN and infinity as "nan", "inf" and "-inf"; returns the
    path."""
    plain = json.loads(json.dumps(obj, default=_plain), parse_constant=lambda name: str(float(name)))
    write_whole(path, json.dumps(plain, indent=2, ensure_ascii=False) + "\n")
    return Path(path)


def read_json(path: str | Path, *, instead: str) -> Any:
    """What a JSON file of a run holds; a `UserError` that ends in `instead` where it is cut off or damaged."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # no JSON, or no UTF-8
        raise UserError(f"{path}: is damaged ({one_line(error)}); {instead}") from error


def _plain(obj: Any) -> Any:
    """What JSON has no type for, in one that it has."""
    if hasattr(obj, "tolist"):  # numbers and arrays of numpy and torch
        return obj.tolist()
    if isinstance(obj, Path):
        return str(obj)
    return dataclasses.asdict(obj)


def _in_file(path: str, pattern: str) -> str | None:
    """The first group of the first match in a file of the system; None where there is no such file or match."""
    text = Path(path).read_text(encoding="utf-8", errors="replace") if Path(path).exists() else ""
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else None


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints, or None where it fails or does not exist: a record must never stop a run."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
