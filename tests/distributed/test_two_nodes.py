"""Two machines, as far as the network can tell: two network namespaces, joined by one link, a process in each."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from ..training.run.kill_harness import RECIPE

ROOT = Path(__file__).parents[2]
PORT = "29517"


def ip(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def nodes():
    """Names of two namespaces; in each, the interface of the same name has the address 10.250.7.1 or .2."""
    if shutil.which("ip") is None:
        pytest.skip("two nodes need network namespaces: there is no iproute2 here")
    names = [f"relu{os.getpid() % 100000}{side}" for side in "ab"]
    try:
        steps = [("netns", "add", names[0]), ("netns", "add", names[1])]
        steps.append(("link", "add", names[0], "type", "veth", "peer", "name", names[1]))
        for number, name in enumerate(names, start=1):
            steps.append(("link", "set", name, "netns", name))
            steps.append(("-n", name, "addr", "add", f"10.250.7.{number}/24", "dev", name))
            steps += [("-n", name, "link", "set", name, "up"), ("-n", name, "link", "set", "lo", "up")]
        for step in steps:
            done = ip(*step)
            if done.returncode:
                pytest.skip(f"two nodes need network namespaces: `ip {' '.join(step)}` says {done.stderr.strip()}")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)
        ip("link", "del", names[0])  # where it was not moved


def launch(nodes: list[str], folder: Path, *program: str) -> list[subprocess.Popen]:
    """A launcher in each namespace, for one process of the program; what they print goes to a file each."""
    processes = []
    for number, name in enumerate(nodes):
        command = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        command += ["--nproc_per_node", "1", "--node_rank", str(number), "--master_addr", "10.250.7.1"]
        command += ["--master_port", PORT, "-m", *program]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": name}
        environment["PYTHONFAULTHANDLER"] = "1"
        with (folder / f"{name}.log").open("w") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment))
    return processes


def exit_codes(processes: list[subprocess.Popen], nodes: list[str], folder: Path) -> list[int]:
    """Waits for the launchers. Where one does not end, the test fails with their stacks and what was printed."""
    try:
        return [process.wait(timeout=300) for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            process.send_signal(signal.SIGABRT)
            process.wait()
        pytest.fail(printed_by(nodes, folder))


def printed_by(nodes: list[str], folder: Path) -> str:
    return "\n".join((folder / f"{name}.log").read_text()[-8000:] for name in nodes)


@pytest.mark.slow
def test_a_link_that_is_cut_is_told_after_the_timeout(nodes, tmp_path):
    """Nobody closes a connection here, as where a machine loses its power: each process waits, and then says where to go on."""
    training = {**RECIPE["training"], "max_steps": 6, "eval_strategy": "no", "output_dir": "runs/tiny"}
    recipe = {**RECIPE, "name": "tiny", "training": training, "evaluation": {**RECIPE["evaluation"], "splits": []}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    run_folder = tmp_path / "run"
    program = ["reluformer", "train", "--config", str(tmp_path / "tiny.yaml"), "--training.output_dir", str(run_folder)]
    program += ["--training.max_steps", "100000", "--training.save_steps", "4", "--training.ddp_timeout", "30"]
    processes = launch(nodes, tmp_path, *program)
    try:
        while not (run_folder / "checkpoint-8").exists():
            assert [process.poll() for process in processes] == [None, None], printed_by(nodes, tmp_path)
            time.sleep(0.01)
        assert ip("-n", nodes[0], "link", "set", nodes[0], "down").returncode == 0
        codes = exit_codes(processes, nodes, tmp_path)
    finally:
        for process in processes:
            process.kill()
    assert codes == [1, 1]
    for name in nodes:
        printed = (tmp_path / f"{name}.log").read_text()
        (line,) = [line for line in printed.splitlines() if line.startswith("reluformer: ")]
        assert line.startswith("reluformer: a process of this run has ended or cannot be reached (")
        assert "Timed out waiting 30000ms" in line
        assert f"the same command resumes at {run_folder / 'checkpoint-'}" in line
