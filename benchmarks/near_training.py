"""How many test sentences are almost in the training text, and what a model of models/ scores on these and on the
others.

    python -m benchmarks.tatoeba_split                                             # data/tatoeba → runs/tatoeba
    python -m benchmarks.near_training models/tatoeba-de-en models/tatoeba-en-de   # about a minute each

A test sentence is near where a training sentence is the same but for one word at most, which may be another, missing,
or one more. Case and white space make no difference, and punctuation belongs to its word. Writes `near_training` of a
folder's figures.json, and the section of its card.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from reluformer.training.data.corpus import load_split
from reluformer.training.scoring.metrics import score_translations
from reluformer.translating.translation import Translator

Words = tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    from benchmarks import ship  # which measures a new model by this file

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="models/NAME")
    for folder in parser.parse_args(arguments).folders:
        data = ship.data_of(folder)
        train, test = (load_split(data, split)[0] for split in ("train", "test"))
        translate = Translator.from_pretrained(folder, device="cpu", split="none")
        pairs = list(test["source"]), list(test["target"])
        figure = measure(translate(pairs[0]), pairs, train["source"])
        ship.renew_figure(folder, "near_training", figure)
        print(folder, figure)
    return 0


def measure(translations: Sequence[str], test: tuple[list[str], list[str]], training: Iterable[str]) -> dict[str, Any]:
    """Counts, and BLEU on the test sentences that are near and on the others.

    translations: of the test sources. test: sources and references. training: sources.
    """
    sources, references = test
    near = near_ones(sources, training)
    figure: dict[str, Any] = {"sentences": len(sources), "near": len(near)}
    for name, is_near in (("near", True), ("others", False)):
        rows = [index for index in range(len(sources)) if (index in near) == is_near]
        scores = score_translations([translations[row] for row in rows], [references[row] for row in rows])
        figure |= {f"bleu_{name}": scores["bleu"], "bleu_signature": scores["bleu_signature"]}
    return figure


def near_ones(test: Sequence[str], training: Iterable[str]) -> set[int]:
    """The numbers of the test sentences that are those of the training text but for one word at most."""
    rows: dict[Words, set[int]] = {}
    one_less: dict[Words, set[int]] = {}
    one_other: dict[tuple[Words, Words], set[int]] = {}
    for row, sentence in enumerate(test):
        words = _words(sentence)
        rows.setdefault(words, set()).add(row)
        for before, after in _without_one(words):
            one_less.setdefault(before + after, set()).add(row)
            one_other.setdefault((before, after), set()).add(row)
    near: set[int] = set()
    for words in set(map(_words, training)):
        near |= rows.get(words, set()) | one_less.get(words, set())
        for before, after in _without_one(words):
            near |= one_other.get((before, after), set()) | rows.get(before + after, set())
    return near


def _words(sentence: str) -> Words:
    return tuple(sentence.casefold().split())


def _without_one(words: Words) -> Iterator[tuple[Words, Words]]:
    """What stands before and after each word."""
    return ((words[:at], words[at + 1 :]) for at in range(len(words)))


if __name__ == "__main__":
    sys.exit(main())
