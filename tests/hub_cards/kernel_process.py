"""Runs the kernel of a folder as a user of `kernels` does; `test_kernel_folder.py` starts it in a process of its own.

    TRITON_INTERPRET=1 python kernel_process.py FOLDER CASES RESULTS

Neither the package nor Transformers can be imported in it. CASES and RESULTS are files of `torch.save`.
"""

import importlib
import sys
from pathlib import Path

for name in ("reluformer", "transformers", "entmax"):
    sys.modules[name] = None  # importing it raises ImportError

import torch  # noqa: E402
from kernels import get_local_kernel  # noqa: E402

STATISTICS = "sum+entropy"


def on_cpu(kernel, case):
    """Output, S, T and the gradients of query, key, value and row scale, by autograd."""
    leaves = [tensor.requires_grad_() for tensor in case["inputs"]]
    query, key, value, row_scale = leaves
    options = {"causal": case["causal"], "key_padding_mask": case["padding"], "statistics": STATISTICS}
    results = kernel.relu_attention(query, key, value, row_scale=row_scale, **options)
    loss = sum((result * gradient).sum() for result, gradient in zip(results, case["gradients"], strict=True))
    return [tensor.detach() for tensor in (*results, *torch.autograd.grad(loss, leaves))]


def in_the_interpreter(kernel, case):
    """Output, S, T and the gradients of query, key and value, by the Triton kernels."""
    launcher = importlib.import_module(f"{kernel.__name__}.fused.triton_launch")
    *tensors, row_scale = case["inputs"]
    options = {"scale": tensors[0].shape[-1] ** -0.5, "causal": case["causal"], "statistics": STATISTICS}
    specification = launcher.Specification(row_scale, case["padding"], **options)
    results = launcher.triton_forward(*tensors, specification)
    return [*results, *launcher.triton_backward(*case["gradients"], *tensors, specification)]


if __name__ == "__main__":
    folder, cases, results = map(Path, sys.argv[1:])
    case = torch.load(cases)
    cpu = get_local_kernel(folder)
    cuda = get_local_kernel(folder / "build" / "torch-cuda")
    found = {
        "names": [cpu.__name__, cuda.__name__],
        "imported": sorted(name for name, module in sys.modules.items() if module is not None),
        "cpu": on_cpu(cpu, case["cpu"]),
        "cpu, other variant": on_cpu(cuda, case["cpu"]),
        "interpreter": in_the_interpreter(cuda, case["interpreter"]),
    }
    torch.save(found, results)
