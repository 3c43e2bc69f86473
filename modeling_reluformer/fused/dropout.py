"""Which weights dropout keeps: a hash of the seed and of a weight's place, so that no mask is stored.

However a problem is cut into blocks, and in both passes, the mask is the same. The compiled loop computes the same one.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GOLDEN_64, _FIRST_64, _SECOND_64 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_GOLDEN_32, _FIRST_32, _SECOND_32 = 0x9E3779B9, 0x21F0AAAD, 0x735A2D97


def dropout_mask(
    weights: Tensor, probability: float, seed: int, *, key_heads: int, sequence: int = 0, first_query: int = 0
) -> Tensor:
    """0 or 1 / (1 - probability), like `weights`.

    Args:
        weights: (batch, heads, queries, keys), some queries of a sequence and its keys from the first on.
        probability: of 0, in [0, 1).
        seed: of the whole call.
        key_heads: heads of keys; `weights` has a multiple of them.
        sequence: which of several that are packed into one batch.
        first_query: how many queries of the sequence come before.
    """
    batch, heads, queries, keys = weights.shape
    numbers = [torch.arange(size, device=weights.device) for size in (batch, heads, queries)]
    span = numbers[0].view(-1, 1, 1) + sequence
    head = numbers[1].view(1, -1, 1)
    state = torch.full((), _signed(seed + _GOLDEN_64, 64), device=weights.device)
    state = _mix(state)
    for part in (span * key_heads + head // (heads // key_heads), head, numbers[2] + first_query):
        state = _mix(state ^ (part + _signed(_GOLDEN_64, 64)))
    hashed = (state >> 32).to(torch.int32).unsqueeze(-1)
    columns = torch.arange(1, keys + 1, dtype=torch.int32, device=weights.device) * _signed(_GOLDEN_32, 32)
    hashed = columns ^ hashed
    for shift, factor in ((16, _FIRST_32), (15, _SECOND_32)):
        hashed = hashed.bitwise_xor_(_shifted(hashed, shift)).mul_(_signed(factor, 32))
    hashed.bitwise_xor_(_shifted(hashed, 15))
    threshold = min(int(probability * 2**32), 2**32 - 1)
    # unsigned comparison of signed numbers
    kept = (hashed ^ -(2**31)) >= _signed(threshold ^ 2**31, 32)
    return kept.to(weights.dtype).div_(1.0 - probability)


def _mix(state: Tensor) -> Tensor:
    for shift, factor in ((30, _FIRST_64), (27, _SECOND_64)):
        state = (state ^ ((state >> shift) & (2 ** (64 - shift) - 1))) * _signed(factor, 64)
    return state ^ ((state >> 31) & (2**33 - 1))


def _shifted(values: Tensor, bits: int) -> Tensor:
    """A logical shift to the right of int32."""
    return (values >> bits).bitwise_and_(2 ** (32 - bits) - 1)


def _signed(value: int, bits: int) -> int:
    """The number of two's complement with the same bits."""
    value %= 2**bits
    return value - 2**bits if value >= 2 ** (bits - 1) else value
