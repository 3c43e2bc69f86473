"""A recipe's data section → pairs of a split, and the report of what was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reluformer.configuration.recipe import SPLITS, DataConfig
from reluformer.training.corpora import CorpusReport, read_dataset, read_parallel_files
from reluformer.training.demo_corpus import demo_pairs
from reluformer.training.errors import UserError

if TYPE_CHECKING:
    import datasets


def has_split(data: DataConfig, split: str) -> bool:
    """Whether the recipe names the split."""
    if data.demo is not None:
        return getattr(data.demo, split) > 0
    return data.dataset is not None or getattr(data, split) is not None


def load_split(data: DataConfig, split: str) -> tuple[datasets.Dataset, CorpusReport]:
    """The pairs of a split, columns "source" and "target", and the report of the corpus.

    Args:
        data: the recipe's section.
        split: "train", "validation" or "test".

    Raises:
        UserError: the recipe has no such split, or its files cannot be used.
    """
    if split not in SPLITS:
        raise UserError(f"no split {split!r}; choose one of {', '.join(SPLITS)}")
    if not has_split(data, split):
        raise UserError(
            f"data: the recipe has no {split} split; give data.{split}.source and data.{split}.target "
            f"(splits it has: {', '.join(name for name in SPLITS if has_split(data, name))})"
        )
    if data.demo is not None:
        pairs = demo_pairs(getattr(data.demo, split), split=split, seed=data.demo.seed)
        return pairs, CorpusReport(f"demo {split}", read=len(pairs), kept=len(pairs))
    if data.dataset is not None:
        source = data.dataset
        return read_dataset(
            source.path,
            source.name,
            getattr(source, split),
            revision=source.revision,
            translation_column=source.translation_column,
            source_language=data.source_language,
            target_language=data.target_language,
        )
    files = getattr(data, split)
    return read_parallel_files(files.source, files.target, name=split)
