"""Point-wise attention on CUDA: launches the Triton kernels. Validation of shapes and autograd are elsewhere.

It takes float16, bfloat16 and float32, sums in float32, and its memory grows with the length. The backward pass recomputes the
scores and sums in a fixed order, without atomics, so it repeats to the bit. float32 products follow
`torch.set_float32_matmul_precision`: IEEE float32 at "highest", else TF32.

Tensor-parallel heads: dropout is drawn at (batch, head, query, key) of the seed, so give every rank the same seed and
`head_offset`, the number of query heads on the ranks before it. The result is then that of one device. Each data-parallel
rank needs a seed of its own.

The tile sizes were chosen by what the compiler reports: they fit the shared memory of every GPU from Ampere on and spill
few registers, if any. They were not measured on a GPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .attention_activations import POINTWISE

try:
    import triton

    from .kernels_triton import forward_kernel, key_value_gradient_kernel, query_gradient_kernel
except ImportError:  # CPU, macOS, Windows: `_check` says how to install it
    triton = None

STATISTICS = ("none", "sum", "sum+entropy")
MAX_HEAD_DIM = 256


class Tiles(NamedTuple):
    """Queries and keys of a tile, warps of a program, and how many tiles are loaded ahead."""

    queries: int
    keys: int
    warps: int
    stages: int


# By kernel, bytes of an element and width of a head. 4-byte products may not use tensor cores; their tiles live in registers.
TILES = {
    "forward": {
        2: {64: Tiles(128, 128, 8, 3), 128: Tiles(128, 64, 8, 3), 256: Tiles(64, 32, 4, 2)},
        4: {64: Tiles(64, 32, 8, 2), 128: Tiles(64, 32, 8, 2), 256: Tiles(32, 32, 8, 1)},
    },
    "query_gradient": {
        2: {64: Tiles(128, 64, 8, 3), 128: Tiles(64, 64, 8, 2), 256: Tiles(64, 16, 4, 2)},
        4: {64: Tiles(32, 32, 4, 2), 128: Tiles(32, 32, 8, 2), 256: Tiles(32, 16, 8, 1)},
    },
    "key_value_gradient": {
        2: {64: Tiles(64, 128, 8, 3), 128: Tiles(64, 64, 8, 2), 256: Tiles(32, 32, 8, 1)},
        4: {64: Tiles(32, 32, 4, 2), 128: Tiles(32, 32, 8, 2), 256: Tiles(16, 16, 8, 1)},
    },
}


def tile_sizes(kernel: str, query: Tensor) -> Tiles:
    """The entry of `TILES` for a kernel, with smaller tiles for few queries, as in decoding."""
    tiles = TILES[kernel][query.element_size()][max(64, _width(query))]
    return tiles._replace(queries=min(tiles.queries, max(16, triton.next_power_of_2(max(1, query.shape[2])))))


def triton_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_scale: Tensor | None,
    key_padding_mask: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    *,
    activation: str,
    scale: float,
    causal: bool,
    query_offset: int | Tensor,
    dropout_p: float,
    seed: int,
    statistics: str,
    head_offset: int = 0,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Output, S and T of `kernels_triton`.

    Args:
        query: (batch, heads, queries, head_dim), any strides.
        key, value: (batch, key_heads, keys, head_dim); query head h uses key head h // (heads // key_heads).
        row_scale: r_i > 0, (batch, 1 or heads, queries), float32; None: 1.
        key_padding_mask: (batch, keys), True for real keys; None: all are.
        cu_seqlens_q, cu_seqlens_k: (sequences + 1,), int32, ends of packed sequences, with batch 1; None: not packed.
            Positions for `causal` then count from the start of each sequence.
        activation: h, the name of a point-wise activation, see `attention_activations.POINTWISE`.
        scale: c, by which q·k is multiplied.
        causal: key j is visible to query i only if j <= i + query_offset.
        query_offset: an int, or an integer tensor of one element on the device.
        dropout_p: probability of dropping a weight, in [0, 1); S and T are those before it.
        seed: 64 bits, of which the dropout is a function, with the place of each weight.
        statistics: "none", "sum" (S) or "sum+entropy" (S and T).
        head_offset: number of this tensor's first head among those of all tensor-parallel ranks.

    Returns:
        The output (batch, heads, queries, head_dim), laid out as (batch, queries, heads, head_dim); S and T
        (batch, heads, queries), float32; None where not asked for. Rows of no sequence, or without keys, are 0.

    Raises:
        ImportError: Triton is not installed.
        TypeError: dtypes that differ, or float64.
        ValueError: a head_dim above 256, an unknown name, or a dropout probability outside [0, 1).
    """
    _check(query, key, value, activation, dropout_p, statistics)
    query, key, value = (_rows_contiguous(tensor) for tensor in (query, key, value))
    tiles = tile_sizes("forward", query)
    output = _empty_like(query, zeros=cu_seqlens_q is not None)
    row_sum, row_sum_log = (
        _new_rows(query, zeros=cu_seqlens_q is not None) if wanted else None
        for wanted in (statistics != "none", statistics == "sum+entropy")
    )
    table, tile_count = _tile_table(cu_seqlens_q, cu_seqlens_k, tiles.queries, query.shape[2])
    arguments = _arguments(
        query, key, value, row_scale, key_padding_mask, activation, scale, causal, query_offset, dropout_p, seed,
        statistics, head_offset,
    )  # fmt: skip
    _launch(
        forward_kernel,
        query.shape[0] * query.shape[1] * tile_count,
        tiles,
        **arguments,
        output=output,
        output_strides=output.stride()[:3],
        row_sum=row_sum,
        row_sum_log=row_sum_log,
        tiles=table,
        tile_count=tile_count,
        MASK_WEIGHTS=not POINTWISE[activation].zero_at_zero,
    )
    return output, row_sum, row_sum_log


def triton_backward(
    grad_output: Tensor,
    row_gain: Tensor | None,
    row_log_gain: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_scale: Tensor | None,
    key_padding_mask: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    *,
    activation: str,
    scale: float,
    causal: bool,
    query_offset: int | Tensor,
    dropout_p: float,
    seed: int,
    statistics: str,
    head_offset: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, by the formulas of `kernels_triton`.

    Args:
        grad_output: dO, shape of the query, any strides (0 too).
        row_gain: rho, (batch, heads, queries), float32; None for statistics "none".
        row_log_gain: tau, as rho; None unless statistics is "sum+entropy".
        The others: as given to `triton_forward`. The seed must be the same.

    Returns:
        dq, dk and dv, with the shapes and dtypes of query, key and value, laid out as the output of `triton_forward`.

    Raises:
        As `triton_forward`; ValueError also for row gains that do not go with `statistics`.
    """
    _check(query, key, value, activation, dropout_p, statistics)
    if (row_gain is not None, row_log_gain is not None) != (statistics != "none", statistics == "sum+entropy"):
        raise ValueError(
            f"statistics={statistics!r} needs row_gain for the gradient of S and row_log_gain for that of T, and neither"
            f" otherwise; row_gain is {_given(row_gain)}, row_log_gain {_given(row_log_gain)}."
        )
    query, key, value, grad_output = (
        _rows_contiguous(tensor) for tensor in (query, key, value, grad_output.to(query.dtype))
    )
    batch, heads, queries, _ = query.shape
    _, key_heads, keys, _ = key.shape
    packed = cu_seqlens_q is not None
    grad_query, grad_key, grad_value = (_empty_like(tensor, zeros=packed) for tensor in (query, key, value))
    arguments = _arguments(
        query, key, value, row_scale, key_padding_mask, activation, scale, causal, query_offset, dropout_p, seed,
        statistics, head_offset,
    )  # fmt: skip
    arguments |= {
        "grad_output": grad_output,
        "grad_output_strides": grad_output.stride()[:3],
        "row_gain": None if row_gain is None else row_gain.contiguous(),
        "row_log_gain": None if row_log_gain is None else row_log_gain.contiguous(),
    }
    tiles = tile_sizes("query_gradient", query)
    table, tile_count = _tile_table(cu_seqlens_q, cu_seqlens_k, tiles.queries, queries)
    _launch(
        query_gradient_kernel,
        batch * heads * tile_count,
        tiles,
        **arguments,
        grad_query=grad_query,
        grad_query_strides=grad_query.stride()[:3],
        tiles=table,
        tile_count=tile_count,
    )
    tiles = tile_sizes("key_value_gradient", query)
    table, tile_count = _tile_table(cu_seqlens_k, cu_seqlens_q, tiles.keys, keys)
    _launch(
        key_value_gradient_kernel,
        batch * key_heads * tile_count,
        tiles,
        **arguments,
        grad_key=grad_key,
        grad_value=grad_value,
        grad_key_strides=grad_key.stride()[:3],
        tiles=table,
        tile_count=tile_count,
    )
    return grad_query, grad_key, grad_value


def _check(query: Tensor, key: Tensor, value: Tensor, activation: str, dropout_p: float, statistics: str) -> None:
    if triton is None:
        raise ImportError(
            "Fused attention on CUDA tensors needs Triton: pip install triton (Linux), or attn_implementation='eager'."
        )
    dtypes = {tensor.dtype for tensor in (query, key, value)}
    if len(dtypes) > 1 or query.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise TypeError(
            "Fused attention on CUDA tensors takes query, key and value of one dtype, float16, bfloat16 or float32, not"
            f" {', '.join(sorted(map(str, dtypes)))}; cast them, or use attn_implementation='eager'."
        )
    if not 1 <= query.shape[-1] <= MAX_HEAD_DIM:
        raise ValueError(
            f"Fused attention on CUDA tensors takes heads of 1 to {MAX_HEAD_DIM}, not {query.shape[-1]};"
            " use more heads, or attn_implementation='eager'."
        )
    if activation not in POINTWISE:
        raise ValueError(f"attention activation {activation!r} is unknown here; choose one of {', '.join(POINTWISE)}.")
    if statistics not in STATISTICS:
        raise ValueError(f"statistics={statistics!r} is unknown; choose one of {', '.join(STATISTICS)}.")
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p={dropout_p} is no probability in [0, 1).")


def _arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_scale: Tensor | None,
    key_padding_mask: Tensor | None,
    activation: str,
    scale: float,
    causal: bool,
    query_offset: int | Tensor,
    dropout_p: float,
    seed: int,
    statistics: str,
    head_offset: int,
) -> dict[str, Any]:
    """What all three kernels are given."""
    batch, heads, queries, head_dim = query.shape
    if row_scale is not None:
        row_scale = row_scale.expand(batch, heads, queries)
    if key_padding_mask is not None and key_padding_mask.stride(-1) != 1:
        key_padding_mask = key_padding_mask.contiguous()
    tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return {
        "query": query,
        "key": key,
        "value": value,
        "row_scale": row_scale,
        "key_padding_mask": key_padding_mask,
        "query_offset": query_offset,
        "query_strides": query.stride()[:3],
        "key_strides": key.stride()[:3],
        "value_strides": value.stride()[:3],
        "row_scale_strides": None if row_scale is None else row_scale.stride(),
        "padding_stride": None if key_padding_mask is None else key_padding_mask.stride(0),
        "heads": heads,
        "group": heads // max(1, key.shape[1]),
        "queries": queries,
        "keys": key.shape[2],
        "scale": float(scale),
        "seed": (seed + 2**63) % 2**64 - 2**63,
        "threshold": min(round(dropout_p * 2**31), 2**31 - 1),
        "inverse": 1.0 / (1.0 - dropout_p),
        "head_offset": head_offset,
        "ACTIVATION": activation,
        # float16 would overflow for scores that are 1/c times larger
        "FOLD_SCALE": POINTWISE[activation].homogeneous and scale > 0 and query.dtype != torch.float16,
        "STATISTICS": STATISTICS.index(statistics),
        "CAUSAL": causal,
        "DROPOUT": dropout_p > 0,
        "PRECISION": "tf32" if tf32 else "ieee",
        "HEAD_DIM": head_dim,
        "DIM": _width(query),
    }


def _launch(kernel: Any, programs: int, sizes: Tiles, /, **arguments: Any) -> None:
    if programs == 0:
        return
    with torch.cuda.device_of(arguments["query"]):
        kernel[(programs,)](
            **arguments, BLOCK_Q=sizes.queries, BLOCK_K=sizes.keys, num_warps=sizes.warps, num_stages=sizes.stages
        )


def _tile_table(own: Tensor | None, other: Tensor | None, block: int, length: int) -> tuple[Tensor | None, int]:
    """The table for `kernels_triton.locate` and its length, without asking the device how long the sequences are.

    Every sequence may end in a part of a tile, so there are at most length // block + sequences tiles; the entries beyond
    those that exist start past the end of the last sequence, and their programs stop at once.
    """
    if own is None:
        return None, triton.cdiv(length, block)
    sequences = own.numel() - 1
    if sequences < 1:
        return None, 0
    lengths = own.diff()
    ends = ((lengths + block - 1) // block).cumsum(0)
    number = torch.arange(length // block + sequences, device=own.device)
    sequence = torch.searchsorted(ends, number, right=True).clamp_max(sequences - 1)
    first = torch.where(sequence > 0, ends[sequence - 1], 0)
    columns = ((number - first) * block, own[sequence], lengths[sequence], other[sequence], other.diff()[sequence])
    return torch.stack(columns, dim=1).to(torch.int32), number.numel()


def _width(query: Tensor) -> int:
    """The width of a head in the kernels: a power of two, and wide enough for a product."""
    return max(16, triton.next_power_of_2(query.shape[-1]))


def _rows_contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _empty_like(tensor: Tensor, zeros: bool) -> Tensor:
    """Uninitialised, (batch, rows, heads, head_dim) in memory; zeros where packed sequences may leave rows untouched."""
    batch, heads, rows, head_dim = tensor.shape
    create = torch.zeros if zeros else torch.empty
    return create(batch, rows, heads, head_dim, dtype=tensor.dtype, device=tensor.device).transpose(1, 2)


def _new_rows(query: Tensor, zeros: bool) -> Tensor:
    create = torch.zeros if zeros else torch.empty
    return create(query.shape[:3], dtype=torch.float32, device=query.device)


def _given(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else "given"
