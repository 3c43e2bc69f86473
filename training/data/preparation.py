"""The corpus of a run, from its files to token ids: every split read, the tokenizer trained or found, the pairs encoded."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from transformers import PreTrainedTokenizerBase

from reluformer.configuration.recipe import Recipe
from reluformer.training.data.corpus import CorpusReport, has_split, load_split
from reluformer.training.data.documents import PackingReport, pack_split
from reluformer.training.data.encoding import encode_pairs
from reluformer.training.data.moses import MosesStep
from reluformer.training.run.model_building import build_config, run_tokenizer
from reluformer.training.run.progress import say
from reluformer.training.run.records import write_json
from reluformer.training.scoring.long_sources import SourceEncoder
from reluformer.training.tokenization import train_tokenizer


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
        resume_from: a checkpoint, whose tokenizer is taken.

    Raises:
        UserError: files that cannot be used, a split with no pair left, or sources of an evaluated split that are too long.
    """
    learned = [split for split in ("train", "validation") if has_split(recipe.data, split)]
    # What is evaluated when training is over is read now: its faults are found before the first update.
    splits = [*learned, *(split for split in recipe.evaluation.splits if split not in learned)]
    pairs, reports = {}, []
    for split in splits:
        pairs[split], report = load_split(recipe.data, split)
        _tell(report, reports)
    tokenizer = run_tokenizer(recipe, lambda: train_recipe_tokenizer(recipe, pairs["train"]), resume_from)
    encoded, packed = {}, []
    for split in splits if recipe.data.packing else learned:
        # The other processes find in the cache what the first one has encoded.
        with recipe.training.main_process_first(desc="token ids"):
            if recipe.data.packing is None:
                encoded[split], report = _encode(recipe, split, pairs[split], tokenizer)
                _tell(report, reports)
            else:
                pairs[split], encoded[split], report = _pack(recipe, split, pairs[split], tokenizer)
                _tell(report, packed)
    for split in recipe.evaluation.splits:
        _check_sources(recipe, split, pairs[split], tokenizer)
    for name, told in (("corpus_report.json", reports), ("packing_report.json", packed)):
        if told and recipe.training.should_save:
            write_json(recipe.run_folder / name, [dataclasses.asdict(report) for report in told])
    return PreparedCorpus(tokenizer, pairs, encoded)


def _tell(report: CorpusReport | PackingReport, reports: list[Any]) -> None:
    say(report.summary())
    reports.append(report)


def _encode(
    recipe: Recipe, split: str, pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase
) -> tuple[datasets.Dataset, CorpusReport]:
    data = recipe.data
    return encode_pairs(pairs, tokenizer, max_length=data.max_length, name=f"{split} tokens", workers=data.workers)


def _pack(
    recipe: Recipe, split: str, pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase
) -> tuple[datasets.Dataset, datasets.Dataset, PackingReport]:
    positions = build_config(recipe, tokenizer).max_position_embeddings
    packed = pack_split(recipe.data, split, pairs, tokenizer, positions=positions)
    return packed.pairs, packed.encoded, packed.report


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
