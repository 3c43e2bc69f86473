"""Cuts a test split out of Tatoeba's training pairs: no sentence of it, of either language, is left in training.

    python -m benchmarks.tatoeba_split          # data/tatoeba → runs/tatoeba, in seconds

The corpus comes with a validation split alone. The pairs are drawn by a fixed seed, so that every machine tests on the
same ones.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from pathlib import Path

CORPUS, OUTPUT = Path("data/tatoeba"), Path("runs/tatoeba")
LANGUAGES, TEST_PAIRS = ("de", "en"), 2000
Pair = tuple[str, str]


def main() -> None:
    files = [CORPUS / f"train.{language}.gz" for language in LANGUAGES]
    sides = [gzip.decompress(file.read_bytes()).decode().removesuffix("\n").split("\n") for file in files]
    train, test = split(list(zip(*sides, strict=True)), TEST_PAIRS)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for name, pairs in (("train", train), ("test", test)):
        for language, lines in zip(LANGUAGES, zip(*pairs, strict=True), strict=True):
            text = "".join(f"{line}\n" for line in lines).encode()
            (OUTPUT / f"{name}.{language}.gz").write_bytes(gzip.compress(text, mtime=0))  # the same bytes again
    print(f"{OUTPUT}: {len(train):,} pairs to train, {len(test):,} to test")


def split(pairs: Sequence[Pair], count: int, seed: int = 1) -> tuple[list[Pair], list[Pair]]:
    """The pairs to train on, in their order, and `count` to test; case makes no difference between two sentences."""
    test: list[Pair] = []
    seen: set[str] = set()
    for pair in random.Random(seed).sample(pairs, len(pairs)):
        keys = {sentence.casefold() for sentence in pair}
        if len(test) < count and not keys & seen:
            test.append(pair)
            seen |= keys
    return [pair for pair in pairs if not {sentence.casefold() for sentence in pair} & seen], test


if __name__ == "__main__":
    main()
