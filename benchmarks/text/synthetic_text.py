"""A parallel text of any size that looks like text to a tokenizer: words by Zipf's law, sentence lengths like those of news."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm.auto import tqdm

CHUNK_PAIRS = 50_000
LONGEST = 100  # words
SYLLABLES = 80
SIDES = ("source", "target")


def write_parallel_text(folder: Path, *, pairs: int, words: int, seed: int) -> dict[str, Any]:
    """Writes `train.source` and `train.target` into `folder`.

    The number of words of a source is log-normal (median 20), that of its target differs by some 15 %. The word of rank r comes
    with a probability of about 1/r; its syllables are the digits of r, so that frequent words are short. No pair means
    anything, and none is empty.

    Args:
        folder: an existing one.
        pairs: lines of each file.
        words: different words of each language.
        seed: of everything.

    Returns:
        What was written: `pairs`, `different_words`, and `words` and `bytes` by side.
    """
    generator = np.random.default_rng(seed)
    vocabularies = {side: _vocabulary(words, generator) for side in SIDES}
    counts = dict.fromkeys(SIDES, 0)
    paths = {side: folder / f"train.{side}" for side in SIDES}
    files = {side: path.open("w", encoding="utf-8", newline="\n") for side, path in paths.items()}
    try:
        with tqdm(total=pairs, desc="writing synthetic text", unit=" pairs", delay=2) as bar:
            for first in range(0, pairs, CHUNK_PAIRS):
                size = min(CHUNK_PAIRS, pairs - first)
                source = generator.lognormal(math.log(20), 0.6, size)
                lengths = {"source": source, "target": source * generator.lognormal(0, 0.15, size)}
                for side in SIDES:
                    drawn = np.clip(lengths[side], 1, LONGEST).astype(np.int32)
                    counts[side] += int(drawn.sum())
                    files[side].writelines(_lines(drawn, vocabularies[side], generator))
                bar.update(size)
    finally:
        for file in files.values():
            file.close()
    sizes = {side: path.stat().st_size for side, path in paths.items()}
    return {"pairs": pairs, "different_words": words, "words": counts, "bytes": sizes}


def _lines(lengths: np.ndarray, vocabulary: pa.Array, generator: np.random.Generator) -> list[str]:
    # (V + 1)^u of a uniform u has the density 1 / (r log(V + 1)).
    ranks = np.exp(generator.random(int(lengths.sum())) * math.log(len(vocabulary) + 1)).astype(np.int64) - 1
    words = vocabulary.take(pa.array(np.minimum(ranks, len(vocabulary) - 1)))
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    return [f"{line}.\n" for line in pc.binary_join(pa.ListArray.from_arrays(offsets, words), " ").to_pylist()]


def _vocabulary(words: int, generator: np.random.Generator) -> pa.Array:
    """Different words, the most frequent first."""
    syllables = [a + b + c for a in "bdfghjklmnprstvwz" for b in "aeiouy" for c in ("", "n", "r", "s", "l")]
    own = generator.permutation(syllables)[:SYLLABLES].tolist()

    def word(rank: int) -> str:
        parts, rest = [], rank + 1
        while rest > 0:
            rest, digit = divmod(rest - 1, SYLLABLES)
            parts.append(own[digit])
        return "".join(parts)

    return pa.array([word(rank) for rank in range(words)])
