"""Small trainings, several at once on the card: Multi30k German → English, ReLU² beside ReLU and softmax.

What is not over when the time is goes on the next time, from the parts of its checkpoint that stand in the folder of --output
or of --resume; they are at most 48 MiB, for the trainings that come first in the list.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gpu.campaign import ROOT, Cell, stage_record
from benchmarks.studies.collection import collect
from benchmarks.studies.parser import merged

BASES = ROOT / "benchmarks" / "studies" / "catalogue" / "bases"
MOST, PARTS = 48 * 2**20, "checkpoints.tar."  # in three parts
STOPPING = 45  # seconds that are left for checkpoints, and for packing them
NAMES = ("attention_activation", "attention_gamma", "regularization_weight")


def rows(toy: bool) -> dict[str, dict[str, Any]]:
    """Models of the trainings, by name; the rest is that of the study on sentences, at the better rate."""
    found: dict[str, dict[str, Any]] = {"softmax": {"preset": "vanilla"}}
    for values in [*product(("relu2",), (16, 32, 64), (0.03, 0.1)), ("relu", 16, 0.1)][: 1 if toy else None]:
        name = "{}_gamma_{}_lambda_{}".format(*values)
        found[name] = {"preset": "reluformer", **dict(zip(NAMES, values, strict=True))}
    return found


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    end = time.monotonic() + 60 * options.minutes - STOPPING
    runs = (
        (options.output.resolve() if options.toy else ROOT) / "runs" / "gpu"
    )  # not the output, which may hold few files
    for folder in (runs, options.output):
        folder.mkdir(parents=True, exist_ok=True)
    unpack(options.resume or options.output, runs)
    waiting = [name for name in rows(options.toy) if {"row": name} not in options.done]
    running: dict[str, subprocess.Popen[bytes]] = {}
    while (waiting or running) and time.monotonic() < end:
        while waiting and len(running) < max(2, (os.cpu_count() or 2) // 2):
            name = waiting.pop(0)
            running[name] = begin(name, runs, options)
        for name in [name for name, process in running.items() if process.poll() is not None]:
            del running[name]
            yield Cell({"row": name}, partial(outcome, runs / name), 0)
        time.sleep(0.2)
    for process in running.values():
        process.terminate()  # an orderly stop: it saves
    for process in running.values():
        process.wait(STOPPING)
    packed = pack(runs, [*running, *waiting], options.output)
    print(f"science: {len(running) + len(waiting)} trainings are not over, {packed} of them can go on")


def begin(name: str, runs: Path, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """`reluformer train`, which goes on from a checkpoint where one is."""
    base = yaml.safe_load((BASES / f"sentences.{'smoke' if options.toy else 'cpu'}.yaml").read_text(encoding="utf-8"))
    training = {"output_dir": str(runs / name), "use_cpu": options.toy, "learning_rate": 0.003}
    recipe = merged(base, {"name": name, "model": rows(options.toy)[name], "training": training})
    for split in recipe["data"].values():
        if isinstance(split, dict) and "source" in split:
            split.update({side: str(options.data / split[side].removeprefix("data/")) for side in ("source", "target")})
    (runs / f"{name}.yaml").write_text(yaml.safe_dump(recipe, allow_unicode=True), encoding="utf-8")
    command = [sys.executable, "-m", "reluformer", "train", "--config", str(runs / f"{name}.yaml")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    with (runs / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def outcome(folder: Path) -> dict[str, Any]:
    """Score on the test set, and the course of validation; of a run that failed, an error with the end of its log."""
    try:
        run = collect(folder)
    except Exception as error:
        log = folder.with_name(f"{folder.name}.log").read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"{error}: {log[-400:]}") from error
    validation = {entry["step"]: entry["eval_cross_entropy"] for entry in run["log_history"] if "eval_loss" in entry}
    scores = {name: value for name, value in run["evaluations"].get("test", {}).items() if name.endswith("bleu")}
    record = {name: run["training"][name] for name in ("updates", "diverged", "exploded", "target_tokens_per_second")}
    return {**scores, "validation": validation, **record, "commit": stage_record()["git_commit"]}


def pack(runs: Path, names: list[str], folder: Path) -> int:
    """Run folders in parts that fit; how many of them."""
    for old in folder.glob(f"{PARTS}*"):
        old.unlink()
    packed, size = [], 0
    for name in names:
        own = sum(path.stat().st_size + 2048 for path in (runs / name).rglob("*"))
        if own and size + own < MOST:
            packed, size = [*packed, name], size + own
    if packed:
        command = f'tar c -C "$1" {" ".join(packed)} | split -d -b {MOST // 3} - "$2/{PARTS}"'
        subprocess.run(["sh", "-c", command, "sh", runs, folder], check=True)
    return len(packed)


def unpack(folder: Path, runs: Path) -> None:
    if any(folder.glob(f"{PARTS}*")):
        subprocess.run(["sh", "-c", f'cat "$2/{PARTS}"* | tar x -C "$1"', "sh", runs, folder], check=True)
