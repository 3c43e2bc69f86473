"""Cuts a test split out of Tatoeba's training pairs: no sentence of it, of either language, is left in training.

    python -m benchmarks.tatoeba_split          # data/tatoeba → runs/tatoeba, in seconds

The corpus comes with a validation split alone. The pairs are drawn by a fixed seed, so that every machine tests on the same ones.
"""

from __future__ import annotations

import argparse
import gzip
import random
import sys
from collections.abc import Sequence
from pathlib import Path

LANGUAGES, TEST_PAIRS = ("de", "en"), 2000
Pair = tuple[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path("data/tatoeba"), help="default: data/tatoeba")
    parser.add_argument("--output", type=Path, default=Path("runs/tatoeba"), help="default: runs/tatoeba")
    options = parser.parse_args(arguments)
    sides = [
        gzip.decompress((options.corpus / f"train.{language}.gz").read_bytes()).decode().removesuffix("\n").split("\n")
        for language in LANGUAGES
    ]
    train, test = split(list(zip(*sides, strict=True)), TEST_PAIRS)
    options.output.mkdir(parents=True, exist_ok=True)
    for name, pairs in (("train", train), ("test", test)):
        for language, lines in zip(LANGUAGES, zip(*pairs, strict=True), strict=True):
            text = "".join(f"{line}\n" for line in lines).encode()
            (options.output / f"{name}.{language}.gz").write_bytes(gzip.compress(text, mtime=0))  # the same bytes again
    print(f"{options.output}: {len(train):,} pairs to train, {len(test):,} to test")
    return 0


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
    sys.exit(main())
