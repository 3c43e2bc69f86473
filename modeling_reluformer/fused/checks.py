"""What `relu_attention` refuses: wrong values, shapes and dtypes that do not fit, tensors on different devices, two scales.

A check reads no number of a tensor on a device, which would wait for it.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from ..attention_activations import NON_NEGATIVE, POINTWISE
from ..visibility_reluformer import check_scaling, is_number
from .blockwise import STATISTICS

_MASKS = (
    "; give causal=True, or key_padding_mask, boolean (batch, keys), True for real tokens. A mask of queries × keys is for "
    "ReLUAttention, as attn_mask, and keeps all weights in memory."
)
OTHER_NAMES = {
    "is_causal": "; give causal=True.",
    "attn_mask": _MASKS,
    "attention_mask": _MASKS,
    "enable_gqa": ": heads share keys wherever there are fewer of them. Leave it out.",
    "dropout": "; give dropout_p.",
}


def refuse_dual(*tensors: Tensor | None) -> None:
    """An operator with a backward pass of its own has no forward mode; torch would silently take its tangents as zero."""
    if any(tensor is not None and unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise NotImplementedError(
            "relu_attention was given a dual tensor; its operator has no forward-mode derivative. Use reverse mode "
            "(backward(), torch.autograd.grad), or attn_implementation='eager'."
        )


def refuse_other_names(given: dict[str, Any]) -> NoReturn:
    """Says what to give in the place of arguments that are called otherwise elsewhere, as in `scaled_dot_product_attention`.

    Raises:
        TypeError: always.
    """
    name = next(iter(given))
    raise TypeError(f"relu_attention has no argument {name!r}{OTHER_NAMES.get(name, '.')}")


def check_options(activation: str, statistics: str, dropout_p: float) -> None:
    """Refuses names that are unknown, statistics of weights that may be negative, and a rate outside [0, 1).

    Raises:
        ValueError: one of them.
    """
    if not isinstance(activation, str) or activation not in POINTWISE:
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


def check_values(scale: float | None, causal: bool, query_offset: int | Tensor) -> None:
    """Refuses a scale that is no finite number or 0, what is no bool, and an offset that is no integer of 64 bits.

    Raises:
        ValueError: one of them.
    """
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


def check_devices(
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
    """Refuses tensors on another device than the query's; an offset may be on the CPU.

    Raises:
        ValueError: names the first of them.
    """
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


def check_row_scale(
    row_scale: Tensor | None, scaling: str, gamma: float | Tensor | None, alpha: float | None, heads: int
) -> None:
    """Refuses two scales for the rows, none, and what `check_scaling` refuses. heads: of the query.

    Raises:
        ValueError: one of them.
    """
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


def check_shapes(
    query: Tensor, key: Tensor, value: Tensor, row_scale: Tensor | None, key_padding_mask: Tensor | None
) -> None:
    """Refuses shapes and dtypes that are not those of `relu_attention`.

    Raises:
        ValueError: what was expected and what was given.
    """
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


def check_packing(query: Tensor, key: Tensor, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None) -> None:
    """Refuses ends of packed sequences that do not rise from 0 to the length; on a device, only their shapes and dtypes.

    Raises:
        ValueError: what was expected and what was given.
    """
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
