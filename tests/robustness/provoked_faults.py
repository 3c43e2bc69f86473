"""Makes the faults of `fault_cases.py` happen: each function provokes one in the current directory, and says what came of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from benchmarks.studies import process as study_process
from reluformer.commands import main as cli
from reluformer.training import training as training_module
from reluformer.training.run.checkpoints import MANIFEST_FILE

from ..training.run.kill_harness import RECIPE, begun, wait_for_a_checkpoint_being_written
from ..training.run.test_checkpoints import cut, flip, remove
from ..training.run.test_elastic import worker

RUN = Path("runs/tiny")
COMMAND = ["train", "--config", "tiny.yaml"]
TRAINING = {**RECIPE["training"], "max_steps": 6, "eval_strategy": "no", "output_dir": str(RUN)}
# so many updates that a launcher's process can be killed among them, with a schedule that lets the run end earlier
CONSTANT = ["--training.lr_scheduler_type", "constant"]
MANY = ["--training.max_steps", "400", "--training.save_steps", "4", *CONSTANT]


@dataclass(frozen=True)
class Outcome:
    """What a command has ended with: exit status, as a shell tells it, and what it has printed."""

    status: int
    text: str


def write_recipe(folder: Path) -> None:
    evaluation = {**RECIPE["evaluation"], "splits": []}
    said = {**RECIPE, "name": "tiny", "training": TRAINING, "evaluation": evaluation}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(said), encoding="utf-8")


@dataclass
class Scene:
    """What the functions below need of a test.

    Args:
        monkeypatch, capfd, caplog: of pytest.
        folder: the current directory, with `tiny.yaml` in it.
    """

    monkeypatch: pytest.MonkeyPatch
    capfd: pytest.CaptureFixture
    caplog: pytest.LogCaptureFixture
    folder: Path

    def run(self, *arguments: str) -> Outcome:
        """The command in this process."""
        self.capfd.readouterr()
        self.caplog.clear()
        status = cli.main([*COMMAND, *arguments])
        captured = self.capfd.readouterr()
        return Outcome(status, f"{captured.out}\n{self.caplog.text}\n{captured.err}")

    def run_with(self, update: int, action: Callable[[], None]) -> Outcome:
        """The command, with something that happens when an update was logged, which is before it is saved."""
        original = training_module.ReLUFormerTrainer.log

        def log(trainer: Any, logs: dict, start_time: float | None = None) -> None:
            original(trainer, logs, start_time)
            if trainer.state.global_step == update and "loss" in logs:
                action()

        with self.monkeypatch.context() as patch:
            patch.setattr(training_module.ReLUFormerTrainer, "log", log)
            return self.run()


def killed_between_checkpoints(scene: Scene) -> Outcome:
    def has_hit() -> bool:
        return (RUN / "checkpoint-4").exists() and not (begun(RUN) or (RUN / "checkpoint-6").exists())

    return _killed(scene, lambda process: _wait_for(RUN / "checkpoint-4" / MANIFEST_FILE, process), has_hit)


def killed_while_writing(scene: Scene) -> Outcome:
    def moment(process: Any) -> None:
        _wait_for(RUN / "checkpoint-2" / MANIFEST_FILE, process)
        wait_for_a_checkpoint_being_written(RUN, set(), process)

    return _killed(scene, moment, lambda: bool(begun(RUN)))


def _killed(scene: Scene, moment: Callable[[Any], None], has_hit: Callable[[], bool]) -> Outcome:
    """The run, killed when its moment has come; from its beginning again where the moment was over before the signal arrived."""
    log = scene.folder / "killed.log"
    # whole paths: the server that the process is forked from may be in another directory
    arguments = ["train", "--config", str(scene.folder / "tiny.yaml"), "--training.output_dir", str(scene.folder / RUN)]
    for _ in range(50):
        log.unlink(missing_ok=True)
        process = study_process.start([arguments], log, scene.folder / "killed.lock")
        moment(process)
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL and has_hit():
            said = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("reluformer:")]
            return Outcome(128 + signal.SIGKILL, "\n".join(said))
        shutil.rmtree(RUN)
    raise AssertionError("no kill has met its moment")


def terminated(scene: Scene) -> Outcome:
    return scene.run_with(2, lambda: os.kill(os.getpid(), signal.SIGTERM))


def interrupted(scene: Scene) -> Outcome:
    # A shell starts what it puts into the background with the signal ignored; Python then leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return scene.run_with(4, lambda: os.kill(os.getpid(), signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)


def full_disk(scene: Scene) -> Outcome:
    """A small file system of its own, which is filled to the last byte before the second checkpoint."""
    _mount(scene, "size=8m")
    filler = Path("runs/filler")

    def fill() -> None:
        with filler.open("wb", buffering=0) as stream:
            try:
                while True:
                    stream.write(bytes(4096))
            except OSError:
                return

    outcome = scene.run_with(4, fill)
    filler.unlink()
    return outcome


def read_only_disk(scene: Scene) -> Outcome:
    _mount(scene, "size=8m,ro")
    return scene.run()


def _mount(scene: Scene, options: str) -> None:
    Path("runs").mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "none", "runs"]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs a file system of its own, which only root may mount")


def _two_checkpoints(scene: Scene) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    assert scene.run_with(6, interrupt).status == cli.EXIT_INTERRUPTED


def cut_checkpoint(scene: Scene) -> Outcome:
    _two_checkpoints(scene)
    cut(RUN / "checkpoint-4" / "optimizer.pt")
    return scene.run()


def flipped_bit(scene: Scene) -> Outcome:
    _two_checkpoints(scene)
    flip(RUN / "checkpoint-4" / "model.safetensors")
    return scene.run()


def lost_file(scene: Scene) -> Outcome:
    _two_checkpoints(scene)
    remove(RUN / "checkpoint-4" / "rng_state.pth")
    return scene.run()


def all_damaged(scene: Scene) -> Outcome:
    _two_checkpoints(scene)
    for step in (2, 4):
        flip(RUN / f"checkpoint-{step}" / "model.safetensors")
    return scene.run()


def damaged_and_named(scene: Scene) -> Outcome:
    _two_checkpoints(scene)
    flip(RUN / "checkpoint-4" / "model.safetensors")
    return scene.run("--training.resume_from_checkpoint", str(RUN / "checkpoint-4"))


def diverged(scene: Scene) -> Outcome:
    return scene.run("--training.learning_rate", "1e30")


def diverged_and_recorded(scene: Scene) -> Outcome:
    outcome = scene.run("--training.learning_rate", "1e30", "--on_divergence", "record")
    assert json.loads((RUN / "training_record.json").read_text(encoding="utf-8"))["diverged"]["step"] == 2
    assert not (RUN / "model.safetensors").exists()
    return outcome


def dead_module(scene: Scene) -> Outcome:
    """Cross-attention whose every score is negative, whatever comes in."""
    original = training_module.build_model

    def build(*arguments: Any) -> torch.nn.Module:
        model = original(*arguments)
        attention = model.model.decoder.layers[0].encoder_attn
        with torch.no_grad():
            for projection, value in ((attention.q_proj, 1.0), (attention.k_proj, -1.0)):
                projection.weight.zero_()
                projection.bias.fill_(value)
        return model

    with scene.monkeypatch.context() as patch:
        patch.setattr(training_module, "build_model", build)
        return scene.run()


def changed_recipe(scene: Scene) -> Outcome:
    _two_checkpoints(scene)
    return scene.run("--data.max_length", "32")


def changed_update(scene: Scene) -> Outcome:
    _two_checkpoints(scene)
    return scene.run("--training.gradient_accumulation_steps", "1")


def second_training(scene: Scene) -> Outcome:
    command = [sys.executable, "-m", "reluformer", *COMMAND, "--overwrite"]
    refused = []

    def start() -> None:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        refused.append(Outcome(ended.returncode, f"{ended.stdout}\n{ended.stderr}"))

    assert scene.run_with(4, start).status == 0
    return refused[0]


def finished(scene: Scene) -> Outcome:
    assert scene.run().status == 0
    return scene.run()


def more_processes(scene: Scene) -> Outcome:
    _two_checkpoints(scene)
    return _ended(launch("one", "--training.gradient_accumulation_steps", "1"))


def killed_worker_restarted(scene: Scene) -> Outcome:
    scene.monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    launched = launch("one", *MANY[:1], "60", *MANY[2:], launcher=["--max_restarts", "1"])
    _kill_worker(launched, rank=1)
    return _ended(launched)


def restarts_that_would_wait(scene: Scene) -> Outcome:
    with scene.monkeypatch.context() as patch:
        patch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
        patch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        return scene.run()


def killed_worker(scene: Scene) -> Outcome:
    launched = launch("one", *MANY)
    _kill_worker(launched, rank=1)
    return _ended(launched)


def lost_node(scene: Scene) -> Outcome:
    """Two launchers, as on two machines; one of them and its worker are killed."""
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port = str(any_port.getsockname()[1])
    nodes = [
        launch(f"node-{rank}", *MANY, launcher=[
            "--nnodes", "2", "--node_rank", str(rank), "--nproc_per_node", "1", "--master_addr", "127.0.0.1",
            "--master_port", port,
        ])
        for rank in (0, 1)
    ]  # fmt: skip
    _wait_for(RUN / "checkpoint-8" / MANIFEST_FILE, nodes[0].process)
    lost = worker(nodes[1].process.pid, rank=1)
    nodes[1].process.kill()
    nodes[1].process.wait()
    os.kill(lost, signal.SIGKILL)
    return _ended(nodes[0])


@dataclass(frozen=True)
class Launched:
    process: subprocess.Popen
    log: Path


def launch(name: str, *arguments: str, launcher: list[str] | None = None) -> Launched:
    """The command under torchrun; two processes on one machine unless `launcher` says otherwise."""
    options = launcher or []
    if "--nnodes" not in options:
        options = ["--standalone", "--nproc_per_node", "2", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    log = Path(f"{name}.log")
    command = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "reluformer", *COMMAND, *arguments]
    with log.open("w") as stream:
        return Launched(subprocess.Popen(command, stdout=stream, stderr=stream, env=environment), log)


def _kill_worker(launched: Launched, rank: int) -> None:
    _wait_for(RUN / "checkpoint-8" / MANIFEST_FILE, launched.process)
    os.kill(worker(launched.process.pid, rank), signal.SIGKILL)


def _ended(launched: Launched) -> Outcome:
    status = launched.process.wait(timeout=300)
    return Outcome(status, launched.log.read_text(encoding="utf-8"))


def _wait_for(path: Path, process: Any) -> None:
    """Until a file is there; of a process of either library.

    Raises:
        AssertionError: the process has ended before.
    """
    ended = (lambda: process.poll() is not None) if hasattr(process, "poll") else (lambda: not process.is_alive())
    while not path.exists():
        assert not ended(), f"ended before {path} was there"
        time.sleep(0.0005)
