"""A corpus that is larger than what a process may hold: times, and resident memory of every process, from text to training.

    python -m benchmarks.text.large_corpus                      # 5 million pairs; some 5 GB of disk, removed at the end
    python -m benchmarks.text.large_corpus --pairs 200000
    python -m benchmarks.text.large_corpus --one-worker         # without the third run

A parallel text is made (see `synthetic_text.py`) and trained on with the command line, three times, for a few updates of a
tiny model:

    first               nothing is cached; the tokenizer is trained; one process encodes, with the tokenizer's threads
    second              the same again as another run: everything that can be comes from the cache
    two workers         the tokens are removed from the cache and encoded again, by two processes, with the first tokenizer

A stage lasts from one line of the program's to the next, so the first one holds its start (that of the second run, which only
hashes the text, tells how much that is), and the last one the end of training. `processor_seconds` are what the process and
its children used meanwhile, on a machine that others may use too.

Memory is sampled from /proc/<pid>/status, every process of a run by itself: `resident` is VmRSS, of which `anonymous` (RssAnon)
is the process' own, and `file` (RssFile) are pages of mapped files, libraries and Arrow, which all processes share and the
system takes back when it needs them; a training gives back those of its corpus every few batches. Pages that a child still
shares with the process it was forked from count for both. Planning is measured by itself, in a process that does nothing else.
Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.measurement_file import ROOT, begin, benchmark_parser
from benchmarks.text.synthetic_text import write_parallel_text
from reluformer.training.run.records import write_json

LIMIT_BYTES = 2_000_000_000
SAMPLED_EVERY = 0.1  # seconds
MAX_LENGTH = 128
# A stage ends with the line that begins so; the last one with the process.
STAGES = {
    "train: ": "start and read",
    "tokenizer: ": "train tokenizer",
    "train tokens: ": "encode",
    "model: ": "build model",
}
LAST_STAGE = "plan and train"
_STATUS = {"VmRSS": "resident", "RssAnon": "anonymous", "RssFile": "file", "RssShmem": "shared"}


def main() -> int:
    parser = benchmark_parser(__doc__, "large-corpus-cpu.json")
    parser.add_argument("--pairs", type=int, default=5_000_000, help="of the corpus (default: 5,000,000)")
    parser.add_argument(
        "--words", type=int, default=500_000, help="different words of each language (default: 500,000)"
    )
    parser.add_argument("--updates", type=int, default=20, help="of each training (default: 20)")
    parser.add_argument(
        "--folder", type=Path, help="for the corpus and the cache; default: the system's for such files"
    )
    parser.add_argument("--one-worker", action="store_true", help="leave the run with two workers out")
    parser.add_argument("--plan", type=Path, metavar="RECIPE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plan is not None:
        print(json.dumps(measure_plan(options.plan)))
        return 0
    if options.quick:
        options.pairs, options.words, options.updates = 3_000, 2_000, 3
    result = begin(options)
    folder = Path(tempfile.mkdtemp(prefix="large-corpus-", dir=options.folder))
    try:
        result |= measure(folder, options)
    finally:
        shutil.rmtree(folder)
    write_json(options.output, result)
    print(f"written: {options.output}")
    return 0


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The corpus, the three runs and the plan."""
    started = time.perf_counter()
    corpus = write_parallel_text(folder, pairs=options.pairs, words=options.words, seed=options.seed)
    corpus["seconds"] = round(time.perf_counter() - started, 1)
    runs, recipe = {}, write_recipe(folder, options)
    runs["first"] = watched_run(folder, recipe, "first", "--data.workers", "1")
    sizes = {"cache_bytes": _size(folder / "cache"), "token_bytes": _size(folder / "cache", "tokens-*/*.arrow")}
    runs["second"] = watched_run(folder, recipe, "second", "--data.workers", "1")
    plan = json.loads(
        _checked([sys.executable, "-m", "benchmarks.text.large_corpus", "--plan", str(recipe.resolve())], folder)
    )
    if not options.one_worker:
        for entry in (folder / "cache").glob("reluformer/tokens-*"):
            shutil.rmtree(entry)
        tokenizer = ["--tokenizer.path", str(folder / "first")]
        runs["two workers"] = watched_run(folder, recipe, "two_workers", "--data.workers", "2", *tokenizer)
    peaks = {name: run["largest_process"]["resident"] for name, run in runs.items()}
    peaks["plan"] = plan["memory"]["resident"]
    return {
        "corpus": corpus,
        "updates": options.updates,
        "cache": sizes,
        "runs": runs,
        "plan": plan,
        "limit_bytes": LIMIT_BYTES,
        "within_limit": {name: peak < LIMIT_BYTES for name, peak in peaks.items()},
    }


def write_recipe(folder: Path, options: argparse.Namespace) -> Path:
    """The recipe of all runs: a tiny model, the real way of the data."""
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    recipe = {
        "name": "large_corpus",
        "data": {
            "source_language": "de",
            "target_language": "en",
            "max_length": MAX_LENGTH,
            "train": {"source": str(folder / "train.source"), "target": str(folder / "train.target")},
        },
        "tokenizer": {"vocab_size": 600 if options.quick else 8_000},
        "model": {**sizes, **heads, "max_position_embeddings": MAX_LENGTH},
        "batching": {"tokens_per_batch": 4_096},
        "evaluation": {"splits": [], "samples": 0},
        "training": {
            "max_steps": options.updates,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
            "disable_tqdm": True,
            "seed": options.seed,
        },
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def watched_run(folder: Path, recipe: Path, name: str, *arguments: str) -> dict[str, Any]:
    """One training by the command line: seconds and peaks of each stage, and of its processes.

    Raises:
        RuntimeError: it failed; with what it said.
    """
    command = ["train", "--config", str(recipe), "--training.output_dir", str(folder / name), *arguments]
    with (folder / f"{name}.log").open("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "reluformer", *command],
            stdout=subprocess.PIPE, stderr=errors, text=True, env=_environment(folder), cwd=folder,
        )  # fmt: skip
        watch = MemoryWatch(process.pid)
        watch.start()
        for line in process.stdout:
            for begins, stage in STAGES.items():
                if line.startswith(begins):
                    watch.end(stage, said=line.strip())
        status = process.wait()
        watch.stop(LAST_STAGE)
        errors.seek(0)
        if status != 0:
            raise RuntimeError(f"{name}: exit {status}\n{errors.read()[-5000:]}")
    arguments = " ".join(command).replace(str(folder), "FOLDER")
    return {"command": f"reluformer {arguments}", **watch.result()}


class MemoryWatch(threading.Thread):
    """Samples a process and its children until it is stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process, self._over = psutil.Process(pid), threading.Event()
        self._stages: dict[str, dict[str, Any]] = {}
        self._current = _new_stage()
        self._largest: dict[str, int] = {}
        self._processor_seconds = self._last_seen = 0.0

    def end(self, stage: str, *, said: str | None = None) -> None:
        """What was going on until now is called `stage`, and ended with the line `said`."""
        ended, self._current = self._current, _new_stage()
        seconds = round(self._current["started"] - ended.pop("started"), 2)
        before, self._processor_seconds = self._processor_seconds, self._processor_seconds_now()
        processor_seconds = round(self._processor_seconds - before, 2)
        self._stages[stage] = {"seconds": seconds, "processor_seconds": processor_seconds, "said": said, **ended}

    def _processor_seconds_now(self) -> float:
        """Of the process and those of its children that have ended; what was last seen where it has ended itself."""
        try:
            times = self._process.cpu_times()
        except psutil.NoSuchProcess:
            return self._last_seen
        self._last_seen = sum((times.user, times.system, times.children_user, times.children_system))
        return self._last_seen

    def run(self) -> None:
        while not self._over.wait(SAMPLED_EVERY):
            current = self._current
            self._processor_seconds_now()
            for role, process in self._processes():
                memory = memory_of(process.pid)
                if memory is None:
                    continue
                if memory["resident"] > current[role].get("resident", 0):
                    current[role] = memory
                if memory["resident"] > self._largest.get("resident", 0):
                    self._largest = memory

    def _processes(self) -> list[tuple[str, psutil.Process]]:
        try:
            return [("main", self._process), *(("child", child) for child in self._process.children(recursive=True))]
        except psutil.NoSuchProcess:
            return []

    def stop(self, stage: str) -> None:
        """The last stage."""
        self._over.set()
        self.join()
        self.end(stage)

    def result(self) -> dict[str, Any]:
        """`stages`: seconds, the line it ended with, and bytes of the largest process and of its largest child."""
        seconds = sum(stage["seconds"] for stage in self._stages.values())
        return {"seconds": round(seconds, 2), "largest_process": self._largest, "stages": self._stages}


def _new_stage() -> dict[str, Any]:
    return {"started": time.perf_counter(), "main": {}, "child": {}}


def memory_of(pid: int | str) -> dict[str, int] | None:
    """Bytes that are resident, in all and by kind; None for a process that is over."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    values = dict(line.split(":", 1) for line in lines)
    if "VmRSS" not in values:
        return None
    return {name: int(values[field].split()[0]) * 1024 for field, name in _STATUS.items()}


def measure_plan(recipe_path: Path) -> dict[str, Any]:
    """Seconds for the lengths, the batches and an epoch's order of the cached tokens, and the memory they leave."""
    from transformers import AutoTokenizer

    from reluformer.configuration.recipe_parser import load_recipe
    from reluformer.training.data.encoding import encode_pairs, token_lengths
    from reluformer.training.data.splits import load_split
    from reluformer.training.data.token_batches import TokenBatchSampler

    recipe = load_recipe(recipe_path)
    tokenizer = AutoTokenizer.from_pretrained(recipe_path.parent / "first")
    pairs, _ = load_split(recipe.data, "train")
    encoded, report = encode_pairs(pairs, tokenizer, max_length=recipe.data.max_length, name="train")
    if not report.from_cache:
        raise RuntimeError("the tokens of the first run were not found in the cache")
    before, times = memory_of("self"), [time.perf_counter()]
    lengths = [token_lengths(encoded, column) for column in ("input_ids", "labels")]
    times.append(time.perf_counter())
    sampler = TokenBatchSampler(*lengths, tokens_per_batch=recipe.batching.tokens_per_batch, seed=0)
    times.append(time.perf_counter())
    plan = iter(sampler)
    next(plan)
    times.append(time.perf_counter())
    batch = encoded[next(plan)]
    times.append(time.perf_counter())
    names = ("lengths_seconds", "batches_seconds", "epoch_seconds", "first_batch_seconds")
    seconds = {name: round(end - start, 3) for name, start, end in zip(names, times, times[1:], strict=False)}
    counts = {"pairs": len(encoded), "batches": len(sampler), "rows_of_a_batch": len(batch["input_ids"])}
    return {**counts, **seconds, "memory_before": before, "memory": memory_of("self")}


def _checked(command: list[str], folder: Path) -> str:
    """What a command prints; its errors go to the terminal."""
    result = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=_environment(folder.resolve()), cwd=ROOT
    )
    return result.stdout.splitlines()[-1]


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "HF_DATASETS_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


def _size(folder: Path, pattern: str = "**/*") -> int:
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())


if __name__ == "__main__":
    sys.exit(main())
