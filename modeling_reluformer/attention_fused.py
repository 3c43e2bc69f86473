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
from torch.autograd.forward_ad import unpack_dual

from .attention_activations import NON_NEGATIVE, POINTWISE
from .attention_blockwise import STATISTICS, scales_first, wide
from .attention_operator import compiled_operator, pointwise_attention
from .visibility_reluformer import (
    Visibility,
    check_scaling,
    count_in_sequences,
    is_number,
    scale_of_rows,
)

# Where the blockwise loop would compute, plain products are faster for so few queries, or so few scores of all heads together.
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
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    """ReLU attention (Eq. 6) whose memory grows with the length, with the statistics that L_reg (Eq. 7) needs.

    With x_ij = scale · q_i·k_j over the visible keys j, and s_ij = r_i h(x_ij):

        O_i = sum_j s_ij v_j        S_i = sum_j s_ij        T_i = sum_j s_ij log s_ij        (H_i = log S_i - T_i / S_i)

    ReLUFormer's row scale is r_i = 1 / (gamma sqrt(n_i / 2)). n_i, the number of keys that query i sees, is counted here, and
    so follows causality, padding, the offset and packing.

    Args:
        query: (batch, heads, queries, head_dim), any strides. float64, float32, bfloat16 or float16.
        key, value: (batch, key_heads, keys, head_dim), in the dtype of the query. `heads` is a multiple of `key_heads`;
            neighbouring query heads share a head of keys (grouped keys).
        gamma: of the scaling "variance", without a default, since a suitable one grows with the length: sqrt(2 n) is a good
            start for n tokens. A number above 0, or a tensor () or (heads,), which gets a gradient.
        scaling: "variance", see above; "length", n_i^-alpha; "none", 1, or `row_scale`.
        alpha: of the scaling "length", from 0 to 1; default 1.
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

    Returns:
        The output (batch, heads, queries, head_dim), in the dtype of the query; with statistics (output, S) or
        (output, S, T), each (batch, heads, queries), float32 (float64 for float64 inputs) and differentiable. A row
        without a positive weight has output, S and T zero.

    Raises:
        ValueError: a bad value, tensors on different devices, or a combination that is not supported; the message says which
            and what to do.
        NotImplementedError: forward-mode differentiation (`torch.func.jvp`, dual tensors), which works for small problems only.
    """
    _check_options(activation, statistics, dropout_p)
    _check_values(scale, causal, query_offset)
    inputs = query, key, value, row_scale, key_padding_mask
    operator = compiled_operator(query, key, activation) if _are_tensors(query, key, row_scale) else None
    if operator is None or row_scale is None:
        _check_shapes(*inputs)
    _check_row_scale(row_scale, scaling, gamma, alpha, query.shape[1])
    _check_devices(*inputs, gamma, cu_seqlens_q, cu_seqlens_k, query_offset)
    _check_packing(query, key, cu_seqlens_q, cu_seqlens_k)
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    if row_scale is None and scaling != "none":
        visible_keys = _visible_keys(query, key, key_padding_mask, causal, query_offset, cu_seqlens_q, cu_seqlens_k)
        row_scale = scale_of_rows(visible_keys.to(wide(query.dtype)).unsqueeze(1), scaling, gamma=gamma, alpha=alpha)
    elif row_scale is not None:
        row_scale = row_scale.to(wide(query.dtype))
    wanted = STATISTICS.index(statistics)
    if operator is None and cu_seqlens_q is None and _is_small(query, key):
        visible = causal, query_offset, key_padding_mask
        found = _plain(query, key, value, row_scale, visible, activation, scale, dropout_p, statistics)
        return found[0] if wanted == 0 else tuple(found[: 1 + wanted])
    if operator is None:
        _refuse_dual(query, key, value, row_scale)
        operator = pointwise_attention
    offset = query_offset.to(query.device) if isinstance(query_offset, Tensor) else None
    # a number drawn from torch's generator: the same seed gives the same masks, also when a checkpoint recomputes
    seed = torch.randint(2**63 - 1, (), dtype=torch.int64, device="cpu") if dropout_p > 0 else None
    tensors = query, key, value, row_scale, key_padding_mask, cu_seqlens_q, cu_seqlens_k, offset, seed
    options = activation, scale, causal, 0 if offset is not None else query_offset, dropout_p, statistics
    try:
        found = operator(*tensors, *options)
    except (RuntimeError, TypeError, ValueError):
        _check_shapes(*inputs)  # the compiled operator only says that something does not fit
        raise
    return found[0] if wanted == 0 else tuple(found[: 1 + wanted])


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


def _are_tensors(query: Any, key: Any, row_scale: Any) -> bool:
    """Of four dimensions, none of them too small for what follows; the rest is left to the checks."""
    return (
        isinstance(query, Tensor)
        and isinstance(key, Tensor)
        and query.ndim == key.ndim == 4
        and query.shape[-1] > 0
        and (row_scale is None or isinstance(row_scale, Tensor))
    )


def _refuse_dual(*tensors: Tensor | None) -> None:
    """An operator with a backward pass of its own has no forward mode; torch would silently take its tangents as zero."""
    if any(tensor is not None and unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise NotImplementedError(
            "relu_attention was given a dual tensor; its operator has no forward-mode derivative. Use reverse mode "
            "(backward(), torch.autograd.grad), or attn_implementation='eager'."
        )


def _is_small(query: Tensor, key: Tensor) -> bool:
    if query.device.type == "cuda":
        return False
    batch, heads, queries, _ = query.shape
    return queries <= PLAIN_QUERIES or batch * heads * queries * key.shape[2] <= PLAIN_SCORES


def _check_options(activation: str, statistics: str, dropout_p: float) -> None:
    if activation not in POINTWISE:
        raise ValueError(f"fused attention computes {', '.join(POINTWISE)}; {activation!r} needs whole rows of scores.")
    if statistics not in STATISTICS:
        raise ValueError(f"statistics={statistics!r} is unknown; choose one of {', '.join(STATISTICS)}.")
    if statistics != "none" and activation not in NON_NEGATIVE:
        raise ValueError(
            f"statistics={statistics!r} needs weights that are never negative ({', '.join(NON_NEGATIVE)}); "
            f"those of {activation!r} can be. Use statistics='none'."
        )
    if not (is_number(dropout_p) and 0 <= dropout_p < 1):
        raise ValueError(f"dropout_p={_described(dropout_p)} must be a number that lies in [0, 1).")


def _check_values(scale: float | None, causal: bool, query_offset: int | Tensor) -> None:
    """Reads no number of a tensor, which could wait for a device."""
    if scale is not None and not (is_number(scale) and abs(scale) < float("inf") and scale != 0):
        raise ValueError(
            f"scale={_described(scale)} must be a finite number other than 0, or None for 1/sqrt(head_dim)."
        )
    if not isinstance(causal, bool | torch.SymBool):
        raise ValueError(f"causal={_described(causal)} must be True or False.")
    if isinstance(query_offset, Tensor):
        fits = query_offset.ndim == 0 and _holds_integers(query_offset)
    elif torch.compiler.is_compiling() or isinstance(query_offset, torch.SymInt):
        fits = isinstance(query_offset, int | torch.SymInt) and not isinstance(query_offset, bool)
    else:
        fits = isinstance(query_offset, int) and not isinstance(query_offset, bool) and -(2**63) <= query_offset < 2**63
    if not fits:
        raise ValueError(
            f"query_offset={_described(query_offset)} must be an int within 64 bits, or an integer tensor of no dimension."
        )


def _check_devices(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_scale: Tensor | None,
    key_padding_mask: Tensor | None,
    gamma: float | Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    query_offset: int | Tensor,
) -> None:
    others = {
        "key": key,
        "value": value,
        "row_scale": row_scale,
        "key_padding_mask": key_padding_mask,
        "gamma": gamma,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
    }
    if isinstance(query_offset, Tensor) and query_offset.device.type != "cpu":
        others["query_offset"] = query_offset
    for name, other in others.items():
        if isinstance(other, Tensor) and other.device != query.device:
            raise ValueError(
                f"query is on {query.device} and {name} on {other.device}: move them to one device, with {name}.to(query.device)."
            )


def _holds_integers(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _described(given: Any) -> str:
    """For a message. The numbers of a tensor may be many, or on a device."""
    return f"a tensor {given.dtype} {tuple(given.shape)}" if isinstance(given, Tensor) else repr(given)


def _check_row_scale(
    row_scale: Tensor | None, scaling: str, gamma: float | Tensor | None, alpha: float | None, heads: int
) -> None:
    if row_scale is None:
        check_scaling(scaling, gamma, alpha, heads)
        if scaling == "variance" and gamma is None:
            raise ValueError(
                "relu_attention was given no scale for its rows; give gamma (sqrt(2 n) is a good start for n tokens), "
                "scaling='length', scaling='none', or a row_scale."
            )
    elif gamma is not None or alpha is not None or scaling == "length":
        raise ValueError(
            f"row_scale was given together with gamma={gamma}, alpha={alpha}, scaling={scaling!r}; row_scale is all of r_i. "
            "Give row_scale alone, or leave it out, and the visible keys are counted for you."
        )


def _check_shapes(
    query: Tensor, key: Tensor, value: Tensor, row_scale: Tensor | None, key_padding_mask: Tensor | None
) -> None:
    _check_tensors(query, key, value, row_scale, key_padding_mask)
    batch, heads, queries, head_dim = query.shape
    key_heads, keys = key.shape[1], key.shape[2]
    if 0 in (heads, key_heads, head_dim, value.shape[-1]):
        raise ValueError(
            f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} must have at least one head, and "
            "a head at least one feature."
        )
    if key.shape != (batch, key_heads, keys, head_dim) or value.shape[:3] != key.shape[:3] or heads % key_heads:
        raise ValueError(
            f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} do not fit: expected "
            "(batch, heads, queries, head_dim) and twice (batch, key_heads, keys, head_dim), heads a multiple of key_heads."
        )
    if not query.dtype == key.dtype == value.dtype or not query.dtype.is_floating_point:
        raise ValueError(
            f"query, key and value must share one floating dtype; got {query.dtype}, {key.dtype} and {value.dtype}."
        )
    if row_scale is not None and row_scale.shape not in ((batch, 1, queries), (batch, heads, queries)):
        raise ValueError(
            f"row_scale must have the shape (batch, 1 or heads, queries) = ({batch}, 1 or {heads}, {queries}); "
            f"got {tuple(row_scale.shape)}."
        )
    if key_padding_mask is not None and (
        key_padding_mask.shape != (batch, keys) or key_padding_mask.dtype != torch.bool
    ):
        raise ValueError(
            f"key_padding_mask must be boolean with the shape (batch, keys) = ({batch}, {keys}), True for real tokens; "
            f"got {key_padding_mask.dtype} {tuple(key_padding_mask.shape)}."
        )


def _check_tensors(
    query: Tensor, key: Tensor, value: Tensor, row_scale: Tensor | None, key_padding_mask: Tensor | None
) -> None:
    for name, given in (("query", query), ("key", key), ("value", value)):
        if not isinstance(given, Tensor) or given.ndim != 4:
            found = f"the shape {tuple(given.shape)}" if isinstance(given, Tensor) else f"a {type(given).__name__}"
            raise ValueError(f"{name} must be a tensor (batch, heads, length, head_dim); got {found}.")
    if row_scale is not None and not isinstance(row_scale, Tensor):
        raise ValueError(
            f"row_scale must be a tensor (batch, 1 or heads, queries) or None; got {row_scale!r}. One factor for all rows is "
            "torch.full((batch, 1, queries), factor)."
        )
    if key_padding_mask is not None and not isinstance(key_padding_mask, Tensor):
        raise ValueError(
            f"key_padding_mask must be a boolean tensor (batch, keys) or None; got a {type(key_padding_mask).__name__}."
        )


def _check_packing(query: Tensor, key: Tensor, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None) -> None:
    if cu_seqlens_q is None and cu_seqlens_k is None:
        return
    for name, ends in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        fits = ends is None or (
            isinstance(ends, Tensor) and ends.ndim == 1 and ends.dtype in (torch.int32, torch.int64)
        )
        if not fits:
            raise ValueError(f"{name} must be an int32 or int64 tensor (sequences + 1,); got {_described(ends)}.")
    if cu_seqlens_q is None or cu_seqlens_k is None or cu_seqlens_q.shape != cu_seqlens_k.shape:
        raise ValueError("cu_seqlens_q and cu_seqlens_k must be given together, with the same number of sequences.")
    if query.shape[0] != 1:
        raise ValueError(
            f"Packed sequences (cu_seqlens) follow each other in one row: batch must be 1, it is {query.shape[0]}."
        )
    if torch.compiler.is_compiling() or cu_seqlens_q.device.type != "cpu":
        return  # reading the numbers would break the compiled graph, or wait for the device
    for name, ends, length in (
        ("cu_seqlens_q", cu_seqlens_q, query.shape[2]),
        ("cu_seqlens_k", cu_seqlens_k, key.shape[2]),
    ):
        steps = ends.diff()
        if ends.numel() < 1 or ends[0] != 0 or ends[-1] != length or (steps < 0).any():
            raise ValueError(f"{name} must rise from 0 to {length}, the length of its tensor; got {ends.tolist()}.")


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
