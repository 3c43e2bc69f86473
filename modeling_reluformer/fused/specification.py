"""What one call of `relu_attention` computes, in one piece, and the check of it.

To add an option: a field here, its check, the reference, and the loops that can compute it (blockwise.py, the Triton kernels,
compiled/); a loop that cannot refuses it by name.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..attention_reluformer import ATTENTION_SCALINGS, LARGEST_ALPHA, NON_NEGATIVE, POINTWISE

STATISTICS = ("none", "sum", "sum+entropy")
_MASKS = (
    "; give causal=True, or key_padding_mask, boolean (batch, keys), True for real tokens. A mask of queries × keys is for "
    "ReLUAttention, as attn_mask, and keeps all weights in memory."
)
_OTHER_NAMES = {
    "is_causal": "; give causal=True.",
    "attn_mask": _MASKS,
    "attention_mask": _MASKS,
    "enable_gqa": ": heads share keys wherever there are fewer of them. Leave it out.",
    "dropout": "; give dropout_p.",
}


@dataclass(frozen=True)
class Specification:
    """All that is computed of a query, a key and a value; see `relu_attention` for what the options mean.

    The fields stand in the order of the arguments of the operators, here and in C++ (compiled/differentiation.h).

    row_scale: r_i > 0, (batch, 1 or heads, queries), float32, or float64 where the query is; None: 1.
    key_padding_mask: boolean (batch, keys), True for real tokens; None: all are.
    cu_seqlens_q, cu_seqlens_k: (sequences + 1,), int32 or int64; None: one sequence a row of the batch.
    offset: in place of `query_offset`, an integer tensor of no dimension on the device of the query.
    seed: of the dropout mask, int64 of no dimension on the CPU; `attend` draws it.
    """

    row_scale: Tensor | None = None
    key_padding_mask: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    offset: Tensor | None = None
    seed: Tensor | None = None
    activation: str = "relu"
    scale: float = 1.0
    causal: bool = False
    query_offset: int = 0
    dropout_p: float = 0.0
    statistics: str = "none"

    def arguments(self) -> tuple[Any, ...]:
        """The fields, as the operators take them. Written out: this is part of what a short call costs."""
        tensors = self.row_scale, self.key_padding_mask, self.cu_seqlens_q, self.cu_seqlens_k, self.offset, self.seed
        return *tensors, self.activation, self.scale, self.causal, self.query_offset, self.dropout_p, self.statistics

    @property
    def keys_before(self) -> int | Tensor:
        """Keys before the first query, wherever that number is."""
        return self.query_offset if self.offset is None else self.offset

    @property
    def level(self) -> int:
        """How many statistics are wanted: S, then T."""
        return STATISTICS.index(self.statistics)

    def check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Refuses what does not fit; reads no number of a tensor on a device, which would wait for it.

        Raises:
            ValueError: what was given and what was expected.
        """
        _check_inputs(query, key, value)
        self._check_options()
        batch, heads, queries, _ = query.shape
        keys = key.shape[2]
        scale, mask = self.row_scale, self.key_padding_mask
        if scale is not None and (
            not isinstance(scale, Tensor) or scale.shape not in ((batch, 1, queries), (batch, heads, queries))
        ):
            raise ValueError(
                f"row_scale must be a tensor (batch, 1 or heads, queries) = ({batch}, 1 or {heads}, {queries}); "
                f"got {_described(scale)}."
            )
        if mask is not None and (
            not isinstance(mask, Tensor) or mask.shape != (batch, keys) or mask.dtype != torch.bool
        ):
            raise ValueError(
                f"key_padding_mask must be boolean with the shape (batch, keys) = ({batch}, {keys}), True for real tokens; "
                f"got {_described(mask)}."
            )
        if self.cu_seqlens_q is not None or self.cu_seqlens_k is not None:
            self._check_packing(batch, queries, keys)

    def _check_options(self) -> None:
        if not isinstance(self.activation, str) or self.activation not in POINTWISE:
            raise ValueError(
                f"fused attention computes {', '.join(POINTWISE)}; {self.activation!r} needs whole rows of scores."
            )
        if self.statistics not in STATISTICS:
            raise ValueError(f"statistics={self.statistics!r} is unknown; choose one of {', '.join(STATISTICS)}.")
        if self.statistics != "none" and self.activation not in NON_NEGATIVE:
            raise ValueError(
                f"statistics={self.statistics!r} needs weights that are never negative ({', '.join(NON_NEGATIVE)}); "
                f"those of {self.activation!r} can be. Use statistics='none'."
            )
        if not (is_number(self.dropout_p) and 0 <= self.dropout_p < 1):
            raise ValueError(f"dropout_p={_described(self.dropout_p)} must be a number that lies in [0, 1).")
        if not isinstance(self.causal, bool | torch.SymBool):
            raise ValueError(f"causal={_described(self.causal)} must be True or False.")

    def _check_packing(self, batch: int, queries: int, keys: int) -> None:
        named = ("cu_seqlens_q", self.cu_seqlens_q, queries), ("cu_seqlens_k", self.cu_seqlens_k, keys)
        if self.cu_seqlens_q is None or self.cu_seqlens_k is None or self.cu_seqlens_q.shape != self.cu_seqlens_k.shape:
            raise ValueError("cu_seqlens_q and cu_seqlens_k must be given together, with the same number of sequences.")
        for name, ends, _ in named:
            if ends.ndim != 1 or ends.dtype not in (torch.int32, torch.int64):
                raise ValueError(f"{name} must be an int32 or int64 tensor (sequences + 1,); got {_described(ends)}.")
        if batch != 1:
            raise ValueError(
                f"Packed sequences (cu_seqlens) follow each other in one row: batch must be 1, it is {batch}."
            )
        if torch.compiler.is_compiling() or self.cu_seqlens_q.device.type != "cpu":
            return  # the loops look at the numbers again
        for name, ends, length in named:
            if ends.numel() < 1 or ends[0] != 0 or ends[-1] != length or (ends.diff() < 0).any():
                raise ValueError(f"{name} must rise from 0 to {length}, the length of its tensor; got {ends.tolist()}.")


_TYPES = {"Tensor | None": "Tensor?", "int": "SymInt"}
# The arguments of the operators behind query, key and value.
SCHEMA = ", ".join(f"{_TYPES.get(field.type, field.type)} {field.name}" for field in fields(Specification))
TENSOR_COUNT = sum(field.type == "Tensor | None" for field in fields(Specification))


def refuse_other_names(given: dict[str, Any]) -> NoReturn:
    """Says what to give in the place of arguments that are called otherwise elsewhere, as in `scaled_dot_product_attention`.

    Raises:
        TypeError: always.
    """
    name = next(iter(given))
    raise TypeError(f"relu_attention has no argument {name!r}{_OTHER_NAMES.get(name, '.')}")


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


def _check_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, given in (("query", query), ("key", key), ("value", value)):
        if not isinstance(given, Tensor) or given.ndim != 4:
            raise ValueError(f"{name} must be a tensor (batch, heads, length, head_dim); got {_described(given)}.")
    (batch, heads, _, head_dim), of_keys, of_values = query.shape, key.shape, value.shape
    fits = of_keys[0] == batch and of_keys[3] == head_dim and of_values[:3] == of_keys[:3]
    if not fits or 0 in (heads, of_keys[1], head_dim, of_values[3]) or heads % of_keys[1]:
        raise ValueError(
            f"query {tuple(query.shape)}, key {tuple(of_keys)} and value {tuple(of_values)} do not fit: expected "
            "(batch, heads, queries, head_dim) and twice (batch, key_heads, keys, head_dim), heads a multiple of key_heads, at "
            "least one head, and at least one feature."
        )
    if not query.dtype == key.dtype == value.dtype or not query.dtype.is_floating_point:
        raise ValueError(
            f"query, key and value must share one floating dtype; got {query.dtype}, {key.dtype} and {value.dtype}."
        )


def _described(given: Any) -> str:
    """For a message. The numbers of a tensor may be many, or on a device."""
    return f"a tensor {given.dtype} {tuple(given.shape)}" if isinstance(given, Tensor) else repr(given)


def check_scaling(scaling: str, gamma: float | Tensor | None, alpha: float | None, heads: int | None = None) -> None:
    """Refuses what `scale_of_rows` does not take; `heads`: of the query, where gamma may be a tensor.

    Raises:
        ValueError: an unknown scaling, a value that is none, or one that the scaling does not use.
    """
    if scaling not in ATTENTION_SCALINGS:
        raise ValueError(f"scaling={scaling!r} is unknown; choose one of {', '.join(ATTENTION_SCALINGS)}.")
    for name, value, its_scaling in (("gamma", gamma, "variance"), ("alpha", alpha, "length")):
        if value is not None and scaling != its_scaling:
            raise ValueError(
                f"{name} belongs to scaling={its_scaling!r}, and scaling is {scaling!r}: leave {name} out, or scaling."
            )
    if isinstance(gamma, Tensor):
        if heads is None or gamma.shape not in ((), (heads,)) or not gamma.is_floating_point():
            raise ValueError(
                f"gamma must be a number, or a floating tensor with one for all heads or one for each, () or ({heads},); "
                f"got {gamma.dtype} {tuple(gamma.shape)}."
            )
    elif gamma is not None and not (is_number(gamma) and 0 < gamma < float("inf")):
        raise ValueError(f"gamma={gamma!r} must be a finite number above 0.")
    if alpha is not None and not (is_number(alpha) and 0 <= alpha <= LARGEST_ALPHA):
        raise ValueError(f"alpha={alpha!r} must be a number from 0 to {LARGEST_ALPHA:g}.")


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
