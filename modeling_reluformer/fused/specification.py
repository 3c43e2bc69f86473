"""What one call of `relu_attention` computes, in one piece, and the check of it.

To add an option: a field here, its check, the reference, and the loops that can compute it (blockwise.py, the Triton
kernels, compiled/attention/); a loop that cannot refuses it by name, or leaves the call to one that can
(`compiled_operator`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ..attention_reluformer import (
    NON_NEGATIVE,
    POINTWISE,
    STATISTICS,
    Visibility,
    check_row_scale,
    described,
    is_number,
)


@dataclass
class Specification:
    """What `relu_attention` computes of query, key and value. Its options are the arguments of the same names there.

    The fields stand in the order of the arguments of the operators; in C++ they follow from one list, at the beginning
    of compiled/attention/differentiation.h.

    row_scale: r_i > 0, (batch, 1 or heads, queries), float32, or float64 where the query is; None: 1.
    cu_seqlens_q, cu_seqlens_k: int32 or int64 (sequences + 1,), where packed sequences start and end. batch is 1, the
        sequences follow each other along `queries` and `keys`, a query sees its own sequence, and i and j count from
        its start. key_padding_mask, (1, keys), may hide keys within them. None: one sequence a row of the batch.
    offset: in place of `query_offset`, an integer tensor of no dimension on the device of the query.
    seed: of the dropout mask, int64 of no dimension, on the CPU or, in a graph of CUDA, on the device; `attend` draws
        it.
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
    window: int | None = None
    dropout_p: float = 0.0
    statistics: str = "none"

    def arguments(self, seed: Tensor | None = None) -> tuple[Any, ...]:
        """The fields, as the operators take them, with another seed. Written out: this is part of what a short call
        costs."""
        seed = self.seed if seed is None else seed
        tensors = self.row_scale, self.key_padding_mask, self.cu_seqlens_q, self.cu_seqlens_k, self.offset, seed
        options = self.activation, self.scale, self.causal, self.query_offset, self.window, self.dropout_p
        return *tensors, *options, self.statistics

    @property
    def keys_before(self) -> int | Tensor:
        """Keys before the first query, wherever that number is."""
        return self.query_offset if self.offset is None else self.offset

    @property
    def visibility(self) -> Visibility:
        """Which keys a query sees, of sequences that are not packed."""
        return Visibility(self.key_padding_mask, self.causal, self.keys_before, window=self.window)

    @property
    def statistics_count(self) -> int:
        """How many statistics are wanted: S, then T."""
        return STATISTICS.index(self.statistics)

    def check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Refuses what does not fit query, key and value, which `check_inputs` has let pass.

        It reads no number of a tensor on a device, which would wait for it.

        Raises:
            ValueError: what was given and what was expected.
        """
        self._check_options()
        batch, heads, queries, _ = query.shape
        keys = key.shape[2]
        scale, mask = self.row_scale, self.key_padding_mask
        for name, tensor in (("row_scale", scale), ("key_padding_mask", mask)):
            if isinstance(tensor, Tensor) and tensor.device != query.device:
                raise ValueError(f"{name} lies on {tensor.device}, and query on {query.device}; move one to the other.")
        if scale is not None and shape_of(scale) not in ((batch, 1, queries), (batch, heads, queries)):
            raise ValueError(
                f"row_scale must be a tensor (batch, 1 or heads, queries) = ({batch}, 1 or {heads}, {queries}); "
                f"got {described(scale)}. For one number in all rows, give torch.full(({batch}, 1, {queries}), number)."
            )
        if mask is not None and (shape_of(mask) != (batch, keys) or mask.dtype != torch.bool):
            raise ValueError(
                f"key_padding_mask must be a boolean tensor (batch, keys) = ({batch}, {keys}), True for real tokens; "
                f"got {described(mask)}."
            )
        if self.cu_seqlens_q is not None or self.cu_seqlens_k is not None:
            self._check_packing(batch, queries, keys)

    def _check_options(self) -> None:
        if self.activation not in POINTWISE:
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
        if not isinstance(self.causal, bool):
            raise ValueError(f"causal must be True or False; got {described(self.causal)}.")
        is_window = isinstance(self.window, int) and not isinstance(self.window, bool) and self.window >= 1
        if self.window is not None and not (is_window and self.causal):
            raise ValueError(
                f"window must be an int of at least 1, the number of keys that a query sees up to its own, and needs "
                f"causal=True; got window={described(self.window)} and causal={self.causal}. Leave window out to see "
                "all keys."
            )
        if not is_number(self.scale) or not abs(self.scale) < float("inf"):
            raise ValueError(
                f"scale must be a finite number; got {described(self.scale)}. Leave it out for 1/sqrt(head_dim)."
            )
        if not is_number(self.dropout_p) or not 0 <= self.dropout_p < 1:
            raise ValueError(f"dropout_p must be a number from 0 to below 1; got {described(self.dropout_p)}.")
        before = self.keys_before
        is_integer = isinstance(before, int)
        if isinstance(before, Tensor):
            is_integer = before.ndim == 0 and not before.is_floating_point()
        if not is_integer:
            raise ValueError(
                f"query_offset must be an int, or an integer tensor of no dimension; got {described(before)}. It is "
                "the number of keys before the first query."
            )

    def _check_packing(self, batch: int, queries: int, keys: int) -> None:
        ends = self.cu_seqlens_q, self.cu_seqlens_k
        fits = batch == 1 and all(isinstance(each, Tensor) and each.ndim == 1 for each in ends)
        fits = fits and len(ends[0]) == len(ends[1]) and {each.dtype for each in ends} <= {torch.int32, torch.int64}
        # on a device, and in a compiled graph, the loops look at the numbers
        if fits and not torch.compiler.is_compiling() and ends[0].device.type == "cpu":
            for each, length in zip(ends, (queries, keys), strict=True):
                fits = fits and each.numel() > 0 and each[0] == 0 and each[-1] == length and (each.diff() >= 0).all()
        if not fits:
            raise ValueError(
                "Packed sequences follow each other in one row: cu_seqlens_q and cu_seqlens_k must be int32 or int64 "
                f"tensors (sequences + 1,) that rise from 0 to {queries} and to {keys}, and batch 1; got {ends} and "
                f"batch {batch}."
            )


_TYPES = {"Tensor | None": "Tensor?", "int": "SymInt", "int | None": "SymInt?"}
# The arguments of the operators after query, key and value.
SCHEMA = ", ".join(f"{_TYPES.get(field.type, field.type)} {field.name}" for field in fields(Specification))
TENSOR_COUNT = sum(field.type == "Tensor | None" for field in fields(Specification))


def shape_of(value: object) -> tuple[int, ...] | None:
    """The shape of a tensor; None for anything else."""
    return tuple(value.shape) if isinstance(value, Tensor) else None


def check_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuses query, key and value that do not fit each other.

    Raises:
        ValueError: what was given and what was expected.
    """
    if not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)):
        kinds = ", ".join(type(each).__name__ for each in (query, key, value))
        raise ValueError(f"query, key and value must be tensors; got {kinds}.")
    shapes = query.shape, key.shape, value.shape
    fits = all(len(shape) == 4 for shape in shapes) and value.shape[:3] == key.shape[:3]
    fits = (
        fits and query.shape[::3] == key.shape[::3] and 0 not in (*query.shape[1::2], *key.shape[1::2], value.shape[3])
    )
    if not fits or query.shape[1] % key.shape[1]:
        raise ValueError(
            f"query, key and value {', '.join(str(tuple(shape)) for shape in shapes)} do not fit: expected (batch, "
            "heads, queries, head_dim) and twice (batch, key_heads, keys, head_dim), heads a multiple of key_heads, at "
            "least one head, and at least one feature."
        )
    if not query.dtype == key.dtype == value.dtype or not query.dtype.is_floating_point:
        raise ValueError(
            f"query, key and value must share one floating dtype; got {query.dtype}, {key.dtype} and {value.dtype}."
        )
    if not query.device == key.device == value.device:
        raise ValueError(
            f"query, key and value must lie on one device; got {query.device}, {key.device} and {value.device}."
        )


def check_scaling(scaling: str, gamma: float | Tensor | None, alpha: float | None) -> None:
    """Refuses what `scale_of_rows` does not take.

    Raises:
        ValueError: an unknown scaling, a value out of its range, or one that the scaling does not use.
    """
    check_row_scale(scaling, gamma, alpha)
    for name, value, its_scaling in (("gamma", gamma, "variance"), ("alpha", alpha, "length")):
        if value is not None and scaling != its_scaling:
            raise ValueError(
                f"{name} belongs to scaling={its_scaling!r}, and scaling is {scaling!r}: leave {name} out, or scaling."
            )
