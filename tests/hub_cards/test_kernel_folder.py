"""The folder of the Hub kernel: what is in it, that `kernels` loads it without this package, and that it computes the same."""

import ast
import filecmp
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard

import reluformer
from reluformer import modeling_reluformer, relu_attention
from reluformer.commands import kernel
from reluformer.configuration.errors import UserError
from reluformer.hub_cards.kernel import BACKENDS, VERSION, write_kernel
from reluformer.modeling_reluformer.fused import operator
from reluformer.modeling_reluformer.fused.compiled.library import python_loop

from ..modeling_reluformer.fused.cases import Inputs, random_inputs, reference, relative_error, visible_pairs
from ..modeling_reluformer.fused.test_triton import SHARED_MEMORY

REPO_ID = "somebody/relu-attention"
PROCESS = Path(__file__).with_name("kernel_process.py")
VARIANTS = {"torch-cpu", "torch-cuda"}
GENERATED = {"__init__.py", "fused/__init__.py"}
OLD_PLACE = "relu_attention"
NAMES = ("output", "S", "T", "dq", "dk", "dv", "dr")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_kernel(tmp_path_factory.mktemp("kernel") / "relu-attention", repo_id=REPO_ID).path


def loader():
    return pytest.importorskip("kernels", reason="loading the folder needs the package kernels")


def variants(folder: Path) -> list[Path]:
    return sorted((folder / "build").glob("torch-*"))


def case(queries: int, head_dim: int) -> dict:
    """Inputs in float32, with padding on both sides and causality."""
    inputs = random_inputs(1, 2, queries, head_dim=head_dim, dtype=torch.float32)
    padding = torch.ones(1, queries, dtype=torch.bool)
    padding[:, :3] = padding[:, -2:] = False
    weights = [torch.randn_like(inputs.value), *(torch.randn(1, 2, queries) for _ in range(2))]
    return {"inputs": list(inputs), "gradients": weights, "padding": padding, "causal": True}


def expected(case: dict) -> list[torch.Tensor]:
    """By the float64 reference."""
    inputs = Inputs(*case["inputs"]).leaves(torch.float64)
    length = inputs.query.shape[2]
    seen = visible_pairs((1, length, length), causal=True, key_padding_mask=case["padding"])
    results = reference(*inputs, seen=seen, activation="relu", statistics="sum+entropy")
    loss = sum((result * weight).sum() for result, weight in zip(results, case["gradients"], strict=True))
    return [*results, *torch.autograd.grad(loss, inputs)]


@pytest.fixture(scope="module")
def computed(folder, tmp_path_factory) -> tuple[dict, dict]:
    """The cases, and what a process without this package makes of them."""
    loader()
    pytest.importorskip("triton", reason="the interpreter is Triton's")
    place = tmp_path_factory.mktemp("computed")
    torch.manual_seed(0)
    # Widths whose square root is a power of two: see `random_inputs`. 520 queries are more than
    # `fused.attention.PLAIN_SCORES` allows, so that the operator runs and not plain products.
    cases = {"cpu": case(queries=520, head_dim=16), "interpreter": case(queries=40, head_dim=64)}
    torch.save(cases, place / "cases")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-W", "ignore::RuntimeWarning", PROCESS, folder, place / "cases", place / "results"]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=place)
    assert process.returncode == 0, process.stderr[-4000:]
    return cases, torch.load(place / "results")


@pytest.mark.parametrize("way", ["cpu", "cpu, other variant", "interpreter"])
def test_it_computes_what_the_reference_does_without_this_package(computed, way):
    cases, results = computed
    right = expected(cases[way.partition(",")[0]])
    right = right[: len(results[way])]  # the gradient of the row scale is not the kernels' work
    assert len(results[way]) == (6 if way == "interpreter" else 7)
    for name, found, wanted in zip(NAMES, results[way], right, strict=False):
        assert found.shape == wanted.shape, name
        assert relative_error(found, wanted) < 1e-5, name


def test_loading_it_imports_neither_this_package_nor_transformers(computed):
    top_level = {name.partition(".")[0] for name in computed[1]["imported"]}
    assert {"torch", "kernels"} <= top_level
    assert not top_level & {"reluformer", "transformers", "entmax"}
    first, second = computed[1]["names"]
    assert first != second


def test_it_stands_beside_this_package(folder):
    kernel = loader().get_local_kernel(folder)
    assert kernel.__version__ == reluformer.__version__
    assert kernel.relu_attention is not relu_attention
    # the requirement of `kernels`: operators live in torch.ops.<id>
    identifier = json.loads((folder / "build/torch-cpu/metadata.json").read_text())["id"]
    assert kernel.__name__ == identifier
    other = getattr(torch.ops, identifier).pointwise_attention.default
    own = torch.ops.reluformer.pointwise_attention.default
    assert other is not own
    assert own is operator.pointwise_attention._opoverload

    torch.manual_seed(0)
    inputs = random_inputs(queries=600, dtype=torch.float32).leaves()
    options = {"row_scale": inputs.row_scale, "causal": True, "statistics": "sum+entropy"}
    with python_loop():  # the kernel has no other
        found = [function(*inputs[:3], **options) for function in (relu_attention, kernel.relu_attention)]
    gradients = [torch.autograd.grad(sum(item.sum() for item in results), inputs) for results in found]
    for ours, theirs in zip((*found[0], *gradients[0]), (*found[1], *gradients[1]), strict=True):
        assert torch.equal(ours, theirs)


def test_every_module_is_this_package_s_own(folder):
    package = Path(modeling_reluformer.__file__).parent
    for variant in variants(folder):
        names = {
            path.relative_to(variant).as_posix() for path in variant.rglob("*.py") if path.parent.name != OLD_PLACE
        }
        assert {"fused/attention.py", "fused/triton_kernels.py", "attention_reluformer.py"} <= names
        copied = sorted(names - GENERATED)
        assert filecmp.cmpfiles(package, variant, copied, shallow=False)[0] == copied
        assert not names & {"modeling_reluformer.py", "configuration_reluformer.py", "layers_reluformer.py"}


def test_imports_are_relative_or_of_torch_triton_and_the_standard_library(folder):
    for variant in variants(folder):
        for path in variant.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 10))):
                if isinstance(node, ast.ImportFrom) and node.level:
                    place = path.parents[node.level - 1] / f"{node.module.replace('.', '/')}.py"
                    assert place.is_relative_to(variant) and place.is_file(), f"{path}: {ast.unparse(node)}"
                    continue
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module] if isinstance(node, ast.ImportFrom) else []
                for name in names:
                    top_level = name.partition(".")[0]
                    assert top_level in {"torch", "triton"} | sys.stdlib_module_names, f"{path}: {name}"


def test_the_metadata_is_what_kernels_reads(folder):
    rust = pytest.importorskip("kernels._rust", reason="the metadata is checked by the package kernels")
    assert {variant.name for variant in variants(folder)} == VARIANTS
    for variant in variants(folder):
        metadata = rust.Metadata.read_from_file(variant / "metadata.json")
        backend = variant.name.removeprefix("torch-")
        assert (str(metadata.name), metadata.version, metadata.license) == ("relu-attention", VERSION, "Apache-2.0")
        assert re.fullmatch(rf"_relu_attention_{backend}_[0-9a-f]+", metadata.id)
        assert (str(metadata.backend.backend_type).lower(), metadata.backend.archs) == (backend, BACKENDS[backend])
        assert (metadata.python_depends, metadata.kernel_depends) == ([], [])
        metadata.digest.validate(rust.Digest.hash_variant(metadata.digest.algorithm, variant))  # raises if it differs


def test_the_card_is_valid_and_its_example_runs(folder, monkeypatch):
    text = (folder / "README.md").read_text()
    assert not re.search(r"\{\{|\}\}|\{%|None|nan", text)
    card = ModelCard(text)
    assert (card.data.library_name, card.data.license) == ("kernels", "apache-2.0")
    assert "On other GPUs nobody has run them yet" in text
    compiled = " and ".join(f"{capability / 10:.1f}" for capability in SHARED_MEMORY)
    assert f"for compute capabilities {compiled}." in text.replace("\n  ", " ")
    loader()
    monkeypatch.setenv("LOCAL_KERNELS", f"{REPO_ID}={folder}")  # `get_kernel` then takes the folder for the repository
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {}
    exec(example.replace("1024", "96"), names)
    assert names["query"].grad.isfinite().all()
    assert names["row_sum"].shape == (2, 8, 96)


def test_the_same_package_writes_the_same_bytes(folder, tmp_path):
    again = write_kernel(tmp_path / "again", repo_id=REPO_ID).path
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    files = [file for file in files if "__pycache__" not in file]
    assert files == sorted(path.relative_to(again).as_posix() for path in again.rglob("*") if path.is_file())
    assert filecmp.cmpfiles(folder, again, files, shallow=False)[0] == files
    assert {"README.md", "LICENSE"} <= set(files)


@pytest.mark.parametrize(
    ("repo_id", "message"),
    [
        ("relu-attention", "give owner/name"),
        ("somebody/ReLU_attention", "lower-case letters, digits and dashes"),
        ("some body/relu", "cannot be the repo id of a kernel"),
    ],
)
def test_what_cannot_be_a_kernel_s_repo_id_is_refused(tmp_path, repo_id, message):
    with pytest.raises(UserError, match=message):
        write_kernel(tmp_path / "kernel", repo_id=repo_id)
    assert not (tmp_path / "kernel").exists()


def test_the_command_replaces_a_kernel_when_told_and_leaves_other_files(tmp_path, capsys):
    output = ["--output", str(tmp_path / "kernel")]
    assert kernel.run([*output, "--repo-id", "somebody/pointwise"]) == 0
    line = capsys.readouterr().out
    assert "somebody/pointwise, version 0" in line and "torch-cpu, torch-cuda" in line
    with pytest.raises(UserError, match="is not empty; give another folder, or --overwrite"):
        kernel.run(output)
    stale, notes = tmp_path / "kernel/build/torch-cpu/stale.py", tmp_path / "kernel/notes.txt"
    stale.touch()
    notes.write_text("years of work")
    assert kernel.run([*output, "--overwrite"]) == 0
    assert not stale.exists() and notes.exists()
    with pytest.raises(UserError, match="is not empty"):
        write_kernel(notes.parent.parent, overwrite=True)
