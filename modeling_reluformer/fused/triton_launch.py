"""Point-wise attention on CUDA: launches the Triton kernels. Validation of shapes and autograd are elsewhere.

It takes float16, bfloat16 and float32, and sums in float32. The backward pass recomputes the scores and sums in a fixed
order, so it repeats to the bit. float32 products follow `torch.set_float32_matmul_precision`: IEEE float32 at
"highest", else TF32.

The tile sizes of `TILES` were chosen by what the compiler reports: they fit the shared memory of every GPU from Ampere
on and spill few registers, if any. Those of `HOPPER` were measured.
"""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .activations import ACTIVATIONS
from .blockwise import empty_like_heads
from .specification import Specification

try:
    import triton

    from .triton_kernels import forward_kernel, key_value_gradient_kernel, query_gradient_kernel
except ImportError:  # CPU, macOS, Windows: `_check` says how to install it
    triton = None

MAX_HEAD_DIM = 256


class Tiles(NamedTuple):
    """Queries and keys of a tile, warps of a program, and how many tiles are loaded ahead."""

    queries: int
    keys: int
    warps: int
    stages: int


# By kernel, bytes of an element and width of a head. 4-byte products may not use tensor cores; their tiles live in
# registers.
TILES = {
    "forward": {
        2: {64: Tiles(128, 64, 8, 3), 128: Tiles(128, 64, 8, 2), 256: Tiles(64, 32, 4, 2)},
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
# Of 16-bit elements where a program may have 227 KiB of shared memory: by sweeps on an H100, first without statistics
# and dropout, then with what makes a kernel compute more. `python -m benchmarks.gpu tune` repeats them.
HOPPER = {
    "forward": {64: (Tiles(128, 64, 4, 3), Tiles(128, 64, 8, 3)), 128: (Tiles(128, 64, 8, 3), Tiles(128, 128, 8, 3))},
    "query_gradient": {64: (Tiles(128, 64, 8, 3), Tiles(64, 64, 4, 3)), 128: (Tiles(128, 64, 8, 3),) * 2},
    "key_value_gradient": {64: (Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2)), 128: (Tiles(64, 128, 8, 3),) * 2},
}


def tile_sizes(kernel: str, query: Tensor, statistics: bool = False, dropout: bool = False) -> Tiles:
    """The tiles of a kernel, smaller for few queries, as in decoding."""
    width = max(64, triton.next_power_of_2(query.shape[-1]))
    tiles = TILES[kernel][query.element_size()][width]
    if query.element_size() == 2 and width <= 128 and _has_much_shared_memory(query.device):
        more = dropout or (statistics and kernel != "forward")  # in which tensor cores compute S
        tiles = HOPPER[kernel][width][more]
    return tiles._replace(queries=min(tiles.queries, max(16, triton.next_power_of_2(max(1, query.shape[2])))))


@functools.cache
def _has_much_shared_memory(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in (9, 10)


def triton_forward(
    query: Tensor, key: Tensor, value: Tensor, specification: Specification
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Output, S and T as `blockwise_forward` gives them; dropout is drawn to 1/65,536. Rows of no sequence are 0.

    Raises:
        ImportError: Triton is not installed.
        TypeError: float64.
        ValueError: a head_dim above 256, or values of another width.
    """
    query, key, value = (_rows_contiguous(tensor) for tensor in (query, key, value))
    plan, arguments = _plan(query, key, value, specification)
    output = _blank(empty_like_heads(query), specification)
    rows = (query.new_empty(query.shape[:3], dtype=torch.float32) for _ in range(specification.statistics_count))
    row_sum, row_sum_log = (*(_blank(each, specification) for each in rows), None, None)[:2]
    arguments |= {"output": output, "row_sum": row_sum, "row_sum_log": row_sum_log}
    _launch("forward", forward_kernel, plan, specification, None, **arguments)
    return output, row_sum, row_sum_log


def triton_backward(
    grad_output: Tensor,
    grad_sum: Tensor | None,
    grad_sum_log: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    specification: Specification,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value as `blockwise_backward` gives them. grad_output: any strides, 0 too."""
    grad_output = grad_output.to(query.dtype)
    query, key, value, grad_output = (_rows_contiguous(tensor) for tensor in (query, key, value, grad_output))
    grad_sum, grad_sum_log = (
        None if gradient is None else gradient.contiguous() for gradient in (grad_sum, grad_sum_log)
    )
    plan, arguments = _plan(query, key, value, specification)
    grad_query, grad_key, grad_value = (
        _blank(empty_like_heads(tensor), specification) for tensor in (query, key, value)
    )
    # what the second kernel leaves for the third, see there
    plain = specification.row_scale is None and specification.dropout_p == 0
    arguments["scaled_gradient"] = None if plain else torch.empty_like(grad_query)
    arguments["scaled_gain"], arguments["scaled_log_gain"] = (
        None if gradient is None else torch.empty_like(gradient) for gradient in (grad_sum, grad_sum_log)
    )
    arguments |= {"grad_output": grad_output, "grad_sum": grad_sum, "grad_sum_log": grad_sum_log}
    arguments |= {"grad_query": grad_query, "grad_key": grad_key, "grad_value": grad_value}
    form = grad_output.stride()
    _launch("query_gradient", query_gradient_kernel, plan, specification, form, **arguments)
    if plain:
        arguments["scaled_gradient"] = grad_output
    _launch("key_value_gradient", key_value_gradient_kernel, plan, specification, form, **arguments)
    return grad_query, grad_key, grad_value


def _check(dtype: torch.dtype, head_dim: int, value_dim: int) -> None:
    instead = "or use attn_implementation='eager'."
    if triton is None:
        raise ImportError(f"Fused attention on CUDA tensors needs Triton: pip install triton (Linux), {instead}")
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise TypeError(
            f"Fused attention on CUDA tensors takes float16, bfloat16 or float32, not {dtype}; cast it, {instead}"
        )
    if not 1 <= head_dim <= MAX_HEAD_DIM or value_dim != head_dim:
        raise ValueError(
            f"Fused attention on CUDA tensors takes heads of 1 to {MAX_HEAD_DIM}, of queries and values alike, not "
            f"{head_dim} and {value_dim}; use more heads or pad them, {instead}"
        )


class _Plan(NamedTuple):
    """What calls of one form share.

    arguments: of the kernels, those that are no tensors.
    launches: by kernel and strides that the plan does not know.
    """

    arguments: dict[str, Any]
    launches: dict[Any, _Launch]


class _Launch(NamedTuple):
    """What the launches of a kernel share, worked out once: a small attention takes less time than that.

    rows: batch × heads, and tokens, of the blocks that its programs compute. arguments: of the kernel in its order,
    None where a call puts its own. per_call: their indices and names. kernels: by the alignment of the tensors;
    called without Triton's look at every argument.
    """

    sizes: Tiles
    block: int
    rows: tuple[int, int]
    arguments: list[Any]
    per_call: list[tuple[int, str]]
    kernels: dict[Any, Any]


def _plan(query: Tensor, key: Tensor, value: Tensor, specification: Specification) -> tuple[_Plan, dict[str, Any]]:
    """The plan of a call, and the tensors that the kernels are given; a kernel takes those that it names."""
    mask, seed, offset = specification.key_padding_mask, specification.seed, specification.keys_before
    if isinstance(offset, int):
        offset = max(-(2**30), min(offset, 2**30))  # as in the kernels, whose argument is an int32
    if mask is not None and mask.stride(-1) != 1:
        mask = mask.contiguous()
    tensors = query, key, value, specification.row_scale, mask
    forms = tuple(None if item is None else (item.shape, item.stride(), item.dtype) for item in tensors)
    seed_at = seed if seed is not None and _is_on_device(seed) else None
    rest = specification.cu_seqlens_q is not None, getattr(offset, "dtype", int), seed_at is None, query.device
    options = specification.activation, specification.scale, specification.causal, specification.window
    tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
    plan = _plan_of(forms, rest, (tf32, specification.statistics_count, *options, specification.dropout_p))
    arguments = {"query": query, "key": key, "value": value, "row_scale": tensors[3], "key_padding_mask": mask}
    seed = 0 if seed is None or seed_at is not None else int(seed)
    return plan, arguments | {"query_offset": offset, "seed": seed, "seed_at": seed_at}


def _is_on_device(seed: Tensor) -> bool:
    return seed.device.type != "cpu"


@functools.lru_cache(maxsize=512)
def _plan_of(forms: tuple[Any, ...], rest: tuple[Any, ...], options: tuple[Any, ...]) -> _Plan:
    """forms: shape, strides and dtype of query, key, value, row scale and mask, or None. rest: what
    else the compiled kernel depends on."""
    tf32, level, activation, scale, causal, window, dropout_p = options
    (shape, strides, dtype), (key_shape, key_strides, _), (value_shape, value_strides, _), row_scale, mask = forms
    _check(dtype, shape[-1], value_shape[-1])
    function = ACTIVATIONS[activation]
    threshold = min(round(dropout_p * 2**16), 2**16 - 1)
    arguments = {
        "query_strides": strides[:3],
        "key_strides": key_strides[:3],
        "value_strides": value_strides[:3],
        # one scale for all heads: the same row for each of them
        "row_scale_strides": row_scale and tuple(0 if n == 1 else step for n, step in zip(*row_scale[:2], strict=True)),
        "padding_stride": mask and mask[1][0],
        "heads": shape[1],
        "group": shape[1] // max(1, key_shape[1]),
        "queries": shape[2],
        "keys": key_shape[2],
        "window": None if window is None else min(window, 2**30),  # beyond the end of every sequence
        "scale": float(scale),
        "threshold": threshold,
        "inverse": 1.0 / (1.0 - threshold / 2**16),
        "ACTIVATION": activation,
        "CLOSED_AT_ZERO": function.closed_at_zero,
        "MASK_WEIGHTS": not function.zero_at_zero,
        # float16 would overflow for scores that are 1/c times larger
        "FOLD_SCALE": function.homogeneous and scale > 0 and dtype != torch.float16,
        "STATISTICS": level,
        "CAUSAL": causal,
        "DROPOUT": dropout_p > 0,
        "PRECISION": "tf32" if tf32 else "ieee",
        "HEAD_DIM": shape[-1],
        "DIM": max(16, triton.next_power_of_2(shape[-1])),
    }
    return _Plan(arguments, {})


def _launch(name: str, kernel: Any, plan: _Plan, specification: Specification, form: Any, /, **arguments: Any) -> None:
    """One program for each block of queries, in the last kernel of keys. form: strides that the plan does not know.

    The arguments that a kernel names are taken from `arguments` and the plan; strides that stand in neither, from their
    tensor.
    """
    ends = specification.cu_seqlens_q, specification.cu_seqlens_k
    launch = plan.launches.get((name, form))
    if launch is None:
        launch = plan.launches[name, form] = _prepared(name, kernel, plan, ends[0] is not None, arguments)
    heads, length = launch.rows
    ends = ends[::-1] if name == "key_value_gradient" else ends
    arguments["tiles"], arguments["tile_count"] = _tile_table(*ends, launch.block, length)
    programs = heads * arguments["tile_count"]
    if programs > 0:
        values = launch.arguments.copy()
        for index, its_name in launch.per_call:
            values[index] = arguments[its_name]
        # the alignment that Triton compiles for
        aligned = tuple([item.data_ptr() % 16 == 0 for item in arguments.values() if isinstance(item, Tensor)])
        _start(kernel, programs, launch, aligned, values, arguments["query"].device)


def _prepared(name: str, kernel: Any, plan: _Plan, packed: bool, arguments: dict[str, Any]) -> _Launch:
    sizes = tile_sizes(name, arguments["query"], plan.arguments["STATISTICS"] > 0, plan.arguments["DROPOUT"])
    rows, block, looped, step = arguments["query"], sizes.queries, "keys", sizes.keys
    if name == "key_value_gradient":
        rows, block, looped, step = arguments["key"], sizes.keys, "queries", sizes.queries
    known = plan.arguments | {"BLOCK_Q": sizes.queries, "BLOCK_K": sizes.keys}
    known["EVEN"] = not packed and known[looped] % step == 0
    of_call = {*arguments, "tiles", "tile_count"}
    for missing in (each for each in kernel.arg_names if each not in of_call and each not in known):
        known[missing] = arguments[missing.removesuffix("_strides")].stride()[:3]
    per_call = [(index, each) for index, each in enumerate(kernel.arg_names) if each in of_call]
    count = rows.shape[0] * rows.shape[1]
    return _Launch(sizes, block, (count, rows.shape[2]), [known.get(each) for each in kernel.arg_names], per_call, {})


def _start(
    kernel: Any, programs: int, launch: _Launch, aligned: tuple[bool, ...], values: list[Any], device: torch.device
) -> None:
    elsewhere = device.type == "cuda" and device.index != torch.cuda.current_device()
    with torch.cuda.device(device) if elsewhere else nullcontext():
        if (known := launch.kernels.get(aligned)) is not None:
            known[(programs, 1, 1)](*values)
        else:
            options = {"num_warps": launch.sizes.warps, "num_stages": launch.sizes.stages}
            launch.kernels[aligned] = kernel[(programs,)](*values, **options)


def _tile_table(own: Tensor | None, other: Tensor | None, block: int, length: int) -> tuple[Tensor | None, int]:
    """The table for `triton_kernels.locate` and its length, without asking the device how long the sequences are.

    Every sequence may end in a part of a tile, so there are at most length // block + sequences tiles; the entries
    beyond those that exist start past the end of the last sequence, and their programs stop at once.
    """
    if own is None:
        return None, -(-length // block)
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


def _rows_contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _blank(made: Tensor, specification: Specification) -> Tensor:
    return made if specification.cu_seqlens_q is None else made.zero_()  # packed sequences may leave rows untouched
