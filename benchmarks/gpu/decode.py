"""Few queries, as in decoding: by the kernel, or by plain products? What `_is_small` of fused/attention.py decides by.

Without gradients it takes the kernel on a GPU whatever the size, and with gradients plain products up to
`PLAIN_QUERIES` queries. Each cell times both for all queries and keys; `plain_queries` says up to how many queries
plain products win at every length.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks.gpu.campaign import CUDA, DEVICE, Cell, timed
from reluformer.modeling_reluformer.fused import attention
from reluformer.modeling_reluformer.fused.compiled_operator import compiled_operator
from reluformer.modeling_reluformer.fused.operator import operator_for
from reluformer.modeling_reluformer.fused.specification import Specification

QUERIES, KEYS = (1, 2, 4, 8, 16, 32, 64), (16, 64, 256, 1024)
HEADS, HEAD_DIM = 8, 64


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    batches, dtypes = ((1,), ("float32",)) if options.toy else ((1, 32, 160), ("bfloat16", "float32"))
    for dtype, gradients, batch in product(dtypes, (False, True), batches):
        yield Cell(
            {"batch": batch, "dtype": dtype, "gradients": gradients}, partial(measure, batch, dtype, gradients), 25
        )


def measure(batch: int, dtype: str, gradients: bool) -> dict[str, Any]:
    """Milliseconds by queries and keys, forward, or with gradients forward and backward."""
    times: dict[str, dict[str, dict[str, float]]] = {}
    for queries, keys in product(QUERIES if CUDA else (1, 16), KEYS if CUDA else (16,)):
        contenders = {name: step(name, batch, queries, keys, dtype, gradients) for name in ("kernel", "plain")}
        timing = timed(contenders, 0.005)
        row = {name: timing.summary(name)["median_ms"] for name in contenders}
        times.setdefault(str(queries), {})[str(keys)] = row
    plain_queries = 0
    for queries, by_keys in times.items():
        if any(row["plain"] >= row["kernel"] for row in by_keys.values()):
            break
        plain_queries = int(queries)
    return {"plain_queries": plain_queries, "ms": times}


def step(name: str, batch: int, queries: int, keys: int, dtype: str, gradients: bool) -> Any:
    """One call of the kernel or of plain products, with padding, as the models call them."""
    generator = torch.Generator(device=DEVICE).manual_seed(0)
    query, key, value = (
        torch.randn(batch, HEADS, length, HEAD_DIM, generator=generator, device=DEVICE).to(getattr(torch, dtype))
        for length in (queries, keys, keys)
    )
    leaves = [states.requires_grad_(gradients) for states in (query, key, value)]
    row_scale = torch.full((batch, 1, queries), 0.1, device=DEVICE)
    mask = torch.ones(batch, keys, dtype=torch.bool, device=DEVICE)
    specification = Specification(row_scale=row_scale, key_padding_mask=mask, scale=HEAD_DIM**-0.5)

    def forward() -> torch.Tensor:
        if name == "plain":
            return attention._plain(query, key, value, specification)[0]
        operator = compiled_operator(query, key, specification) or operator_for(query)
        return operator(query, key, value, *specification.arguments())[0]

    if not gradients:
        return torch.no_grad()(forward)
    return lambda: torch.autograd.grad(forward().sum(), leaves)
