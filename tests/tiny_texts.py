"""Small texts with a rule that a model learns in seconds."""

from __future__ import annotations

import numpy as np

WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")


def text(seed: int, lines: int = 12) -> str:
    """Lines in which each word follows from the one before it, with an umlaut and what looks like a special token."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(lines):
        start = int(rng.integers(0, len(WORDS)))
        made.append(" ".join(WORDS[(start + step) % len(WORDS)] for step in range(8)))
    return "\n".join([*made, "über <|endoftext|> Öl", ""])
