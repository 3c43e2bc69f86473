"""The corpus of a run, from its files to token ids: every split read, the tokenizer trained or found, the pairs encoded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import datasets
from transformers import PreTrainedTokenizerBase

from reluformer.configuration.recipe import Recipe
from reluformer.training.data.corpus import CorpusReport, has_split, load_split
from reluformer.training.data.documents import PackingReport, pack_split
from reluformer.training.data.encoding import encode_pairs
from reluformer.training.data.moses import MosesStep, warn_of_tokenized_text
from reluformer.training.run.model_building import build_config
from reluformer.training.run.progress import say
from reluformer.training.run.records import write_json
from reluformer.training.run.run_tokenizer import run_tokenizer
from reluformer.training.scoring.long_sources import SourceEncoder
from reluformer.training.tokenization import train_tokenizer

# Of a side, to tell plain text from tokenised text: a corpus may be larger than memory.
_LINES_LOOKED_AT = 10_000


@dataclass(frozen=True)
class PreparedCorpus:
    """`pairs` (plain text) of every split, sentences or packed documents, and `encoded` (token ids) of the training and
    validation splits, with packing of the evaluated ones too."""

    tokenizer: PreTrainedTokenizerBase
    pairs: dict[str, datasets.Dataset]
    encoded: dict[str, datasets.Dataset]


def prepare_corpus(recipe: Recipe, resume_from: Path | None = None) -> PreparedCorpus:
    """Reads the splits for training, trains or loads the tokenizer, encodes; writes the reports into the run folder.

    Args:
        recipe: of the run.
        resume_from: a checkpoint; take the tokenizer that the run has trained already, and compare it with the checkpoint's.

    Raises:
        UserError: files that cannot be used, a split with no pair left, sources of an evaluated split that are too long, or a
            tokenizer that has become another one.
    """
    reports: list[CorpusReport] = []
    learned, evaluated = _splits(recipe)
    pairs = {}
    # What is evaluated when training is over is read now: its faults are found before the first update.
    for split in (*learned, *evaluated):
        pairs[split], report = load_split(recipe.data, split)
        reports.append(report)
        say(recipe, report.summary())
    if recipe.data.text == "plain":
        some = pairs["train"].select(range(0, len(pairs["train"]), 1 + len(pairs["train"]) // _LINES_LOOKED_AT))
        warn_of_tokenized_text([*some["source"], *some["target"]])
    tokenizer = run_tokenizer(recipe, lambda: train_recipe_tokenizer(recipe, pairs["train"]), resume_from)
    if recipe.data.packing is None:
        encoded = _encode(recipe, learned, pairs, tokenizer, reports)
    else:
        encoded = _pack(recipe, (*learned, *evaluated), pairs, tokenizer)
    for split in recipe.evaluation.splits:
        _check_sources(recipe, split, pairs[split], tokenizer)
    _write_reports(recipe, "corpus_report.json", reports)
    return PreparedCorpus(tokenizer, pairs, encoded)


def _splits(recipe: Recipe) -> tuple[list[str], list[str]]:
    """The splits that training reads, and those that are evaluated alone."""
    learned = [split for split in ("train", "validation") if has_split(recipe.data, split)]
    return learned, [split for split in recipe.evaluation.splits if split not in learned]


def _encode(
    recipe: Recipe,
    splits: Sequence[str],
    pairs: Mapping[str, datasets.Dataset],
    tokenizer: PreTrainedTokenizerBase,
    reports: list[CorpusReport],
) -> dict[str, datasets.Dataset]:
    """The token ids of each split; `reports` gets what was left out of each."""
    data, encoded = recipe.data, {}
    for split in splits:
        # The other processes find in the cache what the first one has encoded.
        with recipe.training.main_process_first(desc="token ids"):
            encoded[split], report = encode_pairs(
                pairs[split], tokenizer, max_length=data.max_length, name=f"{split} tokens", workers=data.workers
            )
        reports.append(report)
        say(recipe, report.summary())
    return encoded


def _pack(
    recipe: Recipe, splits: Sequence[str], pairs: dict[str, datasets.Dataset], tokenizer: PreTrainedTokenizerBase
) -> dict[str, datasets.Dataset]:
    """The token ids of each split's packed documents, which take the place of its sentences in `pairs`."""
    positions = build_config(recipe, tokenizer).max_position_embeddings
    encoded, reports = {}, []
    for split in splits:
        packed = pack_split(recipe.data, split, pairs[split], tokenizer, positions=positions)
        pairs[split], encoded[split] = packed.pairs, packed.encoded
        reports.append(packed.report)
        say(recipe, packed.report.summary())
    _write_reports(recipe, "packing_report.json", reports)
    return encoded


def _write_reports(recipe: Recipe, name: str, reports: Sequence[CorpusReport | PackingReport]) -> None:
    if recipe.training.should_save:
        write_json(recipe.run_folder / name, [dataclasses.asdict(report) for report in reports])


def _check_sources(recipe: Recipe, split: str, pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuses now what translating the split would refuse when training is over."""
    if recipe.evaluation.long_sources != "error":
        return  # the translation names the sources that it shortens
    positions = build_config(recipe, tokenizer).max_position_embeddings
    encoder = SourceEncoder(tokenizer, positions, "error", MosesStep.from_tokenizer(tokenizer))
    encoder.encode(list(pairs["source"]), f"{split} split")


def train_recipe_tokenizer(recipe: Recipe, pairs: datasets.Dataset) -> PreTrainedTokenizerBase:
    """A new tokenizer as the recipe wants it, from pairs of text; raises as `train_tokenizer`."""
    wanted, data = recipe.tokenizer, recipe.data
    return train_tokenizer(
        pairs,
        vocab_size=wanted.vocab_size,
        lowercase=wanted.lowercase,
        moses=wanted.moses,
        source_language=data.source_language,
        target_language=data.target_language,
        max_length=data.max_length,
    )
