"""`use_sparse_ffn`: decoding skips the weights of a feed-forward network that meet a zero."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..compiled.library import library
from .forward import DTYPES, SparseBlock, SparseFeedForward, SparseProjection, sparse_blocks

# A forward that computes something else is off by about its whole output.
_TOLERANCE = 0.05


def use_sparse_ffn(model: PreTrainedModel, enabled: bool = True, *, int8: bool = False) -> PreTrainedModel:
    """Makes decoding on a CPU skip what zeros of the feed-forward networks multiply: y = Σ_i f(w_i·x) g(u_i·x) v_i, f ≠
    0.

    Calls of up to 8 rows (batch × positions) without gradients are computed so, by a compiled loop; a neuron is skipped
    where it is zero in all rows. All others are computed as before: longer prompts, training, calls under
    `torch.compile`, autocast or with hooks on the projections. In float32 the results are those of the dense network to
    rounding, but a weight that is not finite and meets a zero is not seen.

    Nothing of it is saved; a copy or a pickle of the model skips zeros too. The second projection is held a second
    time, transposed. It follows changes of the weights, except those through `weight.data`, by which PEFT merges
    adapters: after them, call this again.

    Args:
        model: a Transformers model on a CPU whose networks are (fc1, fc2), (wi, wo), (gate_proj, up_proj, down_proj) or
            (wi_0, wi_1, wo) with the activation relu, relu2 or relu6: OPT, T5, Llama, Marian, ours. Of one with an
            encoder, the networks of the decoder.
        enabled: False undoes it.
        int8: weights of these networks in int8, with one scale for each neuron, and their inputs in int8 with one scale
            a row. This changes results by rounding. Prompts of more than 8 tokens are read with the model's own
            weights.

    Returns:
        The model itself.

    Raises:
        TypeError: not a Transformers model.
        ValueError: a network without exact zeros (gelu, silu, …), of other structure, with quantized weights or on
            another device; a model of another dtype than float32 and bfloat16; no compiled loop.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"use_sparse_ffn takes a Transformers model (a PreTrainedModel); got {type(model).__module__}."
            f"{type(model).__qualname__}. Of a PEFT model, give get_base_model()."
        )
    operators = library(large=enabled)
    if enabled and (operators is None or model.dtype not in DTYPES):
        raise ValueError(
            f"use_sparse_ffn needs a model in float32 or bfloat16, it is {model.dtype}, and the compiled library; "
            "`python -m reluformer.modeling_reluformer.compiled` says whether it can be had."
        )
    blocks = sparse_blocks(model) if enabled else []
    forwards = [pair for block in blocks for pair in _forwards(block, operators, int8)]
    for part in model.modules():
        if isinstance(vars(part).get("forward"), SparseFeedForward | SparseProjection):
            del part.forward
    for module, forward in forwards:
        module.forward = forward
    return model


def _forwards(
    block: SparseBlock, operators: Any, int8: bool
) -> list[tuple[nn.Module, SparseFeedForward | SparseProjection]]:
    if block.alone:
        _refuse_other_forward(block, operators)
        return [(block.module, SparseFeedForward(block, int8=int8))]
    linears = block.projections.items()
    return [(linear, SparseProjection(linear, second=name == block.second, int8=int8)) for name, linear in linears]


@torch.no_grad()
def _refuse_other_forward(block: SparseBlock, operators: Any) -> None:
    """Structure is names; numbers tell whether the forward of the class computes what they promise."""
    weight = block.projections[block.first].weight
    rows = torch.randn(2, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    module = copy.deepcopy(block.module).eval()
    expected, output = type(module).forward(module, rows), SparseFeedForward(block, int8=False).compute(operators, rows)
    if (expected - output).float().norm() > _TOLERANCE * expected.float().norm():
        factor = f" * {block.up}(x)" if block.up else ""
        raise ValueError(
            f"{block.name} does not compute {block.second}({block.function}({block.first}(x)){factor}); use_sparse_ffn "
            "knows no other network."
        )
