"""Scoring a model on a split of its corpus; the scores, and every translation behind them, are written into the run
folder."""

from __future__ import annotations

import csv
import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import datasets
from accelerate.utils import gather_object
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from reluformer.configuration.recipe import Recipe
from reluformer.configuration.scores import SCORES, SCORES_IN_TRAINING
from reluformer.records.progress import say
from reluformer.records.records import run_record, write_json
from reluformer.training.data.corpus import CorpusReport, load_split
from reluformer.training.data.documents import PackedDocuments, pack_split
from reluformer.training.scoring.metrics import describe_scores, score_documents, score_translations
from reluformer.translating.translation import Translator


def evaluate_split(
    recipe: Recipe, split: str, translator: Translator, read: tuple[datasets.Dataset, CorpusReport] | None = None
) -> dict[str, Any]:
    """Translates and scores a split, prints scores and samples, writes both into the run folder; see `evaluate`.

    A line of the corpus is translated as a whole, whatever the translator does with a text of several sentences.

    read: what `load_split` has returned of the split; None: it is read now.
    """
    translator = translator.with_options(split="none")
    pairs, report = load_split(recipe.data, split) if read is None else read
    if read is None:
        say(report.summary())
    if recipe.data.packing is not None:
        pairs = pack_split(recipe.data, split, pairs, translator.tokenizer)
        say(pairs.report.summary())
    record = {**run_record(None, recipe.name, recipe.training.seed), "dataset": report.name}
    options = {"language": recipe.data.target_language, "text": recipe.data.text, "record": record}
    scores = evaluate(translator, pairs, recipe.run_folder, split, **options)
    if recipe.evaluation.samples:
        rows = read_translations(recipe.run_folder / f"translations.{split}.tsv")
        say(format_samples(rows, recipe.evaluation.samples))
    say(f"{split}: {describe_scores(scores)}")
    return scores


def evaluate(
    translator: Translator,
    pairs: datasets.Dataset | PackedDocuments,
    folder: Path,
    split: str,
    *,
    record: Mapping[str, Any],
    language: str | None = None,
    text: Literal["plain", "moses"] = "plain",
) -> dict[str, Any]:
    """Translates the sources of `pairs` and scores the translations against the targets.

    Writes `evaluation.<split>.json` and `translations.<split>.tsv` (see `read_translations`) into `folder`.

    Args:
        pairs: columns "source" and "target"; or packed documents, which are scored as they are and, as one
            scoring unit common to all lengths of packing, as whole original documents.
        record: what to put before the scores: where they come from.
        language, text: see `score_translations`.

    Returns:
        What is written: the record, all scores, the `packing` of documents, the decoding, the `shortened_sources`
        (numbers, from 1, of those that were split), the device, and the `seconds` of translating alone.
    """
    packed, pairs = (pairs, pairs.pairs) if isinstance(pairs, PackedDocuments) else (None, pairs)
    sources, references = list(pairs["source"]), list(pairs["target"])
    start = time.perf_counter()
    hypotheses = translator(sources, progress=True)
    seconds = time.perf_counter() - start
    # First, so that an error in scoring does not cost the translations.
    write_translations(folder / f"translations.{split}.tsv", sources, hypotheses, references)
    scores = score_translations(hypotheses, references, language=language, text=text)
    if packed is not None:
        scores |= score_documents(hypotheses, pairs["document"], packed.references, language=language, text=text)
        scores["packing"] = dataclasses.asdict(packed.report)
    result = {
        **record,
        "split": split,
        **scores,
        "decoding": translator.decoding,
        "shortened_sources": translator.shortened,
        "device": str(translator.model.device),
        "seconds": round(seconds, 3),
        "sentences_per_second": round(len(sources) / seconds, 2),
    }
    write_json(folder / f"evaluation.{split}.json", result)
    return result


@dataclass(frozen=True)
class ValidationTranslation:
    """Translates and scores pairs (columns "source" and "target") in the middle of training, each process its share.

    The scores are those of `SCORES_IN_TRAINING`, without those that say nothing of a model whose tokenizer lower-cases
    if the recipe's headline is not cased.
    """

    recipe: Recipe
    tokenizer: PreTrainedTokenizerBase
    pairs: datasets.Dataset

    def __call__(self, model: PreTrainedModel, process_index: int = 0, processes: int = 1) -> dict[str, float]:
        """Scores of `model`, from 0 to 100, the same on every process; every process must call this."""
        evaluation, data, sources = self.recipe.evaluation, self.recipe.data, list(self.pairs["source"])
        decoding = {name: getattr(evaluation, name) for name in ("num_beams", "length_penalty", "batch_tokens")}
        mine = range(process_index, len(sources), processes)
        translations = Translator(model, self.tokenizer, split="none", **decoding)([sources[index] for index in mine])
        if processes > 1:
            gathered = dict(gather_object(list(zip(mine, translations, strict=True))))
            translations = [gathered[index] for index in range(len(sources))]
        language = data.target_language if data.text == "moses" else None  # for plain text Moses would take its time
        scores = score_translations(translations, list(self.pairs["target"]), language=language, text=data.text)
        cased = SCORES[evaluation.headline].cased
        wanted = [score.name for score in SCORES_IN_TRAINING if cased or not score.cased]
        return {name: scores[name] for name in wanted if name in scores}


def write_translations(
    path: Path, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> Path:
    """Writes source, hypothesis, reference as tab-separated UTF-8 with a header.

    A text with a tab or line feed is quoted; a carriage return, which `csv` does not quote and ends a row at, becomes a
    space.
    """
    texts = [[text.replace("\r", " ") for text in side] for side in (sources, hypotheses, references)]
    with path.open("w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream, "excel-tab", lineterminator="\n")
        rows.writerows([("source", "hypothesis", "reference"), *zip(*texts, strict=True)])
    return path


def read_translations(path: str | Path) -> list[tuple[str, str, str]]:
    """The (source, hypothesis, reference) rows of a file that `write_translations` wrote."""
    csv.field_size_limit(2**31 - 1)  # as much as it takes: a document may be longer than the default
    with Path(path).open(encoding="utf-8", newline="") as stream:
        _, *rows = map(tuple, csv.reader(stream, "excel-tab"))
    return rows


def format_samples(rows: Sequence[tuple[str, str, str]], count: int) -> str:
    """`count` of the rows (source, hypothesis, reference), evenly spread over the corpus, so neither chosen nor
    random."""
    count = min(count, len(rows))
    chosen = [rows[index * len(rows) // count] for index in range(count)]
    return "\n\n".join("source       {}\ntranslation  {}\nreference    {}".format(*row) for row in chosen)
