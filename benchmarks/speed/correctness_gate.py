"""Before anything is timed: do the fast paths compute what the float64 reference computes?

Compared are the outputs, S and T, and the gradients of query, key and value under random gradients of all outputs. The error
of a tensor is its root mean square over that of the exact one; it may be `BOUNDS`, or twice the error of the plain
computation in the same precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.contenders import (
    OURS,
    SDPA,
    AttentionCase,
    AttentionInputs,
    Forward,
    eager,
    fused,
    random_inputs,
    sdpa,
)
from reluformer.modeling_reluformer.attention_reluformer import reference_attention

LENGTHS = (17, 65, 150, 384, 1025)
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 5e-3}


def run_gate(
    dtypes: tuple[torch.dtype, ...],
    *,
    seed: int,
    head_dim: int = 64,
    lengths: tuple[int, ...] = LENGTHS,
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """Checks `relu_attention` with each of its statistics, and softmax in SDPA, at every dtype and length, causal and not.

    Returns:
        One record for each check: the case, `contender`, `errors` by tensor and `passed`.
    """
    records = []
    for dtype in dtypes:
        for length in lengths:
            for causal in (False, True):
                case = AttentionCase(2, 2, length, head_dim, dtype, causal, True, device)
                inputs = random_inputs(case, seed)
                for name in (*OURS, SDPA):
                    errors = dict(_errors(case, inputs, name, seed))
                    passed = all(
                        error["relative_rms"] <= max(BOUNDS[dtype], 2 * error["plain_relative_rms"])
                        for error in errors.values()
                    )
                    records.append({**case.as_record(), "contender": name, "errors": errors, "passed": passed})
    return records


def failures(records: list[dict[str, Any]]) -> list[str]:
    """One line for each check that was not passed."""
    return [
        f"{record['contender']}, {record['dtype']}, d={record['head_dim']}, n={record['length']}, causal={record['causal']}: "
        "relative error " + ", ".join(f"{name} {error['relative_rms']:.1e}" for name, error in record["errors"].items())
        for record in records
        if not record["passed"]
    ]


def _errors(
    case: AttentionCase, inputs: AttentionInputs, name: str, seed: int
) -> Iterator[tuple[str, dict[str, float]]]:
    activation, statistics = ("softmax", "none") if name == SDPA else ("relu", OURS[name])
    exact = _tensors(_exact(inputs, activation, statistics), case, inputs, seed, exact=True)
    plain = _tensors(eager(inputs, activation, statistics), case, inputs, seed)
    fast = _tensors(sdpa(case) if name == SDPA else fused(case, inputs, statistics), case, inputs, seed)
    for tensor, expected in exact.items():
        errors = {"relative_rms": fast[tensor], "plain_relative_rms": plain[tensor]}
        yield tensor, {key: _relative_rms(values, expected) for key, values in errors.items()}


def _exact(inputs: AttentionInputs, activation: str, statistics: str) -> Forward:
    row_scale = inputs.row_scale.double() if activation == "relu" else None

    def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        result = reference_attention(
            query, key, value, activation=activation, mask=inputs.mask, row_scale=row_scale, statistics=statistics
        )
        return tuple(part for part in (result.output, result.row_sum, result.row_sum_log) if part is not None)

    return forward


def _tensors(
    forward: Forward, case: AttentionCase, inputs: AttentionInputs, seed: int, *, exact: bool = False
) -> dict[str, Tensor]:
    """Outputs and gradients by name, float64."""
    leaves = [inputs.query, inputs.key, inputs.value]
    if exact:
        leaves = [tensor.detach().double().requires_grad_() for tensor in leaves]
    outputs = forward(*leaves)
    generator = torch.Generator(device=case.device).manual_seed(seed + 1)
    gradients = [inputs.output_gradient.to(outputs[0].dtype)]
    gradients += [
        torch.randn(output.shape, generator=generator, device=case.device).to(output.dtype) for output in outputs[1:]
    ]
    results = (*outputs, *torch.autograd.grad(outputs, leaves, gradients))
    names = (*("output", "S", "T")[: len(outputs)], "query gradient", "key gradient", "value gradient")
    return {name: tensor.detach().double() for name, tensor in zip(names, results, strict=True)}


def _relative_rms(values: Tensor, expected: Tensor) -> float:
    return float((values - expected).square().mean().sqrt() / expected.square().mean().sqrt())
