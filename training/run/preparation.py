"""The corpus of a run, from its files to token ids: every split read, the tokenizer trained or found, the pairs
encoded."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import datasets
from transformers import PreTrainedTokenizerBase

from reluformer import ReLUFormerConfig
from reluformer.configuration.recipe import Recipe
from reluformer.records.progress import say
from reluformer.records.records import write_json
from reluformer.training.data.corpus import CorpusReport, load_split
from reluformer.training.data.documents import pack_split
from reluformer.training.data.encoding import encode_pairs, first_encoded_pairs
from reluformer.training.data.variants import with_variants
from reluformer.training.run.model_building import build_config, run_tokenizer
from reluformer.translating.moses import MosesStep, MosesTraces
from reluformer.translating.source_encoding import SourceEncoder


@dataclass(frozen=True)
class PreparedCorpus:
    """`config` is the model's, which fits the tokenizer. `read` are the splits as they were read, with their reports.
    `pairs` are the plain text of each split, sentences or packed documents; of validation, those to translate during
    training. `encoded` are the token ids of the training and validation splits."""

    tokenizer: PreTrainedTokenizerBase
    config: ReLUFormerConfig
    read: dict[str, tuple[datasets.Dataset, CorpusReport]]
    pairs: dict[str, datasets.Dataset]
    encoded: dict[str, datasets.Dataset]


def prepare_corpus(recipe: Recipe, resume_from: Path | None = None) -> PreparedCorpus:
    """Reads the splits for training, trains the tokenizer or loads it (that of the checkpoint `resume_from`), encodes;
    writes `corpus_report.json` into the run folder.

    Raises:
        UserError: files that cannot be used, a split with no pair left, or sources of an evaluated split that are too
            long.
    """
    data = recipe.data
    learned = ["train"] if recipe.training.eval_strategy == "no" else ["train", "validation"]
    # What is evaluated when training is over is read now: its faults are found before the first update.
    splits = [*learned, *(split for split in recipe.evaluation.splits if split not in learned)]
    encoded, reports = {}, []

    def told(report: CorpusReport) -> None:
        reports.append(dataclasses.asdict(report))
        say(report.summary())

    read = {}
    for split in splits:
        read[split] = load_split(data, split)
        told(read[split][1])
    pairs = {split: rows for split, (rows, _) in read.items()}
    _tell_of_tokenized_text(recipe, pairs["train"])
    tokenizer = run_tokenizer(recipe, pairs["train"], resume_from)
    config = build_config(recipe, tokenizer)
    positions = config.max_position_embeddings
    max_length = positions if data.packing else data.max_length
    # The other processes find in the cache what the first one has encoded, but for packed documents: each encodes them.
    with recipe.training.main_process_first(desc="token ids"):
        for split in splits if data.packing else ():
            packed = pack_split(data, split, pairs[split], tokenizer)
            pairs[split] = packed.pairs
            told(packed.report)
        if data.variants is not None:
            pairs["train"], report = with_variants(pairs["train"], data.variants)
            told(report)
        for split in learned:
            options = {"max_length": max_length, "name": f"{split} tokens", "workers": data.workers}
            encoded[split], report = encode_pairs(pairs[split], tokenizer, **options)
            told(report)
    if recipe.evaluation.long_sources == "error":  # refused now, not when training is over
        encoder = SourceEncoder(tokenizer, positions, "error", MosesStep.from_tokenizer(tokenizer))
        for split in recipe.evaluation.splits:
            encoder.encode(list(pairs[split]["source"]), f"{split} split")
    if "validation" in learned:
        first = {"max_length": max_length, "at_most": recipe.evaluation.at_most}
        pairs["validation"] = first_encoded_pairs(pairs["validation"], tokenizer, **first)
    if recipe.training.should_save:
        write_json(recipe.run_folder / "corpus_report.json", reports)
    return PreparedCorpus(tokenizer, config, read, pairs, encoded)


def _tell_of_tokenized_text(recipe: Recipe, pairs: datasets.Dataset) -> None:
    """Tells of entities alone: without them, the usual BLEU of tokenised text is hardly another one."""
    if recipe.data.text != "plain":
        return
    traces = MosesTraces.of_corpus(pairs, "target")
    if traces.are_tokenized and traces.entities:
        say(
            f"train: Moses seems to have tokenised the target ({traces}), and data.text says plain: BLEU will be too "
            "high; set data.text: moses"
        )
