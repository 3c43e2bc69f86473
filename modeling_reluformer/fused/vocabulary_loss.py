"""A cross-entropy over the vocabulary that never holds the logits of a batch.

It computes the logits of some hundred positions, turns them into their own gradient where they lie, and multiplies them
into the gradients of the hidden states and of the matrix: in the forward pass, as Liger's fused linear cross-entropy
(arXiv 2410.10989). The backward pass multiplies by the incoming gradient. Positions without a label are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..attention_reluformer import wide
from ..loss_reluformer import IGNORED_LABEL

# Logits that are held at a time, in bytes, and how many bytes of one column of them at least: each chunk is one pass
# over the gradient of the whole matrix, so a large vocabulary needs enough positions a pass. Chosen by timing 800 to
# 2,000 positions.
CHUNK_BYTES = {"cpu": 8 * 2**20}
CHUNK_BYTES_ELSEWHERE = 128 * 2**20
LEAST_COLUMN_BYTES = 1024
# On a CPU, the softmax of a chunk goes over this many logits at a time, which then stay in the processor's cache.
CACHED_LOGITS = 2**18


@torch.compiler.disable  # the number of positions that have a label depends on the data
def vocabulary_loss(
    hidden_states: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """Sum over labels of the smoothed cross-entropy of hidden_states @ weight.T + bias; sums in float32 or wider.

    Equal to `nn.functional.cross_entropy(…, reduction="sum")` of these logits up to rounding. `torch.compile` ends a
    graph here.

    Args:
        hidden_states: (batch, target, d_model). weight: (vocabulary, d_model). bias: (vocabulary,) or (1, vocabulary).
        labels: (batch, target), -100 where there is no target.
        label_smoothing: share of the loss that goes to all pieces alike.

    Raises:
        RuntimeError: in a second backward pass through the same loss, or one through its gradient.
    """
    labels = labels.flatten()
    positions = (labels != IGNORED_LABEL).nonzero().squeeze(1)
    hidden_states = hidden_states.flatten(0, -2)
    if len(positions) < len(labels):
        labels, hidden_states = labels[positions], hidden_states.index_select(0, positions)
    bias = None if bias is None else bias.flatten()
    return _VocabularyLoss.apply(hidden_states, weight, bias, labels, label_smoothing, torch.is_grad_enabled())


class _VocabularyLoss(torch.autograd.Function):
    """hidden (n, d), weight (v, d), bias (v,) or None, labels (n,) → the sum of the losses, in float32 or wider."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, label_smoothing, grad_enabled):
        wanted = [needed and grad_enabled for needed in ctx.needs_input_grad[:3]]
        device = hidden.device.type
        operands = (hidden, weight, bias)
        ctx.dtypes = [None if operand is None else operand.dtype for operand in operands]
        if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
            dtype = torch.get_autocast_dtype(device)
            operands = tuple(None if operand is None else operand.to(dtype) for operand in operands)
        with torch.autocast(device, enabled=False):
            loss, ctx.gradients = _loss_and_gradients(*operands, labels, label_smoothing, wanted)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        if ctx.gradients is None:
            raise RuntimeError(
                "a second backward pass through a loss without logits: its gradients were given away in the first. "
                "Call the model again, or call it with skip_logits=False."
            )
        gradients, ctx.gradients = ctx.gradients, None
        scaled = [
            None if tensor is None else tensor.mul_(gradient).to(dtype)
            for tensor, dtype in zip(gradients, ctx.dtypes, strict=True)
        ]
        return (*scaled, None, None, None)


def _loss_and_gradients(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float, wanted: list[bool]
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss, and the gradients of hidden, weight and bias that are wanted, chunk by chunk. The sums are wide."""
    product, sums = _product(hidden, weight), wide(hidden.dtype)
    bias = None if bias is None else bias.to(hidden.dtype)
    loss = torch.zeros((), dtype=sums, device=hidden.device)
    of_hidden = torch.empty_like(hidden, dtype=sums) if wanted[0] else None
    of_weight = torch.zeros_like(weight, dtype=sums) if wanted[1] else None
    of_bias = torch.zeros(len(weight), dtype=sums, device=hidden.device) if wanted[2] else None
    size = _chunk_size(len(labels), weight)
    for start in range(0, len(labels), size):
        chunk = slice(start, start + size)
        logits = product(hidden[chunk], weight, bias)
        loss += _into_gradient(logits, labels[chunk], label_smoothing, any(wanted))
        if wanted[0]:
            of_hidden[chunk] = product(logits, weight.t(), None)
        if wanted[1]:
            if logits.dtype == sums:
                of_weight.addmm_(logits.t(), hidden[chunk])
            else:
                of_weight += torch.mm(logits.t(), hidden[chunk])
        if wanted[2]:
            of_bias += logits.sum(0, dtype=sums)
    return loss, [of_hidden, of_weight, of_bias]


def _chunk_size(positions: int, weight: Tensor) -> int:
    """Positions whose logits are computed at a time: chunks of equal length, as few as memory allows."""
    size, allowed = weight.element_size(), CHUNK_BYTES.get(weight.device.type, CHUNK_BYTES_ELSEWHERE)
    chunks = math.ceil(positions / max(LEAST_COLUMN_BYTES // size, allowed // (len(weight) * size)))
    return max(1, math.ceil(positions / max(1, chunks)))


def _into_gradient(logits: Tensor, labels: Tensor, label_smoothing: float, wanted: bool) -> Tensor:
    """The sum of the losses of logits (n, v); where it is wanted, their gradient overwrites them."""
    vocabulary, sums = logits.shape[1], wide(logits.dtype)
    cached = max(1, CACHED_LOGITS // vocabulary) if logits.device.type == "cpu" else len(labels)
    loss = torch.zeros((), dtype=sums, device=logits.device)
    for rows, targets in zip(logits.split(cached), labels.unsqueeze(1).split(cached), strict=True):
        probabilities = torch.softmax(rows, 1, dtype=sums)
        # The largest probability of a row is 1 / Σ exp(logit - largest logit).
        losses = rows.amax(1).to(sums) - probabilities.amax(1).log()
        losses -= (1 - label_smoothing) * _of_targets(rows, targets).to(sums)
        if label_smoothing:
            losses -= label_smoothing * rows.mean(1, dtype=sums)
        loss += losses.sum()
        if wanted:
            probabilities.sub_(label_smoothing / vocabulary)
            probabilities.scatter_add_(1, targets, probabilities.new_full(targets.shape, label_smoothing - 1))
            rows.copy_(probabilities)
    return loss


def _of_targets(rows: Tensor, targets: Tensor) -> Tensor:
    """The logit of each row's target, (n,)."""
    try:
        return rows.gather(1, targets).squeeze(1)
    except RuntimeError as error:  # of a CPU, as `cross_entropy` raises it
        lowest, highest = map(int, targets.aminmax())
        if lowest >= 0 and highest < rows.shape[1]:
            raise
        raise IndexError(
            f"labels holds ids from {lowest} to {highest}; the vocabulary of {rows.shape[1]} tokens has 0 to "
            f"{rows.shape[1] - 1}."
        ) from error


def _product(hidden: Tensor, weight: Tensor) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """A function like `nn.functional.linear`. For float32 on a CPU it is oneDNN's: MKL takes up to twice as long on an
    AMD."""
    operator = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
    plain = hidden.device.type == "cpu" and hidden.dtype == weight.dtype == torch.float32
    if operator is None or not plain or not torch.backends.mkldnn.enabled:
        return nn.functional.linear
    return lambda first, second, bias: operator.default(first, second, bias, "none", [], "")
