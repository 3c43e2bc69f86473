"""Cuts a test split out of Tatoeba's training pairs: no sentence of it, of either language, is left in training.

    python -m benchmarks.text.tatoeba_split          # data/tatoeba → runs/tatoeba, in seconds

The corpus comes with a validation split alone. The pairs are drawn by a fixed seed, so that every machine tests on the same ones.
"""

from __future__ import annotations

import argparse
import gzip
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from reluformer.configuration.errors import UserError
from reluformer.training.data.compressed import content_lines

SEED = 1
PAIRS = 2_000
LANGUAGES = ("de", "en")
Pair = tuple[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path("data/tatoeba"), help="default: data/tatoeba")
    parser.add_argument("--output", type=Path, default=Path("runs/tatoeba"), help="default: runs/tatoeba")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"of the test split (default: {PAIRS:,})")
    options = parser.parse_args(arguments)
    pairs = list(zip(*(_read(options.corpus / f"train.{language}.gz") for language in LANGUAGES), strict=True))
    train, test = split(pairs, options.pairs)
    options.output.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", train), ("test", test)):
        for side, language in enumerate(LANGUAGES):
            _write(options.output / f"{name}.{language}.gz", [pair[side] for pair in part])
    left_out = len(pairs) - len(train) - len(test)
    print(
        f"{options.output}: {len(train):,} pairs to train, {len(test):,} to test; {left_out:,} shared a sentence with these"
    )
    return 0


def split(pairs: Sequence[Pair], count: int, seed: int = SEED) -> tuple[list[Pair], list[Pair]]:
    """The pairs to train on, in their order, and `count` to test; case makes no difference between two sentences.

    Raises:
        UserError: there are too few pairs.
    """
    test: list[Pair] = []
    seen: set[str] = set()
    for pair in random.Random(seed).sample(pairs, len(pairs)):
        keys = {sentence.casefold() for sentence in pair}
        if len(test) < count and not keys & seen:
            test.append(pair)
            seen |= keys
    if len(test) < count or len(pairs) < 2 * count:
        raise UserError(
            f"a test split of {count:,} pairs needs at least {2 * count:,} different ones; there are {len(pairs):,}"
        )
    return [pair for pair in pairs if not {sentence.casefold() for sentence in pair} & seen], test


def _read(path: Path) -> list[str]:
    if not path.is_file():
        raise UserError(f"'{path}' is not there; it is one side of the corpus, a sentence a line (https://tatoeba.org)")
    return [line.decode().rstrip("\n") for line in content_lines(path)]


def _write(path: Path, lines: Sequence[str]) -> None:
    # without a time and a name, which would make the same pairs another file
    with path.open("wb") as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as stream:
        stream.write("".join(f"{line}\n" for line in lines).encode())


if __name__ == "__main__":
    from reluformer.commands.main import exit_status

    sys.exit(exit_status(main))
