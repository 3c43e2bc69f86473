"""Point-wise attention without a queries × keys tensor: one function for every device.

`relu_attention` is one operator of torch.library, so that `torch.compile` and activation checkpointing work with it as it is.
On a CPU that is the compiled `reluformer_cpu::attention` of the installed package, in float32 and bfloat16. All else goes to
`reluformer::pointwise_attention`: on CUDA the Triton kernels, elsewhere the blockwise loop, for which small problems run as plain
differentiable products instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..attention_reluformer import POINTWISE, Visibility, scale_of_rows, wide, within
from .operator import compiled_operator, operator_for, refuse_dual
from .specification import Specification, check_row_scale, refuse_other_names

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
        activation: h, the name of a point-wise activation, see `attention_reluformer.POINTWISE`.
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
    is_tensor = isinstance(query_offset, Tensor)
    specification = Specification(
        row_scale=row_scale,
        key_padding_mask=key_padding_mask,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        offset=query_offset.to(query.device) if is_tensor else None,
        activation=activation,
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        causal=causal,
        query_offset=0 if is_tensor else query_offset,
        dropout_p=dropout_p,
        statistics=statistics,
    )
    specification.check(query, key, value)
    check_row_scale(row_scale, scaling, gamma, alpha, query.shape[1])
    if row_scale is None and scaling != "none":
        visible_keys = _visible_keys(query, key, specification).to(wide(query.dtype)).unsqueeze(1)
        row_scale = scale_of_rows(visible_keys, scaling, gamma=gamma, alpha=alpha)
    elif row_scale is not None:
        row_scale = row_scale.to(wide(query.dtype))
    if row_scale is not specification.row_scale:
        specification = replace(specification, row_scale=row_scale)
    found = attend(query, key, value, specification)
    return found[0] if len(found) == 1 else found


def attend(query: Tensor, key: Tensor, value: Tensor, specification: Specification) -> tuple[Tensor, ...]:
    """`relu_attention` of what is known to fit: the models check what they are given once for all layers.

    Returns the output, then S and T where they are wanted.
    """
    wanted = 1 + specification.level
    operator = compiled_operator(query, key, specification.activation)
    if operator is None and specification.cu_seqlens_q is None and _is_small(query, key):
        return _plain(query, key, value, specification)[:wanted]
    if operator is None:
        refuse_dual(query, key, value, specification.row_scale)
        operator = operator_for(query)
    if specification.dropout_p > 0:
        # drawn from torch's generator: the same seed gives the same masks, also when a checkpoint recomputes
        seed = torch.randint(2**63 - 1, (), dtype=torch.int64, device="cpu")
        specification = replace(specification, seed=seed)
    return operator(query, key, value, *specification.arguments())[:wanted]


def _visible_keys(query: Tensor, key: Tensor, specification: Specification) -> Tensor:
    """n_i, (batch, queries), float32, at least 1. Reads no number of the tensors, so that it never waits for a device."""
    batch, queries, keys = query.shape[0], query.shape[2], key.shape[2]
    mask, causal, offset = specification.key_padding_mask, specification.causal, specification.keys_before
    if specification.cu_seqlens_q is None:
        return Visibility(mask, causal, offset).count(batch, queries, keys, query.device)
    rows = torch.arange(queries, device=query.device)
    (starts, ends), (first_keys, end_keys) = (
        (places[:-1].long(), places[1:].long()) for places in (specification.cu_seqlens_q, specification.cu_seqlens_k)
    )
    sequence = torch.bucketize(rows, ends, right=True).clamp_max(ends.shape[0] - 1)
    first, end = first_keys[sequence], end_keys[sequence]
    if causal:
        seen = rows - starts[sequence] + 1 + within(offset, -queries, keys)
        end = torch.minimum(first + seen.clamp_min(0), end)
    counts = end - first
    if mask is not None:
        real = nn.functional.pad(mask[0].cumsum(0), (1, 0))
        counts = real[end] - real[first]
    return counts.clamp_min(1).float().unsqueeze(0)


def _is_small(query: Tensor, key: Tensor) -> bool:
    batch, heads, queries, _ = query.shape
    few = queries <= PLAIN_QUERIES
    return few or (query.device.type != "cuda" and batch * heads * queries * key.shape[2] <= PLAIN_SCORES)


def _plain(
    query: Tensor, key: Tensor, value: Tensor, specification: Specification
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The whole problem at once, as autograd differentiates it: also forward, and more than once."""
    mask = specification.key_padding_mask
    if mask is not None:  # what padding holds, NaN for one, must not reach a product
        key, value = (tensor.masked_fill(~mask[:, None, :, None], 0.0) for tensor in (key, value))
    if (group := query.shape[1] // key.shape[1]) > 1:
        key, value = (tensor.repeat_interleave(group, dim=1) for tensor in (key, value))
    weights = POINTWISE[specification.activation](query * specification.scale @ key.mT)
    visibility = Visibility(mask, specification.causal, specification.keys_before)
    if (visible := visibility.dense(*weights.shape[2:], weights.device)) is not None:
        weights = weights.masked_fill(~visible, 0.0)
    if specification.row_scale is not None:
        weights = weights * specification.row_scale.unsqueeze(-1).to(weights.dtype)
    row_sum = row_sum_log = None
    if specification.level:
        exact = weights.to(wide(weights.dtype))
        row_sum = exact.sum(-1)
        # the clamped logarithm keeps the gradient of s·log s finite at s = 0
        row_sum_log = (exact * exact.clamp_min(torch.finfo(torch.float32).tiny).log()).sum(-1)
    if specification.dropout_p > 0:
        weights = nn.functional.dropout(weights, p=specification.dropout_p)
    return weights @ value, row_sum, row_sum_log
