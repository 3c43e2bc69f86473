"""What a model scores on text as people write it: in one case, without a full stop, several sentences in a line, ae for
ä.

    python -m benchmarks.robustness tatoeba-de-en                 # data/tatoeba, some minutes
    python -m benchmarks.robustness runs/mine --pairs 300

Translates the validation pairs of Tatoeba and their variants with five beams, and writes results/robustness-NAME.json.
A variant changes all sources and no reference. BLEU of lower-cased text, so that a model is not blamed for the case
that its source lacks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.markdown import table
from benchmarks.measurement_file import RESULTS
from reluformer.configuration.recipe import VariantsConfig
from reluformer.records.records import run_record, write_json
from reluformer.training.data.variants import foreign_text, vary
from reluformer.training.scoring.metrics import score_translations
from reluformer.translating.readers import text_lines
from reluformer.translating.translation import Translator

# What the sources are like, by the name of the share of `data.variants` that is 1.
VARIANTS = {
    "plain": "as they are",
    "lower": "in lower case",
    "upper": "in upper case",
    "no_punctuation": "without the full stop",
    "umlauts": "ae, oe, ue and ss for umlauts and ß, in German",
    "quotes": "other quotation marks",
}
WHOLE, SPLIT = "three in a line, as one text", "three in a line, by sentences"
WORDS = {
    **VARIANTS,
    WHOLE: "three sentences in a line, translated as one text",
    SPLIT: "three sentences in a line, split first (the default)",
}
_FOREIGN = 200  # texts in other scripts
_SCORES = ("bleu", "tokenized_lowercase_bleu", "chrf")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="name of a model of the package, or a folder")
    parser.add_argument("--corpus", type=Path, default=Path("data/tatoeba"), help="default: data/tatoeba")
    parser.add_argument("--pairs", type=int, default=2_000, help="of the validation split; default: all 2,000")
    parser.add_argument("--output", type=Path, default=RESULTS, help="default: benchmarks/results/")
    options = parser.parse_args(arguments)
    translator = Translator.from_pretrained(options.model, device="cpu", split="none")
    settings = translator.tokenizer.init_kwargs
    sources, references = (
        list(text_lines(options.corpus / f"val.{settings[name]}.gz"))[: options.pairs]
        for name in ("source_language", "target_language")
    )
    result = {
        **run_record(f"python -m benchmarks.robustness {options.model} --pairs {options.pairs}", None, 0),
        "decoding": translator.decoding,
        **measure(translator, sources, references),
    }
    path = write_json(options.output / f"robustness-{Path(options.model).name}.json", result)
    rows = [[name, *(f"{score[each]:.2f}" for each in _SCORES)] for name, score in result["scores"].items()]
    print(*table(("sources", "BLEU", "BLEU, lower-cased", "chrF"), rows), sep="\n")
    print(f"in other scripts: {json.dumps(result['foreign'])}", path, sep="\n")
    return 0


def measure(translator: Callable[..., list[str]], sources: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """The `pairs`, the `scores` of their variants, and what becomes of `foreign` texts."""
    return {
        "pairs": len(sources),
        "scores": scores_of_variants(translator, sources, references),
        "foreign": foreign_texts(translator),
    }


def scores_of_variants(
    translator: Callable[..., list[str]], sources: Sequence[str], references: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Scores by the name of the variant; of three sentences in a line, as one text and sentence by sentence."""
    scores = {}
    for name in VARIANTS:
        config = VariantsConfig(**({} if name == "plain" else {name: 1.0}))
        generator = np.random.default_rng(0)
        varied = [
            vary(source, reference, config, generator)["source"]
            for source, reference in zip(sources, references, strict=True)
        ]
        scores[name] = _scored(translator(varied, progress=True), references)
    texts, expected = (
        [" ".join(side[at : at + 3]) for at in range(0, len(side) - 2, 3)] for side in (sources, references)
    )
    for name, split in ((WHOLE, "none"), (SPLIT, "sentences")):
        scores[name] = _scored(translator(texts, progress=True, split=split), expected)
    return scores


def foreign_texts(translator: Callable[..., list[str]]) -> dict[str, int]:
    """How many texts in other scripts and pictures come out as they are, or empty; the others are sentences made up."""
    generator = np.random.default_rng(0)
    texts = [foreign_text(generator) for _ in range(_FOREIGN)]
    translations = translator(texts)
    same = sum(text == translation for text, translation in zip(texts, translations, strict=True))
    return {
        "texts": len(texts),
        "unchanged": same,
        "empty": sum(not translation.strip() for translation in translations),
    }


def _scored(translations: list[str], references: Sequence[str]) -> dict[str, Any]:
    scores = score_translations(translations, list(references))
    return {name: value for name, value in scores.items() if name.startswith(_SCORES)}


if __name__ == "__main__":
    sys.exit(main())
