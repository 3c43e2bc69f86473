"""Two machines, as far as the network can tell: two network namespaces, joined by one link, a process in each."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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


def test_two_nodes_train_one_model(nodes, jobs, tmp_path):
    processes = []
    for number, name in enumerate(nodes):
        command = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        command += ["--nproc_per_node", "1", "--node_rank", str(number), "--master_addr", "10.250.7.1"]
        command += ["--master_port", PORT, "-m", "tests.distributed.jobs", str(tmp_path), "train"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": name}
        with (tmp_path / f"{name}.log").open("w") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment))
    try:
        codes = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0, 0], "\n".join((tmp_path / f"{name}.log").read_text()[-4000:] for name in nodes)
    parameters = [torch.load(tmp_path / f"parameters-2-{rank}.pt") for rank in (0, 1)]
    expected = torch.load(jobs / "parameters-2-0.pt")
    for name in expected:
        assert torch.equal(parameters[0][name], parameters[1][name])
        assert torch.allclose(parameters[0][name], expected[name], rtol=0, atol=1e-6)
    statistics = ("netns", "exec", nodes[0], "cat", f"/sys/class/net/{nodes[0]}/statistics/tx_bytes")
    gradients = 20 * sum(parameter.numel() * 4 for parameter in expected.values())
    assert int(ip(*statistics).stdout) > gradients / 2  # they went over the link
