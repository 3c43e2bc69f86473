"""The CUDA backend of fused attention where there is no GPU: numerics in Triton's interpreter, and whether it
compiles."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reluformer.modeling_reluformer.fused import triton_launch
from reluformer.modeling_reluformer.fused.specification import Specification
from reluformer.modeling_reluformer.fused.triton_launch import triton_backward, triton_forward

NUMERICS = str(Path(__file__).with_name("test_paths.py"))
SHARED_MEMORY = {80: 99 * 1024, 90: 227 * 1024}  # bytes a program may have; 99 KiB: the smallest since Ampere


def arguments(queries=20, head_dim=32, dtype=torch.float32, heads=2):
    query, key, value = (torch.randn(1, queries, heads, head_dim).to(dtype).transpose(1, 2) for _ in range(3))
    return query, key, value, torch.rand(1, heads, queries)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["interpreter", "cuda"])
def test_numerics(device):
    """In a process of its own: Triton reads TRITON_INTERPRET when it is imported, and transformers imports it."""
    pytest.importorskip("triton", reason="the CUDA kernels need Triton")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA GPU here")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if device == "interpreter":
        environment["TRITON_INTERPRET"] = "1"
    options = ["-k", "triton", "-n", "0", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning"]
    command = [sys.executable, "-m", "pytest", NUMERICS, *options]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert re.search(r"\b[1-9]\d* passed", result.stdout)


def test_without_triton_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(triton_launch, "triton", None)
    with pytest.raises(ImportError, match="needs Triton: pip install triton"):
        triton_forward(*arguments()[:3], Specification())


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"dtype": torch.float64}, TypeError, "float16, bfloat16 or float32, not torch.float64"),
        ({"head_dim": 257}, ValueError, "heads of 1 to 256, .* not 257 and 257"),
        ({"value_dim": 16}, ValueError, "of queries and values alike, not 32 and 16"),
    ],
)
def test_what_is_not_supported_is_refused(changed, error, message):
    pytest.importorskip("triton", reason="the CUDA kernels need Triton")
    value_dim = changed.pop("value_dim", None)
    query, key, value, row_scale = arguments(**changed)
    with pytest.raises(error, match=message):
        triton_forward(query, key, value[..., :value_dim], Specification(row_scale))


class CompileOnly:
    """Stands in for Triton's CUDA driver: names a GPU, so that a launch up to the start itself can be tried without
    one."""

    def __init__(self, capability: int):
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", capability, 32)

    def get_current_device(self):
        return self.target.arch

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return self.target


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """A function that runs a forward and a backward launch for a GPU, and returns the three kernels it compiled."""
    triton = pytest.importorskip("triton", reason="the CUDA kernels need Triton")
    if triton.knobs.runtime.interpret:
        pytest.skip("TRITON_INTERPRET=1 replaces the compiler")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernels = []

    def start(kernel, programs, launch, aligned, values, device):
        options = {"num_warps": launch.sizes.warps, "num_stages": launch.sizes.stages}
        kernels.append(kernel.warmup(*values, **options, grid=(programs,)))

    monkeypatch.setattr(triton_launch, "_start", start)

    def run(inputs, capability, **changed):
        monkeypatch.setattr(triton_launch, "_has_much_shared_memory", lambda device: capability == 90)
        try:
            triton.runtime.driver.set_active(CompileOnly(capability))
            specification = Specification(row_scale=inputs[3], scale=0.1, seed=torch.tensor(0), **changed)
            triton_forward(*inputs[:3], specification)
            gains = [inputs[3] if specification.statistics_count >= level else None for level in (1, 2)]
            triton_backward(inputs[0].sum((), keepdim=True).expand_as(inputs[0]), *gains, *inputs[:3], specification)
        finally:
            triton.runtime.driver._active = None
        return kernels

    return run


def assert_compiled(kernels, capability):
    assert [kernel.metadata.name for kernel in kernels] == [
        "forward_kernel",
        "query_gradient_kernel",
        "key_value_gradient_kernel",
    ]
    for kernel in kernels:
        assert kernel.metadata.shared <= SHARED_MEMORY[capability], kernel.metadata.name
        assert re.search(r"(ld\.global|cp\.async)[^;]*(\.v4|, 0x10|, 16)", kernel.asm["ptx"])  # 16 bytes at a time


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "head_dim", "capability", "changed"),
    [
        (torch.bfloat16, 64, 90, {"statistics": "sum+entropy", "causal": True}),
        (torch.bfloat16, 64, 90, {"statistics": "sum", "causal": True, "window": 1}),
        (torch.bfloat16, 128, 90, {"statistics": "sum"}),
        (torch.bfloat16, 128, 90, {"statistics": "sum+entropy", "dropout_p": 0.1}),
        (torch.float16, 128, 80, {"statistics": "sum", "dropout_p": 0.1}),
        (torch.float32, 64, 80, {}),
    ],
)
def test_kernels_compile(compiled, dtype, head_dim, capability, changed):
    kernels = compiled(arguments(512, head_dim, dtype), capability, **changed)
    assert_compiled(kernels, capability)
    tensor_cores = "wgmma.mma_async" if capability == 90 else "mma.sync"
    for kernel in kernels:
        assert (tensor_cores in kernel.asm["ptx"]) == (dtype != torch.float32)  # float32 is IEEE by default
        assert ("lg2.approx" in kernel.asm["ptx"]) == (changed.get("statistics") == "sum+entropy")
    # a plain maximum loses NaN; the interpreter does not show it
    assert any(kept in kernels[0].asm["ptx"] for kept in ("max.NaN.f32", "cvt.rn.relu.bf16x2"))
    assert "max.f32" not in kernels[0].asm["ptx"]


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED_MEMORY)
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_kernels_compile_everywhere(compiled, dtype, head_dim, capability):
    ends = torch.tensor([0, 200, 512], dtype=torch.int32)
    changed = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "key_padding_mask": torch.ones(1, 512, dtype=torch.bool)}
    changed |= {"statistics": "sum+entropy", "causal": True, "offset": torch.tensor(3), "dropout_p": 0.1}
    assert_compiled(compiled(arguments(512, head_dim, dtype), capability, **changed), capability)
