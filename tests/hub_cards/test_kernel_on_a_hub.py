"""The commands of docs/kernel.md against the loopback Hub: `hf upload` pushes the kernel, `get_kernel` loads it from there."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from reluformer.hub_cards.kernel import DEFAULT_REPO_ID, write_kernel

from .hub_routes import USER

ROOT = Path(__file__).parents[2]
REPO_ID = f"{USER}/relu-attention"
# A process in which the package cannot be imported.
LOAD = f"""
import sys
sys.modules["reluformer"] = sys.modules["transformers"] = None
import torch
from kernels import get_kernel
kernel = get_kernel("{REPO_ID}", version=0, trust_remote_code=["{REPO_ID}"])
query = torch.ones(1, 1, 2, 4)
print(kernel.__name__, kernel.relu_attention(query, query, query, scaling="none").tolist())
"""


def documented_commands(folder: Path) -> list[list[str]]:
    """The `hf upload` lines of the page, with this repository and folder."""
    page = (ROOT / "docs" / "kernel.md").read_text(encoding="utf-8")
    lines = re.findall(r"^hf upload .*$", page, re.MULTILINE)
    lines = [line.replace(" relu-attention", f" {shlex.quote(str(folder))}") for line in lines]
    return [shlex.split(line.replace(DEFAULT_REPO_ID, REPO_ID))[1:] for line in lines]


def test_it_is_pushed_and_loaded(loopback_hub, tmp_path):
    pytest.importorskip("kernels", reason="loading the kernel needs the package kernels")
    written = write_kernel(tmp_path / "relu-attention", repo_id=REPO_ID)
    commands = documented_commands(written.path)
    assert len(commands) == 2
    for command in commands:
        process = loopback_hub.run(str(Path(sys.executable).with_name("hf")), *command)
        assert process.returncode == 0, process.stderr[-2000:]

    repository = loopback_hub.repositories["kernels", REPO_ID]
    assert set(repository.branches) == {"main", "v0"}
    files = {path.relative_to(written.path).as_posix() for path in written.path.rglob("*") if path.is_file()}
    # the Hub adds .gitattributes to every repository
    assert set(repository.history("v0")[0].files) - {".gitattributes"} == files
    assert set(repository.history("main")[0].files) - {".gitattributes"} == {"README.md"}

    # without telemetry, kernels 0.17.2 gives huggingface_hub an empty user agent, which httpx refuses: see docs/kernel.md
    process = loopback_hub.run("-c", LOAD, HF_HUB_DISABLE_TELEMETRY="")
    assert process.returncode == 0, process.stderr[-2000:]
    # scores 4 / √4 = 2, all weights 2, two keys
    assert process.stdout == f"_relu_attention_cpu_{written.build} {[[[[4.0] * 4] * 2]]}\n"
