"""How processes are started: what fails with one line, and the command lines that docs/distributed.md gives."""

import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from safetensors.torch import load_file

import reluformer.configuration
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.training.run.interruptions import orderly_end
from reluformer.training.train import is_sharded, train

from ..training.tiny_run import tiny_model

ACCELERATE_FILES = Path(reluformer.configuration.__file__).parent / "accelerate"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    of_accelerate = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_CPU")
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", *of_accelerate):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def joined():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_processes_that_are_not_connected_are_refused(recipe_file, environment):
    """torchrun on a machine without GPUs, and no use_cpu: each process would train by itself, into the same folder."""
    recipe = load_recipe(recipe_file)
    environment.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="2 processes were started, but the Trainer found no device"):
        train(recipe)


@pytest.mark.parametrize(
    ("device", "last_checkpoints", "named"),
    [
        ("cpu", 0, "does not shard on a CPU"),
        ("cuda", 2, r"averaging\.last_checkpoints: does not go with FSDP"),
        ("cuda", 0, r"evaluation\.at_most: does not go with FSDP"),
    ],
)
def test_what_does_not_go_with_sharding_is_refused(recipe_file, environment, device, last_checkpoints, named):
    recipe = load_recipe(recipe_file)
    assert not is_sharded(recipe.training)
    recipe.averaging.last_checkpoints = last_checkpoints
    environment.setattr(type(recipe.training), "device", torch.device(device))
    environment.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UserError, match=named):
        train(recipe)


@pytest.mark.parametrize("name", ["cpu_two_processes", "ddp", "fsdp2", "two_nodes"])
def test_accelerate_launch_understands_each_file(name):
    """By its own parser, with the options that the first lines of the file give."""
    said = (ACCELERATE_FILES / f"{name}.yaml").read_text(encoding="utf-8").partition("\n#\n")[0]
    command = shlex.split(said.replace("#", "").replace("\\\n", " ").partition("accelerate launch ")[2])
    command[command.index("--config_file") + 1] = str(ACCELERATE_FILES / f"{name}.yaml")
    options = launch_command_parser().parse_args(command)
    assert (options.module, options.training_script) == (True, "reluformer")
    asked_for = options.num_processes or 2
    options, *_ = _validate_launch_command(options)
    assert options.num_processes == asked_for
    assert options.use_fsdp == (name == "fsdp2")
    assert options.multi_gpu == (name != "fsdp2")
    assert options.use_cpu == (name == "cpu_two_processes")
    if name == "two_nodes":
        assert (options.num_machines, options.main_process_ip, options.main_process_port) == (2, "192.0.2.1", 29500)
    environment = prepare_multi_gpu_env(options)
    assert environment["ACCELERATE_MIXED_PRECISION"] == "no"  # the recipe decides
    if name == "fsdp2":
        assert environment["FSDP_VERSION"] == "2" and environment["ACCELERATE_USE_FSDP"] == "true"
        classes = {type(module).__name__ for module in tiny_model().modules()}
        assert set(environment["FSDP_TRANSFORMER_CLS_TO_WRAP"].split(",")) < classes


def start(command: list[str], log: Path) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    with log.open("w", encoding="utf-8") as stream:
        command = [sys.executable, "-m", *command]
        return subprocess.Popen(command, stdout=stream, stderr=stream, env=environment, cwd=log.parent)


def free_port() -> str:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return str(any_port.getsockname()[1])


def assert_trained_by_two(folder: Path) -> None:
    record = yaml.safe_load((folder / "training_record.json").read_text(encoding="utf-8"))
    assert (record["processes"], record["updates"]) == (2, 6)
    assert record["averaged_checkpoints"] == ["checkpoint-4", "checkpoint-6"]
    assert load_file(folder / "model.safetensors")
    log = yaml.safe_load((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    assert any("eval_bleu" in entry for entry in log)


ON_MACHINES = {
    "one": f"accelerate.commands.launch --config_file {ACCELERATE_FILES}/cpu_two_processes.yaml",
    "two, torchrun": "torch.distributed.run --nnodes 2 --node_rank {rank} --nproc_per_node 1 --master_addr 127.0.0.1 "
    "--master_port {port}",
}


@pytest.mark.slow
@pytest.mark.parametrize("machines", ON_MACHINES)
def test_two_processes_that_a_launcher_starts_train_one_model(recipe_file, tmp_path, machines):
    """With the files of the package and as docs/distributed.md says: on one machine, or as on two of one process
    each."""
    port, ranks = free_port(), "0" if machines == "one" else "01"
    logs = [tmp_path / f"machine-{rank}.log" for rank in ranks]
    processes = []
    for rank, log in zip(ranks, logs, strict=True):
        command = ON_MACHINES[machines].format(port=port, rank=rank).split()
        processes.append(start([*command, "-m", "reluformer", "train", "--config", str(recipe_file)], log))
    try:
        codes = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    printed = [log.read_text(encoding="utf-8") for log in logs]
    assert set(codes) == {0}, "".join(text[-4000:] for text in printed)
    assert [text.count("model: ") for text in printed] == [1, 0][: len(ranks)]
    assert_trained_by_two(tmp_path / "runs" / "tiny")


def test_the_process_group_is_left_at_the_end_and_kept_after_an_error(joined, tmp_path):
    with pytest.raises(UserError), orderly_end(tmp_path):
        raise UserError("")
    assert dist.is_initialized()
    with orderly_end(tmp_path):
        assert dist.is_initialized()
    assert not dist.is_initialized()
    with orderly_end(tmp_path):
        pass  # one process has no group


# What torch does once in many runs is done here in each: the process aborts when Python has been taken down.
ABORTING_PROGRAM = """
import atexit, ctypes, sys, threading
from pathlib import Path
from reluformer.commands import main as cli

libc = ctypes.CDLL(None)
libc.on_exit(ctypes.cast(libc.abort, ctypes.c_void_p), None)
atexit.register(Path("registered").write_text, "done")
# ends only once Python waits for its threads
threading.Thread(target=lambda: (threading.main_thread().join(), Path("thread").write_text("done"))).start()
print("printed", end="")
sys.exit(cli.main())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="on_exit is glibc's")
@pytest.mark.parametrize(
    ("arguments", "processes", "status"),
    [(["--version"], "2", 0), (["train"], "2", 2), (["--version"], None, -signal.SIGABRT)],
)
def test_a_worker_ends_with_its_status_though_torch_aborts(tmp_path, arguments, processes, status):
    environment = {**os.environ, **({} if processes is None else {"WORLD_SIZE": processes})}
    command = [sys.executable, "-c", ABORTING_PROGRAM, *arguments]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended.stderr
    assert ended.stdout.startswith("printed") and "Traceback" not in ended.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"registered": "done", "thread": "done"}
