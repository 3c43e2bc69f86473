"""The attention functions that are timed beside each other, on the same inputs.

Ours are `relu_attention` with each of its statistics. Rivals: softmax in `scaled_dot_product_attention`, and with all their
weights in memory (eager): softmax, ReLU, sparsemax, entmax15 and ReLA (ReLU without scale, then its gated norm over the
merged heads). Queries, keys, values and the gradient of the output are independent normal numbers, (batch, heads, length,
head_dim), contiguous; the row scale is ReLUFormer's, 1 / (gamma sqrt(n_i / 2)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reluformer import relu_attention
from reluformer.modeling_reluformer.attention_reluformer import DEFAULT_GAMMA, reference_attention
from reluformer.modeling_reluformer.layers_reluformer import GatedRMSNorm
from reluformer.modeling_reluformer.loss_reluformer import DEFAULT_ENTROPY_MARGIN, module_sums, row_penalty

# name of the contender → the statistics it returns
OURS = {"fused": "none", "fused+S": "sum", "fused+S+T": "sum+entropy"}
PLAIN, _, WITH_STATISTICS = OURS
SDPA, EAGER_RELU = "sdpa softmax", "eager relu"
EAGER = ("eager softmax", EAGER_RELU, "sparsemax", "entmax15", "rela")

Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


@dataclass(frozen=True)
class AttentionCase:
    """One cell: `backward` is whether forward and backward are timed together, or forward alone."""

    batch: int
    heads: int
    length: int
    head_dim: int
    dtype: torch.dtype
    causal: bool
    backward: bool
    device: str = "cpu"

    def as_record(self) -> dict[str, Any]:
        """For the result file, all plain values."""
        fields = asdict(self)
        fields["dtype"] = str(self.dtype).removeprefix("torch.")
        fields["pass"] = "forward+backward" if fields.pop("backward") else "forward"
        return fields


@dataclass(frozen=True)
class AttentionInputs:
    """query, key, value, output_gradient: (batch, heads, length, head_dim). row_scale: (batch, 1, length), float32.

    visible_keys: n_i, (batch, length). mask: boolean (1, 1, length, length) where causal, for the eager rivals; else None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output_gradient: Tensor
    row_scale: Tensor
    visible_keys: Tensor
    mask: Tensor | None


def random_inputs(case: AttentionCase, seed: int, *, with_mask: bool = True) -> AttentionInputs:
    """The same numbers for the same seed and shape; the mask is left out where `with_mask` is False."""
    generator = torch.Generator(device=case.device).manual_seed(seed)
    shape = (case.batch, case.heads, case.length, case.head_dim)
    query, key, value, gradient = (
        torch.randn(shape, generator=generator, device=case.device).to(case.dtype) for _ in range(4)
    )
    if case.backward:
        for tensor in (query, key, value):
            tensor.requires_grad_()
    count = torch.full((case.length,), float(case.length), device=case.device)
    if case.causal:
        count = torch.arange(1.0, case.length + 1, device=case.device)
    visible_keys = count.expand(case.batch, -1)
    mask = None
    if case.causal and with_mask:
        mask = torch.ones(1, 1, case.length, case.length, dtype=torch.bool, device=case.device).tril_()
    row_scale = torch.rsqrt(visible_keys / 2).unsqueeze(1) / DEFAULT_GAMMA
    return AttentionInputs(query, key, value, gradient, row_scale, visible_keys, mask)


def fused(case: AttentionCase, inputs: AttentionInputs, statistics: str, dropout_p: float = 0.0) -> Forward:
    """`relu_attention`; returns the output, and S and T if asked for."""

    def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        result = relu_attention(
            query,
            key,
            value,
            row_scale=inputs.row_scale,
            causal=case.causal,
            statistics=statistics,
            dropout_p=dropout_p,
        )
        return (result,) if statistics == "none" else tuple(result)

    return forward


def sdpa(case: AttentionCase, dropout_p: float = 0.0) -> Forward:
    def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        options = {"is_causal": case.causal, "dropout_p": dropout_p}
        return (nn.functional.scaled_dot_product_attention(query, key, value, **options),)

    return forward


def eager(inputs: AttentionInputs, activation: str, statistics: str = "none") -> Forward:
    """The reference with all its weights; ReLU with ReLUFormer's row scale, the others without."""
    row_scale = inputs.row_scale if activation == "relu" else None

    def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        result = reference_attention(
            query, key, value, activation=activation, mask=inputs.mask, row_scale=row_scale, statistics=statistics
        )
        return tuple(part for part in (result.output, result.row_sum, result.row_sum_log) if part is not None)

    return forward


def timed_steps(case: AttentionCase, inputs: AttentionInputs, names: tuple[str, ...]) -> dict[str, Callable[[], Any]]:
    """What is called in the rounds, for each of `names` out of OURS, SDPA and EAGER."""
    return {name: _timed_step(case, inputs, name) for name in names}


def _timed_step(case: AttentionCase, inputs: AttentionInputs, name: str) -> Callable[[], Any]:
    leaves: tuple[Tensor, ...] = (inputs.query, inputs.key, inputs.value)
    gradients: tuple[Tensor, ...] = (inputs.output_gradient,)
    if name in OURS:
        forward = fused(case, inputs, OURS[name])
        if case.backward:
            gradients += statistics_gradients(case, inputs, OURS[name])
    elif name == SDPA:
        forward = sdpa(case)
    elif name == "rela":
        norm = GatedRMSNorm(case.heads * case.head_dim).to(case.device, case.dtype)
        forward = _rela(inputs, norm)
        leaves += tuple(norm.parameters())
        gradients = (inputs.output_gradient.transpose(1, 2).flatten(2),)
    else:
        forward = eager(inputs, name.removeprefix("eager "))
    return training_step(forward, leaves, gradients) if case.backward else inference_step(forward, leaves[:3])


def inference_step(forward: Forward, inputs: tuple[Tensor, ...]) -> Callable[[], Any]:
    @torch.no_grad()
    def step() -> Any:
        return forward(*inputs)

    return step


def training_step(forward: Forward, leaves: tuple[Tensor, ...], gradients: tuple[Tensor, ...]) -> Callable[[], Any]:
    """Forward over the first three leaves and backward to all of them."""

    def step() -> Any:
        return torch.autograd.grad(forward(*leaves[:3]), leaves, gradients)

    return step


def statistics_gradients(case: AttentionCase, inputs: AttentionInputs, statistics: str) -> tuple[Tensor, ...]:
    """Gradients of S, or of S and T, as the regulariser sends them: those of Eq. 7, or of its |log S| alone."""
    if statistics == "none":
        return ()
    with torch.no_grad():
        _, *sums = fused(case, inputs, statistics)(inputs.query, inputs.key, inputs.value)
    sums = [tensor.detach().requires_grad_() for tensor in sums]
    row_weight = torch.full_like(inputs.visible_keys, 1 / case.length)
    if statistics == "sum":
        no_entropy = torch.zeros_like(sums[0])
        penalty = row_penalty(sums[0], no_entropy, inputs.visible_keys, DEFAULT_ENTROPY_MARGIN).sum() / case.length
    else:
        penalty = module_sums(*sums, inputs.visible_keys, row_weight, entropy_margin=DEFAULT_ENTROPY_MARGIN)[0]
    return torch.autograd.grad(penalty, sums)


def _rela(inputs: AttentionInputs, norm: GatedRMSNorm) -> Forward:
    def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        output = reference_attention(query, key, value, activation="relu", mask=inputs.mask).output
        return (norm(output.transpose(1, 2).flatten(2)),)

    return forward
