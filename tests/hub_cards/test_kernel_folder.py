"""The folder of the Hub kernel: what is in it, that `kernels` loads it without this package, and that it computes the
same."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard

import reluformer
from reluformer import relu_attention
from reluformer.commands import kernel
from reluformer.configuration.errors import UserError
from reluformer.hub_cards import kernel as kernel_module
from reluformer.hub_cards.kernel import BACKENDS, VERSION, write_kernel

from ..modeling_reluformer.cases import python_loop, run_without_package
from ..modeling_reluformer.fused.cases import random_inputs
from ..modeling_reluformer.fused.test_triton import SHARED_MEMORY

REPO_ID = "somebody/relu-attention"
OPTIONS = {"causal": True, "statistics": "sum+entropy"}
COMPUTE = """
    import pathlib, torch
    sys.modules["transformers"] = None
    from kernels import get_local_kernel

    folder, place = sys.argv[1:]
    leaves = [tensor.requires_grad_() for tensor in torch.load(f"{place}/inputs")]
    options = {"causal": True, "statistics": "sum+entropy"}
    results = get_local_kernel(pathlib.Path(folder)).relu_attention(*leaves[:3], row_scale=leaves[3], **options)
    gradients = torch.autograd.grad(sum(result.sum() for result in results), leaves)
    torch.save([item.detach() for item in (*results, *gradients)], f"{place}/outputs")
    imported = {name.partition(".")[0] for name, module in sys.modules.items() if module is not None}
    print(json.dumps(sorted(imported & {"kernels", "reluformer", "transformers", "entmax"})))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_kernel(tmp_path_factory.mktemp("kernel") / "relu-attention", repo_id=REPO_ID)


def loader():
    return pytest.importorskip("kernels", reason="loading the folder needs the package kernels")


def variants(folder: Path) -> list[Path]:
    return sorted((folder / "build").glob("torch-*"))


def test_it_computes_the_same_without_this_package(folder, tmp_path):
    loader()
    torch.manual_seed(0)
    # More scores than plain products are taken for (`fused.attention.PLAIN_SCORES`), so that the operator runs.
    inputs = random_inputs(queries=800, dtype=torch.float32).leaves()
    torch.save([tensor.detach() for tensor in inputs], tmp_path / "inputs")
    imported = run_without_package(COMPUTE, str(folder), str(tmp_path), folder=tmp_path)
    assert imported == ["kernels"]
    with python_loop():  # the kernel has no other
        results = relu_attention(*inputs[:3], row_scale=inputs.row_scale, **OPTIONS)
    wanted = [*results, *torch.autograd.grad(sum(result.sum() for result in results), inputs)]
    computed = torch.load(tmp_path / "outputs")
    torch.testing.assert_close(computed, [item.detach() for item in wanted], rtol=1e-5, atol=1e-5)


def test_its_operator_stands_beside_that_of_this_package(folder):
    kernel = loader().get_local_kernel(folder)
    assert kernel.__version__ == reluformer.__version__ and kernel.relu_attention is not relu_attention
    # the requirement of `kernels`: operators live in torch.ops.<id>
    identifier = json.loads((folder / "build/torch-cpu/metadata.json").read_text())["id"]
    assert kernel.__name__ == identifier
    other = getattr(torch.ops, identifier).pointwise_attention.default
    assert other is not torch.ops.reluformer.pointwise_attention.default


def test_imports_are_modules_of_the_folder_or_of_torch_triton_and_the_standard_library(folder):
    for path in (folder / "build").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 10))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level:
                assert path.parents[node.level - 1].joinpath(f"{node.module.replace('.', '/')}.py").is_file(), path
            elif isinstance(node, ast.ImportFrom):
                names.append(node.module)
            assert {name.partition(".")[0] for name in names} <= {"torch", "triton"} | sys.stdlib_module_names, path


def test_the_metadata_is_what_kernels_reads(folder):
    rust = pytest.importorskip("kernels._rust", reason="the metadata is checked by the package kernels")
    assert {variant.name for variant in variants(folder)} == {"torch-cpu", "torch-cuda"}
    for variant in variants(folder):
        metadata = rust.Metadata.read_from_file(variant / "metadata.json")
        backend = variant.name.removeprefix("torch-")
        assert (str(metadata.name), metadata.version, metadata.license) == ("relu-attention", VERSION, "Apache-2.0")
        assert re.fullmatch(rf"_relu_attention_{backend}_[0-9a-f]+", metadata.id)
        assert (str(metadata.backend.backend_type).lower(), metadata.backend.archs) == (backend, BACKENDS[backend])
        assert (metadata.python_depends, metadata.kernel_depends) == ([], [])
        metadata.digest.validate(rust.Digest.hash_variant(metadata.digest.algorithm, variant))  # raises if it differs


def test_later_gpus_than_the_oldest_are_served_too():
    assert BACKENDS["cuda"] == [f"{min(SHARED_MEMORY) / 10:.1f}+PTX"]


def test_only_what_computes_the_same_has_the_same_name(folder, tmp_path, monkeypatch):
    """`kernels` imports a kernel by its id, once in a process."""

    def names(of):
        return [json.loads((variant / "metadata.json").read_text())["id"] for variant in variants(of)]

    assert names(write_kernel(tmp_path / "again", repo_id=REPO_ID)) == names(folder)
    monkeypatch.setattr(kernel_module, "_NOTHING_COMPILED", kernel_module._NOTHING_COMPILED + "\n")
    assert not set(names(write_kernel(tmp_path / "other", repo_id=REPO_ID))) & set(names(folder))


def test_the_card_is_valid_and_its_example_runs(folder, monkeypatch):
    text = (folder / "README.md").read_text()
    assert not re.search(r"\{\{|\}\}|\{%|None|nan", text)
    card = ModelCard(text)
    assert (card.data.library_name, card.data.license) == ("kernels", "apache-2.0")
    compiled = " and ".join(f"{capability / 10:.1f}" for capability in SHARED_MEMORY)
    assert f"for compute capabilities {compiled}." in text.replace("\n  ", " ")
    loader()
    monkeypatch.setenv("LOCAL_KERNELS", f"{REPO_ID}={folder}")  # `get_kernel` then takes the folder for the repository
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {}
    exec(example.replace("1024", "96"), names)
    assert names["query"].grad.isfinite().all()
    assert names["row_sum"].shape == (2, 8, 96)


@pytest.mark.parametrize("repo_id", ["relu-attention", "somebody/ReLU_attention", "some body/relu"])
def test_what_cannot_be_a_kernel_s_repo_id_is_refused(tmp_path, repo_id):
    with pytest.raises(UserError, match="give owner/name, the name in lower-case letters, digits and dashes"):
        write_kernel(tmp_path / "kernel", repo_id=repo_id)
    assert not (tmp_path / "kernel").exists()


def test_the_command_writes_the_folder(tmp_path, capsys):
    assert kernel.run(["--output", str(tmp_path / "kernel"), "--repo_id", "somebody/pointwise"]) == 0
    assert "somebody/pointwise, version 0" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "kernel").iterdir()} == {"build", "LICENSE", "README.md"}
