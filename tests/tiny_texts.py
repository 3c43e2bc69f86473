"""Small texts with a rule that a model learns in seconds."""

from __future__ import annotations

from pathlib import Path

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


def write_texts(folder: Path, count: int = 24) -> Path:
    """Text files in two folders, one of them empty, another one not UTF-8."""
    for number in range(count):
        path = folder / ("first" if number % 2 else "second") / f"{number:02}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(number), encoding="utf-8")
    (folder / "first" / "empty.txt").write_text("", encoding="utf-8")
    (folder / "first" / "latin1.txt").write_bytes("naïve".encode("latin-1"))
    (folder / "notes.md").write_text("not read", encoding="utf-8")
    return folder
