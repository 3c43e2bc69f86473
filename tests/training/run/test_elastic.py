"""torchrun starts the workers anew when one of them dies: the training goes on at its last checkpoint and ends the same."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from .kill_harness import RECIPE

if not Path("/proc/self/stat").exists():
    pytest.skip("finds the workers in /proc", allow_module_level=True)


def start(recipe: Path, run_folder: Path, log: Path, *, restarts: int) -> subprocess.Popen:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--max_restarts", str(restarts)]
    program = ["-m", "reluformer", "train", "--config", str(recipe), "--training.output_dir", str(run_folder)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    with log.open("w") as stream:
        return subprocess.Popen([sys.executable, *launcher, *program], stdout=stream, stderr=stream, env=environment)


def worker(torchrun: int, rank: int) -> int:
    """Process id of a worker of a torchrun."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            environment = (process / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue  # ended while we looked
        if parent == torchrun and f"RANK={rank}".encode() in environment:
            return int(process.name)
    raise AssertionError(f"torchrun {torchrun} has no worker of rank {rank}")


def wait_for(path: Path, process: subprocess.Popen, log: Path) -> None:
    while not path.exists():
        assert process.poll() is None, log.read_text()[-4000:]
        time.sleep(0.002)


@pytest.mark.slow
def test_a_worker_that_dies_costs_the_updates_since_the_last_checkpoint_alone(tmp_path):
    recipe = tmp_path / "elastic.yaml"
    training = {**RECIPE["training"], "max_steps": 40, "save_steps": 4, "eval_strategy": "no", "save_total_limit": None}
    said = {**RECIPE, "name": "elastic", "training": training}
    said["evaluation"] = {**RECIPE["evaluation"], "splits": []}
    recipe.write_text(yaml.safe_dump(said), encoding="utf-8")
    undisturbed, killed, log = tmp_path / "undisturbed", tmp_path / "killed", tmp_path / "log"
    with start(recipe, undisturbed, log, restarts=0) as process:
        assert process.wait() == 0, log.read_text()[-4000:]
    with start(recipe, killed, log, restarts=1) as process:
        wait_for(killed / "checkpoint-8", process, log)
        os.kill(worker(process.pid, rank=1), signal.SIGKILL)
        assert process.wait() == 0, log.read_text()[-4000:]
    record = json.loads((killed / "training_record.json").read_text(encoding="utf-8"))
    assert (record["updates"], record["processes"]) == (40, 2)
    assert int(record["resumed_from"].rpartition("-")[2]) in range(8, 40, 4)
    final, expected = load_file(killed / "model.safetensors"), load_file(undisturbed / "model.safetensors")
    assert [name for name in expected if not torch.equal(final[name], expected[name])] == []
