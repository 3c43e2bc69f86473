"""Below which log-probability a translation is doubtful: a threshold for the page, chosen on validation pairs.

    python -m benchmarks.tatoeba_split                                      # data/tatoeba → runs/tatoeba
    python -m benchmarks.doubt models/tatoeba-de-en models/tatoeba-en-de    # about two minutes each

A translation is called bad where its chrF is below 40. The threshold is the highest one such that at least half of the
translations below it are bad, on Tatoeba's validation pairs. The captions of Multi30k, which chose nothing, show what
it does on other text. Translations are greedy and by the graphs with 8-bit weights, as on the page. Writes `doubt` of a
folder's figures.json, and its card.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu.metrics import CHRF

from reluformer.export.running import load_translator
from reluformer.records.records import run_record
from reluformer.translating.translation import Translator

BAD_BELOW = 40  # chrF
_SHARE_OF_BAD = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    from benchmarks import ship  # which measures a new model by this file

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="models/NAME")
    parser.add_argument("--multi30k", type=Path, default=Path("data/multi30k"), help="default: data/multi30k")
    options = parser.parse_args(arguments)
    for folder in options.folders:
        texts = ship.sentences_to_validate(ship.data_of(folder), options.multi30k)
        doubt = run_record(None, folder.name, None) | measure(folder, texts)
        ship.renew_figure(folder, "doubt", doubt)
        print(folder, json.dumps({name: doubt[name] for name in ("threshold", "Tatoeba", "Multi30k")}))
    return 0


def measure(folder: Path, texts: Mapping[str, tuple[list[str], list[str]]]) -> dict[str, Any]:
    """The threshold, and for each text how many of its translations are below it, and how many are bad.

    texts: sources and references by name; those of Tatoeba choose the threshold.
    """
    translator = load_translator(folder / "onnx", num_beams=1, split="none", scores=True)
    scored = {name: scores_and_bad(translator, *sides) for name, sides in texts.items()}
    threshold = threshold_of(*scored["Tatoeba"])
    counts = {name: counts_of(*each, threshold) for name, each in scored.items()}
    return {"bad_below_chrf": BAD_BELOW, "threshold": threshold, **counts}


def scores_and_bad(
    translator: Translator, sources: Sequence[str], references: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Of each translation its mean log-probability a token, and whether it is bad."""
    chrf = CHRF()
    translations = translator(list(sources))
    pairs = zip(translations, references, strict=True)
    bad = [chrf.sentence_score(each.text, [reference]).score < BAD_BELOW for each, reference in pairs]
    return np.array([each.log_probability for each in translations]), np.array(bad)


def threshold_of(scores: np.ndarray, bad: np.ndarray) -> float | None:
    """The highest score of which at least half of the translations below it are bad; None where there is none.

    Example: for scores -4, -3, -2, -1, of which the first and the third are bad, it is -1: two of three are bad.
    """
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    below = np.searchsorted(ranked, ranked, side="left")  # by score, how many are below it
    bad_below = np.concatenate([[0], np.cumsum(bad[order])])[below]
    chosen = np.flatnonzero((below > 0) & (bad_below >= _SHARE_OF_BAD * below))
    return float(ranked[chosen[-1]]) if len(chosen) else None


def counts_of(scores: np.ndarray, bad: np.ndarray, threshold: float | None) -> dict[str, int]:
    doubtful = np.zeros_like(bad) if threshold is None else scores < threshold
    counted = {"translations": scores, "bad": bad, "doubtful": doubtful, "doubtful_and_bad": doubtful & bad}
    return {name: len(each) if name == "translations" else int(each.sum()) for name, each in counted.items()}


if __name__ == "__main__":
    sys.exit(main())
