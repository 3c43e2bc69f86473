"""gamma by the length: what `gamma="auto"` becomes."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from ..configuration_reluformer import DEFAULT_GAMMA

# Tokens of an input. Measured were sentences of about 15 tokens, and documents of at most 128, 512 and 1,024.
SHORTEST, LONGEST = 8, 1024
RULE = "max(8, sqrt(2 * length))"


def gamma_for_length(length: Any) -> float:
    """gamma = max(8, sqrt(2 · length)), to two digits behind the point.

    Source: the map of gamma in docs/reproduction.md ("gamma, lambda and the length"). On sentences of about 15 tokens 8 is the
    smallest gamma that learns as fast as the best. On documents of about 450, 16, 32 and 64 are level; sqrt(2 · 450) is 30.
    Between them, gamma sqrt(length / 2) = length, as in the recipes for documents of 128 to 1,024 tokens. Measured in translation
    models of one size; which gamma is best elsewhere was not.

    Args:
        length: tokens of a usual input, special ones included; not the longest that a model takes.

    Raises:
        ValueError: no number, or a length outside of what was measured.
    """
    if isinstance(length, bool) or not isinstance(length, Real):  # a median may be of NumPy
        raise ValueError(
            f"gamma='auto' needs the length of a usual input in tokens, a number; got length={length!r}. Give "
            "use_relu_attention(model, gamma='auto', length=…): the median of your training inputs, or the number of patches "
            "of an image. The longest input that a config allows says nothing of the usual one."
        )
    if not SHORTEST <= length <= LONGEST:
        raise ValueError(
            f"gamma='auto': length={length} is outside of what was measured, {SHORTEST} to {LONGEST:,} tokens. Give a number "
            "as gamma, and compare a few: half and double of what you begin with."
        )
    return round(max(DEFAULT_GAMMA, math.sqrt(2 * length)), 2)


def gamma_source(length: float) -> str:
    """What the config says of such a gamma."""
    return f"auto: {RULE}, length {length:g}"
