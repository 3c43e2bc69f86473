"""The demo corpus: German number, ordinal, year and amount words with their English translations, by `num2words`.

A real reordering task in small ("einundzwanzig" is "twenty-one") that needs no download and has one right answer.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from decimal import Decimal
from functools import cache

import datasets
import numpy as np
from num2words import num2words
from tqdm.auto import tqdm

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import SPLITS

KINDS = {"number": 0.3, "ordinal": 0.3, "amount": 0.3, "year": 0.1}  # with their shares: there are only 900 years
# Below one million: num2words writes German ordinals beyond it against the rules ("eine million erste").
NUMBER_LIMIT = 1_000_000
# Years whose German form ("neunzehnhundert…") is no other kind's: "zweitausendzehn" alone would be both "two thousand
# and ten" and "twenty ten".
FIRST_YEAR, LAST_YEAR = 1100, 1999
# Words of their own, not made of others: up to one hundred, and one thousand. A model cannot know a word it never saw.
BASIC_NUMBERS = frozenset((*range(1, 101), 1000))
HELD_OUT_LIMIT = 20_000
DRAW_BLOCK = 4096


def demo_pairs(count: int, *, split: str, seed: int) -> datasets.Dataset:
    """`count` lower-case pairs, columns "source" (German) and "target" (English); the same for the same arguments.

    Numbers are log-uniform from 1 to 999,999, so that lengths are mixed. A number, with all its kinds, belongs to one
    split whatever the seed: 90 % to "train", 5 % each to "validation" and "test"; the basic number words to "train".
    The cents of an amount are such words and occur in every split. Training pairs may repeat; those of the other two
    are all different.

    Raises `UserError`: a count below 1, more than 20,000 pairs of a held-out split.
    """
    limit = math.inf if split == "train" else HELD_OUT_LIMIT
    if not 1 <= count <= limit:
        raise UserError(f"demo corpus: {count} pairs of split {split!r} asked for; expected 1 to {limit}")
    generator = np.random.default_rng([seed, SPLITS.index(split)])
    pairs: list[tuple[str, str]] = []
    seen: set[tuple[str, int, int]] = set()
    with tqdm(total=count, desc=f"demo corpus {split}", unit=" pairs", delay=2, disable=None) as progress:
        for item in _draws(generator):
            if split_of_number(item[1]) != split or (split != "train" and item in seen):
                continue
            seen.add(item)
            pairs.append(_words(*item))
            progress.update()
            if len(pairs) == count:
                break
    sources, targets = zip(*pairs, strict=True)
    return datasets.Dataset.from_dict({"source": list(sources), "target": list(targets)})


def split_of_number(number: int) -> str:
    """The one split in which `number` may occur, fixed for all seeds."""
    if number in BASIC_NUMBERS:
        return "train"
    bucket = hashlib.blake2b(str(number).encode(), digest_size=1).digest()[0]
    if bucket < 13:
        return "test"
    return "validation" if bucket < 26 else "train"


def _draws(generator: np.random.Generator) -> Iterator[tuple[str, int, int]]:
    """Without end: a kind, its number and its cents (0 but for an amount)."""
    while True:
        kinds = generator.choice(list(KINDS), size=DRAW_BLOCK, p=list(KINDS.values()))
        numbers = np.exp(generator.uniform(0, math.log(NUMBER_LIMIT), size=DRAW_BLOCK)).astype(np.int64)
        years = generator.integers(FIRST_YEAR, LAST_YEAR, size=DRAW_BLOCK, endpoint=True)
        cents = generator.integers(1, 99, size=DRAW_BLOCK, endpoint=True)
        columns = (column.tolist() for column in (kinds, numbers, years, cents))
        for kind, number, year, cent in zip(*columns, strict=True):
            yield kind, year if kind == "year" else min(number, NUMBER_LIMIT - 1), cent if kind == "amount" else 0


@cache
def _words(kind: str, number: int, cents: int) -> tuple[str, str]:
    """The German and the English words, lower case."""
    if kind == "amount":
        # Decimal: num2words takes an integer for cents, and a binary fraction is not 0.01.
        value, arguments = Decimal(100 * number + cents) / 100, {"to": "currency", "currency": "EUR"}
    else:
        value, arguments = number, {"to": {"number": "cardinal"}.get(kind, kind)}
    german, english = (num2words(value, lang=language, **arguments).lower() for language in ("de", "en"))
    # num2words keeps the "s" of "eins" before "tausend": 101,000 is "einhunderteintausend".
    return german.replace("einstausend", "eintausend"), english
