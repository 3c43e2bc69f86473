"""Point-wise attention without a queries × keys tensor: one function for every device.

`relu_attention` is one operator of torch.library, so that `torch.compile` and activation checkpointing work with it as it is.
On a CPU that is the compiled `reluformer_cpu::attention` of the installed package, in float32 and bfloat16. All else goes to
`reluformer::pointwise_attention`: on CUDA the Triton kernels, elsewhere the blockwise loop, for which small problems run as plain
differentiable products instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..attention_activations import POINTWISE
from ..visibility_reluformer import Visibility, count_in_sequences, scale_of_rows, wide
from .blockwise import STATISTICS, scales_first
from .checks import (
    check_devices,
    check_options,
    check_packing,
    check_row_scale,
    check_shapes,
    check_values,
    refuse_dual,
    refuse_other_names,
)
from .operator import compiled_operator, operator_for

# Plain products are faster than the Triton kernels and the blockwise loop for so few queries, and than the loop for so few
# scores of all heads together.
PLAIN_QUERIES = 16
PLAIN_SCORES = 2**20


def relu_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    gamma: float | Tensor | None = None,
    scaling: str = "variance",
    alpha: float | None = None,
    row_scale: Tensor | None = None,
    causal: bool = False,
    key_padding_mask: Tensor | None = None,
    activation: str = "relu",
    scale: float | None = None,
    dropout_p: float = 0.0,
    statistics: str = "none",
    query_offset: int | Tensor = 0,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    **other_names: Any,
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    """ReLU attention (Eq. 6) whose memory grows with the length, with the statistics that L_reg (Eq. 7) needs.

    With x_ij = scale · q_i·k_j over the visible keys j, and s_ij = r_i h(x_ij):

        O_i = sum_j s_ij v_j        S_i = sum_j s_ij        T_i = sum_j s_ij log s_ij        (H_i = log S_i - T_i / S_i)

    ReLUFormer's row scale is r_i = 1 / (gamma sqrt(n_i / 2)). n_i, the number of keys that query i sees, is counted here, and
    so follows causality, padding, the offset and packing.

    Args:
        query: (batch, heads, queries, head_dim), any strides. float64, float32, bfloat16 or float16.
        key, value: (batch, key_heads, keys, head_dim), in the dtype of the query. `heads` is a multiple of `key_heads`;
            neighbouring query heads share a head of keys (grouped keys). NaN or infinity in a value makes
            that feature NaN or infinite in every query that sees the key, also where the weight is zero, as in a product of
            matrices; causality need not keep it from earlier queries. Padding may hold anything.
        gamma: of the scaling "variance", without a default, since a suitable one grows with the length: sqrt(2 n) is a good
            start for n tokens. A number above 0, or a tensor () or (heads,), which gets a gradient.
        scaling: "variance", see above; "length", n_i^-alpha; "none", 1, or `row_scale`.
        alpha: of the scaling "length", from 0 to 2; default 1.
        row_scale: in place of the above, r_i > 0 itself, (batch, 1 or heads, queries). Gets a gradient.
        causal: key j is visible to query i only if j <= i + query_offset.
        key_padding_mask: boolean (batch, keys), True for real tokens; padding may stand anywhere.
        activation: h, the name of a point-wise activation, see `attention_activations.POINTWISE`.
        scale: default 1/sqrt(head_dim).
        dropout_p: dropout of the weights, after the statistics.
        statistics: "none", "sum" (S) or "sum+entropy" (S and T).
        query_offset: keys before the first query: an int, or an integer tensor of no dimension (a static cache), there or on
            the CPU.
        cu_seqlens_q, cu_seqlens_k: int32 or int64 (sequences + 1,): where packed sequences start and end. batch is 1, the
            sequences follow each other along `queries` and `keys`, a query sees its own sequence, and i and j count from its
            start. key_padding_mask, (1, keys), may hide keys within them.
        other_names: none. Those that `scaled_dot_product_attention` has are refused with what to give here.

    Returns:
        The output (batch, heads, queries, head_dim), in the dtype of the query; with statistics (output, S) or
        (output, S, T), each (batch, heads, queries), float32 (float64 for float64 inputs) and differentiable. A row
        without a positive weight has output, S and T zero.

    Raises:
        ValueError: a bad value, tensors on different devices, or a combination that is not supported; the message says which
            and what to do.
        TypeError: an argument that there is not.
        NotImplementedError: forward-mode differentiation (`torch.func.jvp`, dual tensors), which works for small problems only.
    """
    if other_names:
        refuse_other_names(other_names)
    check_options(activation, statistics, dropout_p)
    check_values(scale, causal, query_offset)
    inputs = query, key, value, row_scale, key_padding_mask
    check_shapes(*inputs)
    check_row_scale(row_scale, scaling, gamma, alpha, query.shape[1])
    check_devices(*inputs, gamma, cu_seqlens_q, cu_seqlens_k, query_offset)
    check_packing(query, key, cu_seqlens_q, cu_seqlens_k)
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    if row_scale is None and scaling != "none":
        visible_keys = _visible_keys(query, key, key_padding_mask, causal, query_offset, cu_seqlens_q, cu_seqlens_k)
        row_scale = scale_of_rows(visible_keys.to(wide(query.dtype)).unsqueeze(1), scaling, gamma=gamma, alpha=alpha)
    elif row_scale is not None:
        row_scale = row_scale.to(wide(query.dtype))
    tensors = query, key, value, row_scale, key_padding_mask, cu_seqlens_q, cu_seqlens_k
    found = attend(*tensors, activation, scale, causal, query_offset, dropout_p, statistics)
    return found[0] if len(found) == 1 else found


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_scale: Tensor | None,
    key_padding_mask: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    activation: str,
    scale: float,
    causal: bool,
    query_offset: int | Tensor,
    dropout_p: float,
    statistics: str,
) -> tuple[Tensor, ...]:
    """`relu_attention` of arguments that are known to fit: the models check what they are given once for all layers.

    row_scale: in float32, or in float64 if the query is. Returns the output, then S and T where they are wanted.
    """
    wanted = 1 + STATISTICS.index(statistics)
    operator = compiled_operator(query, key, activation)
    if operator is None and cu_seqlens_q is None and _is_small(query, key):
        visible = causal, query_offset, key_padding_mask
        return _plain(query, key, value, row_scale, visible, activation, scale, dropout_p, statistics)[:wanted]
    if operator is None:
        refuse_dual(query, key, value, row_scale)
        operator = operator_for(query)
    offset = query_offset.to(query.device) if isinstance(query_offset, Tensor) else None
    # a number drawn from torch's generator: the same seed gives the same masks, also when a checkpoint recomputes
    seed = torch.randint(2**63 - 1, (), dtype=torch.int64, device="cpu") if dropout_p > 0 else None
    tensors = query, key, value, row_scale, key_padding_mask, cu_seqlens_q, cu_seqlens_k, offset, seed
    options = activation, scale, causal, 0 if offset is not None else query_offset, dropout_p, statistics
    return operator(*tensors, *options)[:wanted]


def _visible_keys(
    query: Tensor,
    key: Tensor,
    key_padding_mask: Tensor | None,
    causal: bool,
    query_offset: int | Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
) -> Tensor:
    """n_i, (batch, queries), float32."""
    batch, queries, keys = query.shape[0], query.shape[2], key.shape[2]
    if cu_seqlens_q is None:
        return Visibility(key_padding_mask, causal, query_offset).count(batch, queries, keys, query.device)
    visible = {"key_padding_mask": key_padding_mask, "causal": causal, "query_offset": query_offset}
    return count_in_sequences(cu_seqlens_q, cu_seqlens_k, queries, keys, **visible)


def _is_small(query: Tensor, key: Tensor) -> bool:
    batch, heads, queries, _ = query.shape
    few = queries <= PLAIN_QUERIES
    return few or (query.device.type != "cuda" and batch * heads * queries * key.shape[2] <= PLAIN_SCORES)


def _hide(weights: Tensor, causal: bool, query_offset: int | Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """Zeros where the key is not visible."""
    if key_padding_mask is not None:
        weights = weights.masked_fill(~key_padding_mask[:, None, None, :], 0.0)
    if not causal:
        return weights
    if not isinstance(query_offset, Tensor):
        # nothing to hide from one new token behind a cache
        return weights if query_offset + 1 >= weights.shape[-1] else weights.tril(query_offset)
    queries, keys = (torch.arange(length, device=weights.device) for length in weights.shape[-2:])
    return weights.masked_fill(keys - queries.unsqueeze(1) > query_offset, 0.0)


def _plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_scale: Tensor | None,
    visible: tuple[bool, int | Tensor, Tensor | None],
    activation: str,
    scale: float,
    dropout_p: float,
    statistics: str,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The whole problem at once, as autograd differentiates it."""
    if visible[2] is not None:  # what padding holds, NaN for one, must not reach a product
        hidden = ~visible[2][:, None, :, None]
        key, value = key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)
    group = query.shape[1] // key.shape[1]
    if group > 1:
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    weights = _hide(POINTWISE[activation].function(torch.matmul(query * scale, key.transpose(-1, -2))), *visible)
    row_sum, row_sum_log = _plain_statistics(weights, row_scale, statistics)
    if dropout_p > 0:
        weights = nn.functional.dropout(weights, p=dropout_p)
    scale_first = row_scale is not None and scales_first(query.dtype)
    if scale_first:
        weights = weights * row_scale.unsqueeze(-1).to(weights.dtype)
    output = torch.matmul(weights, value)
    if row_scale is not None and not scale_first:
        output = output * row_scale.unsqueeze(-1).to(output.dtype)
    return output, row_sum, row_sum_log


def _plain_statistics(
    weights: Tensor, row_scale: Tensor | None, statistics: str
) -> tuple[Tensor | None, Tensor | None]:
    if statistics == "none":
        return None, None
    weights = weights.to(wide(weights.dtype))
    total = weights.sum(-1)
    row_sum = total if row_scale is None else row_scale * total
    if statistics == "sum":
        return row_sum, None
    # The clamped logarithm keeps the gradient of u·log u finite at u = 0.
    row_sum_log = (weights * weights.clamp_min(torch.finfo(torch.float32).tiny).log()).sum(-1)
    return row_sum, row_sum_log if row_scale is None else row_scale * row_sum_log + row_scale.log() * row_sum
