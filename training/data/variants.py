"""Variants of training pairs, as people write: in one case, without a full stop, several sentences at once, with ae for
ä.

A model that has seen none of these translates them badly: it knows "Wo ist der Bahnhof?" and not "wo ist der bahnhof".
The source is changed, and the target is not, so that the translation of any of them is well written.
"""

from __future__ import annotations

from collections.abc import Iterator

import datasets
import numpy as np

from reluformer.configuration.recipe import VariantsConfig
from reluformer.training.data.corpus import CorpusReport

# Part of the key of the cache: raise it where the same settings give other pairs than before.
VARIANTS_VERSION = 2
_FEATURES = datasets.Features({name: datasets.Value("string") for name in ("source", "target")})
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "ß": "ss"})
_TYPOGRAPHIC = str.maketrans({"'": "’"})
_PLAIN = str.maketrans({"’": "'", "‘": "'", "‚": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"'})
_ENDS = ".!?…"
_BLOCK = 10_000  # rows that are read at once, of which texts are joined
# What `foreign` draws from: scripts by their first and last letter, and pictures.
_SCRIPTS = (
    ("α", "ω"),
    ("а", "я"),
    ("א", "ת"),
    ("ا", "ي"),
    ("अ", "ह"),
    ("ぁ", "ん"),
    ("一", "龥"),
    ("가", "힣"),
    ("😀", "🙏"),
)


def with_variants(pairs: datasets.Dataset, variants: VariantsConfig) -> tuple[datasets.Dataset, CorpusReport]:
    """The pairs `variants.passes` times, columns "source" and "target", each time with variants drawn anew; and their
    report."""
    options = {"pairs": pairs, "variants": variants, "version": VARIANTS_VERSION}
    varied = datasets.Dataset.from_generator(_varied_rows, features=_FEATURES, gen_kwargs=options)
    name = f"train, {variants.passes} passes with variants"
    return varied, CorpusReport(name, read=len(varied), kept=len(varied))


def _varied_rows(pairs: datasets.Dataset, variants: VariantsConfig, version: int) -> Iterator[dict[str, str]]:
    """All passes. `version` is part of the cache's key alone."""
    for number in range(variants.passes):
        generator = np.random.default_rng([variants.seed, number])
        for start in range(0, len(pairs), _BLOCK):
            block = pairs[start : start + _BLOCK]
            rows = list(zip(block["source"], block["target"], strict=True))
            for row in rows:
                sources, targets = zip(row, *_joined(rows, variants, generator), strict=True)
                yield vary(" ".join(sources), " ".join(targets), variants, generator)


def _joined(
    rows: list[tuple[str, str]], variants: VariantsConfig, generator: np.random.Generator
) -> list[tuple[str, str]]:
    """The pairs that follow in one text: mostly none, else one to three."""
    if generator.random() >= variants.joined:
        return []
    return [rows[index] for index in generator.integers(len(rows), size=generator.integers(1, 4))]


def vary(source: str, target: str, variants: VariantsConfig, generator: np.random.Generator) -> dict[str, str]:
    """One pair as the variants have it; what is drawn for one of them is independent of the others, but for the two
    cases."""
    kind = generator.random()
    if kind < variants.foreign:
        text = foreign_text(generator)
        return {"source": text, "target": text}
    if kind < variants.foreign + variants.untranslated:
        return {"source": target, "target": target}
    punctuation, umlauts, quotes, case = generator.random(4)
    if punctuation < variants.no_punctuation:
        source = source.rstrip(_ENDS).rstrip() or source
    if umlauts < variants.umlauts:
        source = source.translate(_UMLAUTS)
    if quotes < variants.quotes:
        source = typographic_quotes(source) if generator.random() < 0.5 else source.translate(_PLAIN)
    if case < variants.lower:
        source = source.lower()
    elif case < variants.lower + variants.upper:
        source = source.upper()
    return {"source": source, "target": target}


def typographic_quotes(text: str) -> str:
    """`"…"` as „…“ or “…”, which differ by language, in the form that most books of German have; `'` as ’."""
    opened = False
    characters = []
    for character in text.translate(_TYPOGRAPHIC):
        if character == '"':
            opened = not opened
            character = "„" if opened else "“"
        characters.append(character)
    return "".join(characters)


def foreign_text(generator: np.random.Generator) -> str:
    """One to three words of one to six characters of a script that the corpus does not have, or of pictures."""
    first, last = map(ord, _SCRIPTS[generator.integers(len(_SCRIPTS))])
    words = [
        "".join(map(chr, generator.integers(first, last + 1, size=generator.integers(1, 7))))
        for _ in range(generator.integers(1, 4))
    ]
    return " ".join(words)
