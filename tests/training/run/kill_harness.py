"""Kills a tiny training with SIGKILL at random moments, goes on with the same command, and compares its end bitwise.

    python -m tests.training.run.kill_harness --kills 100 --seed 0

At least every third kill hits while a checkpoint is being written: one counts as such if it has left behind a
checkpoint that was begun since the process started. After about ten kills a run is left to end; its weights, its last
checkpoint and its losses must be those of a run that was never killed. The report is one JSON object on stdout, and in
the file of --output.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess as Process
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from reluformer.records.records import run_record, write_json
from reluformer.training.run.checkpoints import PARTIAL_FOLDER, checkpoint_folders
from reluformer.training.run.run_folder import is_finished

KILLS_PER_RUN = 10
ONE_IN = 3  # of so many kills, one at least hits while a checkpoint is being written
UPDATES, SAVE_EVERY = 18, 2
RECIPE = f"""
name: killed
data: {{source_language: de, target_language: en, max_length: 64, demo: {{train: 120, validation: 6, test: 3}}}}
tokenizer: {{vocab_size: 330}}
model: {{d_model: 16, encoder_layers: 1, decoder_layers: 1, encoder_ffn_dim: 16, decoder_ffn_dim: 16,
        encoder_attention_heads: 2, decoder_attention_heads: 2, max_position_embeddings: 160,
        dropout: 0.1, regularization_share: 0.5}}  # the random state matters to both
batching: {{tokens_per_batch: 400}}
evaluation: {{num_beams: 1, samples: 0}}
averaging: {{last_checkpoints: 2}}
training:
  max_steps: {UPDATES}
  gradient_accumulation_steps: 2
  logging_steps: 1
  eval_strategy: steps
  eval_steps: 6
  save_strategy: steps
  save_steps: {SAVE_EVERY}
  save_total_limit: 3
  use_cpu: true
  disable_tqdm: true
  report_to: none
  learning_rate: 0.01
"""


class Harness:
    """Starts, kills and compares runs in one folder, at moments that follow from a seed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.moments = folder, random.Random(seed)
        self.recipe = folder / "killed.yaml"
        self.recipe.write_text(RECIPE, encoding="utf-8")
        self.kills: list[dict[str, Any]] = []
        self.runs_compared = 0
        process = self._start("undisturbed")
        while not (folder / "undisturbed.log").exists():  # until the libraries are imported, once for all processes
            time.sleep(0.005)
        started = time.perf_counter()
        self._finish("undisturbed", process)
        self.seconds = time.perf_counter() - started
        self.expected = end_of(folder / "undisturbed")

    def kill(self, count: int) -> None:
        """Runs with up to `KILLS_PER_RUN` kills each, until there were `count`, and more if too few hit a write."""
        while self._are_missing(count):
            name = f"run-{self.runs_compared}"
            for _ in range(KILLS_PER_RUN):
                writing = ONE_IN * self.half_written() <= len(self.kills)
                if not self._kill_once(name, writing=writing) or not self._are_missing(count):
                    break
            if not is_finished(self.folder / name):
                self._finish(name, self._start(name))
            end = end_of(self.folder / name)
            differences = [key for key in self.expected if not torch.equal(end[key], self.expected[key])]
            assert end.keys() == self.expected.keys() and not differences, f"{name}: differs in {differences}"
            self.runs_compared += 1

    def _are_missing(self, count: int) -> bool:
        return len(self.kills) < count or ONE_IN * self.half_written() < count

    def half_written(self) -> int:
        """How many kills hit while a checkpoint was being written."""
        return sum(kill["half_written"] is not None for kill in self.kills)

    def _kill_once(self, name: str, *, writing: bool) -> bool:
        """Starts the run and kills it; False if it ended before its moment came."""
        run_folder = self.folder / name
        is_first, before = not run_folder.exists(), begun(run_folder)
        process, started = self._start(name), time.perf_counter()
        if writing:
            while process.is_alive() and not begun(run_folder) - before:
                time.sleep(0.0005)
            time.sleep(self.moments.uniform(0, 0.02))
        else:
            process.join(self.moments.uniform(0.01, self.seconds))
        process.kill()
        process.join()
        if process.exitcode == 0:
            if is_first:  # the machine is less busy than it was: later moments would come too late
                self.seconds = min(self.seconds, time.perf_counter() - started)
            return False
        assert process.exitcode == -9, self._end_of_log(name, process)
        half = sorted(folder.name for folder, _ in begun(run_folder) - before)
        whole = [folder.name for folder in checkpoint_folders(run_folder)]
        places = {"half_written": (half or [None])[-1], "goes_on_at": (whole or [None])[-1]}
        self.kills.append({"run": name, "seconds": round(time.perf_counter() - started, 3), **places})
        return True

    def _start(self, name: str) -> Process:
        arguments = ["train", "--config", str(self.recipe), "--training.output_dir", str(self.folder / name)]
        return start(arguments, self.folder / f"{name}.log")

    def _finish(self, name: str, process: Process) -> None:
        process.join()
        assert process.exitcode == 0, self._end_of_log(name, process)

    def _end_of_log(self, name: str, process: Process) -> str:
        text = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return f"{name}: exit status {process.exitcode}: {text[-2000:]}"

    def report(self) -> dict[str, Any]:
        """What was done; to be called when every run has ended like the undisturbed one."""
        return {
            **run_record(None, "killed", None),
            "kills": len(self.kills),
            "while_a_checkpoint_was_being_written": self.half_written(),
            "before_the_first_whole_checkpoint": sum(kill["goes_on_at"] is None for kill in self.kills),
            "after_the_last_update": sum(kill["goes_on_at"] == f"checkpoint-{UPDATES}" for kill in self.kills),
            "runs_ended_and_compared": self.runs_compared,
            "runs_that_differ": 0,
            "seconds_of_the_undisturbed_run": round(self.seconds, 3),
            "each": self.kills,
        }


def start(arguments: list[str], log: Path) -> Process:
    """Runs the command line in a new process, forked from one that has imported the libraries; `log` takes what it
    prints."""
    # for the server, which the first process starts
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["reluformer.training.train", "reluformer.hub_cards.card"])
    process = context.Process(target=_run, args=(arguments, str(log)), daemon=True)
    process.start()
    return process


def _run(arguments: list[str], log: str) -> None:
    from reluformer.commands.main import main

    with open(log, "a", encoding="utf-8", buffering=1) as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
        sys.stdout = sys.stderr = stream
        sys.argv = ["reluformer", *arguments]
        sys.exit(main(arguments))


def begun(run_folder: Path) -> set[tuple[Path, int]]:
    """Checkpoints that are, or were, being written, with the number of the folder on the disk."""
    found = set()
    for folder in (run_folder / PARTIAL_FOLDER).glob("checkpoint-*"):
        with contextlib.suppress(FileNotFoundError):  # it has got its name while we look
            found.add((folder, folder.stat().st_ino))
    return found


def end_of(run_folder: Path) -> dict[str, Any]:
    """Tensors and losses that a run has ended with."""
    last = run_folder / f"checkpoint-{UPDATES}"
    end = {f"model {name}": tensor for name, tensor in load_file(run_folder / "model.safetensors").items()}
    end |= {f"checkpoint {name}": tensor for name, tensor in load_file(last / "model.safetensors").items()}
    optimizer = torch.load(last / "optimizer.pt", weights_only=True)["state"]
    end |= {f"optimizer {n} {key}": tensor for n, state in optimizer.items() for key, tensor in state.items()}
    history = json.loads((last / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    losses = [(entry["step"], entry["loss"]) for entry in history if "loss" in entry]
    end["losses"] = torch.tensor(losses, dtype=torch.float64)
    return end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the moments; default: 0")
    parser.add_argument("--output", type=Path, help="JSON file for the report; default: standard output alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(Path(folder), options.seed)
        harness.kill(options.kills)
        report = harness.report() | {"seed": options.seed}
    if options.output is not None:
        write_json(options.output, report)
    json.dump(report, sys.stdout, indent=2)
    print(
        f"\n{report['kills']} kills, {report['while_a_checkpoint_was_being_written']} of them while a checkpoint was "
        f"being written; {report['runs_ended_and_compared']} runs ended bitwise like the one that was never killed"
    )


if __name__ == "__main__":
    main()
