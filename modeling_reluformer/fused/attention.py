"""Point-wise attention without a queries × keys tensor: one function for every device.

`relu_attention` is one operator of torch.library, so that `torch.compile` and activation checkpointing work with it as
it is. On a CPU that is the compiled `reluformer_cpu::attention` of the installed package, in float32 and bfloat16. All
else goes to `reluformer::pointwise_attention`: on CUDA the Triton kernels, elsewhere the blockwise loop, for which
small problems run as plain differentiable products instead.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..attention_reluformer import reference_attention, scale_of_rows, wide
from .compiled_operator import compiled_operator
from .operator import operator_for, refuse_dual
from .specification import Specification, check_inputs, check_scaling

# Plain products are faster than the Triton kernels and the blockwise loop for so few queries, and than the loop for so
# few scores of all heads together. On a CPU `python -m benchmarks without-library` shows it; for a GPU, `python -m
# benchmarks.gpu decode` measures up to how many queries.
PLAIN_QUERIES = 16
PLAIN_SCORES = 2**21


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
    window: int | None = None,
    key_padding_mask: Tensor | None = None,
    activation: str = "relu",
    scale: float | None = None,
    dropout_p: float = 0.0,
    statistics: str = "none",
    query_offset: int | Tensor = 0,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """ReLU attention (Eq. 6) whose memory grows with the length, with the statistics that L_reg (Eq. 7) needs.

    With x_ij = scale · q_i·k_j over the visible keys j, and s_ij = r_i h(x_ij):

        O_i = sum_j s_ij v_j        S_i = sum_j s_ij        T_i = sum_j s_ij log s_ij        (H_i = log S_i - T_i / S_i)

    Args:
        query: (batch, heads, queries, head_dim), any strides. float64, float32, bfloat16, float16 (with loss scaling).
        key, value: (batch, key_heads, keys, head_dim), in the dtype of the query; neighbouring query heads share a head
            of keys. NaN and infinity in a value reach each query that sees its key, with `causal` others as well.
        gamma: of the scaling "variance", r_i = 1 / (gamma sqrt(n_i / 2)) with n_i visible keys; 16 suits up to 1,024
            tokens. A number above 0, or a tensor () or (heads,), which gets a gradient.
        scaling, alpha: "variance"; "length", r_i = n_i^-alpha with alpha from 0 to 2, default 1; "none", r_i = 1.
        row_scale: in place of these three, r_i > 0 itself, (batch, 1 or heads, queries). Gets a gradient.
        causal: key j is visible to query i only if j <= i + query_offset. scale: default 1/sqrt(head_dim).
        window: with causal, also only if j > i + query_offset - window; time grows with the window, not the text.
        key_padding_mask: boolean (batch, keys), True for real tokens; padding may stand anywhere, and hold anything.
        activation: h, see `attention_reluformer.POINTWISE`. dropout_p: dropout of the weights, after the statistics.
        statistics: "none", "sum" (S) or "sum+entropy" (S and T).
        query_offset: keys before the first query; an int, or an integer tensor of no dimension (a static cache).
        cu_seqlens_q, cu_seqlens_k: (sequences + 1,), see `Specification`; with row_scale or scaling "none".

    Returns:
        The output (batch, heads, queries, head_dim), in the dtype of the query; with statistics (output, S) or (output,
        S, T), each (batch, heads, queries), float32 (float64 for float64 inputs) and differentiable. A row without a
        positive weight has output, S and T zero.

    Raises:
        ValueError: a bad value or shape, or a combination that is not supported; the message says which and what to do.
        NotImplementedError: forward-mode differentiation (`torch.func.jvp`, dual tensors) of more than a small problem.
    """
    check_inputs(query, key, value)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    offset = query_offset.to(query.device) if isinstance(query_offset, Tensor) else None
    keys_before = query_offset if offset is None else 0
    tensors = row_scale, key_padding_mask, cu_seqlens_q, cu_seqlens_k, offset, None
    specification = Specification(*tensors, activation, scale, causal, keys_before, window, dropout_p, statistics)
    specification.check(query, key, value)
    result = attend(query, key, value, _with_row_scale(query, key, specification, scaling, gamma, alpha))
    return result[0] if len(result) == 1 else result


def attend(query: Tensor, key: Tensor, value: Tensor, specification: Specification) -> tuple[Tensor, ...]:
    """`relu_attention` of what is known to fit: the models check what they are given once for all layers.

    Returns the output, then S and T where they are wanted.
    """
    wanted = 1 + specification.statistics_count
    operator = compiled_operator(query, key, specification)
    if operator is None and specification.cu_seqlens_q is None and _is_small(query, key):
        return _plain(query, key, value, specification)[:wanted]
    if operator is None:
        refuse_dual(query, key, value, specification.row_scale)
        operator = operator_for(query)
    seed = None
    if specification.dropout_p > 0:
        # Drawn from torch's generator: the same seed gives the same masks, also when a checkpoint recomputes. On the
        # device where the call becomes part of a graph, which draws anew at every replay.
        in_graph = query.is_cuda and (torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing())
        seed = torch.randint(2**63 - 1, (), dtype=torch.int64, device=query.device if in_graph else "cpu")
    return operator(query, key, value, *specification.arguments(seed))[:wanted]


def _with_row_scale(
    query: Tensor,
    key: Tensor,
    specification: Specification,
    scaling: str,
    gamma: float | Tensor | None,
    alpha: float | None,
) -> Specification:
    """The row scale in its dtype, counted from the visible keys where it is not given."""
    row_scale, dtype = specification.row_scale, wide(query.dtype)
    if row_scale is not None:
        if gamma is not None or alpha is not None or scaling == "length":
            raise ValueError(
                f"row_scale was given together with gamma={gamma}, alpha={alpha}, scaling={scaling!r}; row_scale is "
                "all of r_i. Give row_scale alone, or leave it out, and the visible keys are counted for you."
            )
        return specification if row_scale.dtype == dtype else replace(specification, row_scale=row_scale.to(dtype))
    check_scaling(scaling, gamma, alpha)
    if scaling == "variance" and gamma is None:
        raise ValueError(
            "relu_attention was given no scale for its rows; give gamma (16 suits up to 1,024 tokens), "
            "scaling='length', scaling='none', or a row_scale."
        )
    if isinstance(gamma, Tensor) and gamma.shape not in ((), query.shape[1:2]):
        raise ValueError(f"gamma must be a number, or a tensor () or ({query.shape[1]},); got {tuple(gamma.shape)}.")
    if scaling == "none":
        return specification
    if specification.cu_seqlens_q is not None:
        raise ValueError(
            f"scaling={scaling!r} was given with packed sequences (cu_seqlens), whose visible keys are not counted; "
            "give row_scale, or scaling='none'."
        )
    visible_keys = specification.visibility.count(query.shape[0], query.shape[2], key.shape[2], query.device)
    visible_keys = visible_keys.to(dtype).unsqueeze(1)
    return replace(specification, row_scale=scale_of_rows(visible_keys, scaling, gamma=gamma, alpha=alpha))


def _is_small(query: Tensor, key: Tensor) -> bool:
    batch, heads, queries, _ = query.shape
    few = queries <= PLAIN_QUERIES
    if query.device.type == "cuda":  # in generation, one launch of the kernel instead of a dozen
        return few and (torch.is_grad_enabled() or query.dtype == torch.float64)
    return few or batch * heads * queries * key.shape[2] <= PLAIN_SCORES


def _plain(query: Tensor, key: Tensor, value: Tensor, specification: Specification) -> tuple[Tensor | None, ...]:
    """The whole problem at once, as autograd differentiates it: also forward, and more than once. Output, S and T.

    float16 is computed in float32: its range is small, and the weights, as the row scale leaves them, smaller still.
    """
    dtype, mask = query.dtype, specification.key_padding_mask
    if dtype == torch.float16:
        query, key, value = (tensor.float() for tensor in (query, key, value))
    if mask is not None:  # what padding holds, NaN for one, must not reach a product
        key, value = (tensor.masked_fill(~mask[:, None, :, None], 0.0) for tensor in (key, value))
    result = reference_attention(
        query,
        key,
        value,
        activation=specification.activation,
        mask=specification.visibility.dense(query.shape[2], key.shape[2], query.device),
        row_scale=specification.row_scale,
        scale=specification.scale,
        dropout_p=specification.dropout_p,
        statistics=specification.statistics,
    )
    return result.output.to(dtype), result.row_sum, result.row_sum_log
