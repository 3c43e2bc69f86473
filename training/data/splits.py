"""A recipe's data section → pairs of a split, and the report of what was read; packed to documents where it says so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import DataConfig, DatasetConfig, ParallelFiles, TablesConfig
from reluformer.configuration.splits import SPLITS
from reluformer.training.data.columns import PairColumns
from reluformer.training.data.corpora import CorpusNotFound, CorpusReport, read_parallel_files
from reluformer.training.data.data_sets import read_dataset
from reluformer.training.data.demo_corpus import demo_pairs
from reluformer.training.data.documents import PackedDocuments, pack_documents
from reluformer.training.data.tables import read_tables

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase


def has_split(data: DataConfig, split: str) -> bool:
    """Whether the recipe names the split."""
    if data.demo is not None:
        return getattr(data.demo, split) > 0
    if data.tables is not None:
        return bool(data.tables.paths(split))
    return data.dataset is not None or getattr(data, split) is not None


def load_split(data: DataConfig, split: str) -> tuple[datasets.Dataset, CorpusReport]:
    """The sentence pairs of a split, columns "source" and "target", and the report of the corpus.

    Where the recipe names documents there is a column "document" too.

    Args:
        data: the recipe's section.
        split: "train", "validation" or "test".

    Raises:
        UserError: the recipe has no such split, or its files cannot be used.
    """
    if split not in SPLITS:
        raise UserError(f"no split {split!r}; choose one of {', '.join(SPLITS)}")
    if not has_split(data, split):
        keys = f"data.{split}.source and data.{split}.target" if data.tables is None else f"data.tables.{split}"
        raise UserError(
            f"data: the recipe has no {split} split; give {keys} "
            f"(splits it has: {', '.join(name for name in SPLITS if has_split(data, name))})"
        )
    try:
        return _read_split(data, split)
    except CorpusNotFound as error:
        if data.homepage is None:
            raise
        raise UserError(f"{error}; the corpus is to be had at {data.homepage}") from error


def _read_split(data: DataConfig, split: str) -> tuple[datasets.Dataset, CorpusReport]:
    if data.demo is not None:
        pairs = demo_pairs(getattr(data.demo, split), split=split, seed=data.demo.seed)
        return pairs, CorpusReport(f"demo {split}", read=len(pairs), kept=len(pairs))
    if data.dataset is not None:
        given, columns = data.dataset, _columns(data, data.dataset, "data.dataset")
        return read_dataset(given.path, given.name, getattr(given, split), columns, revision=given.revision)
    if data.tables is not None:
        columns = _columns(data, data.tables, "data.tables")
        return read_tables(data.tables.paths(split), columns, name=split, delimiter=data.tables.delimiter)
    files = getattr(data, split)
    _check_sides(files, split)
    pairs, report = read_parallel_files(files.source, files.target, name=split, documents=files.documents)
    return (pairs, report) if files.only is None else _only(pairs, report, files.only, split)


def _columns(data: DataConfig, given: TablesConfig | DatasetConfig, section: str) -> PairColumns:
    return PairColumns(
        data.source_language,
        data.target_language,
        given.source_column,
        given.target_column,
        given.document_column,
        section,
    )


def _check_sides(files: ParallelFiles, split: str) -> None:
    source, target = Path(files.source).expanduser(), Path(files.target).expanduser()
    if source.exists() and target.exists() and source.samefile(target):
        raise UserError(
            f"data.{split}: source and target are the same file, {files.source}; expected the two sides of a corpus: give the "
            "file of the translations as target"
        )


def _only(
    pairs: datasets.Dataset, report: CorpusReport, names: list[str], split: str
) -> tuple[datasets.Dataset, CorpusReport]:
    """The pairs of the documents `names`, in the order of the file; the others are counted."""
    documents = pairs.data.column("document")
    there = pc.unique(documents).to_pylist()
    if missing := [name for name in names if name not in there]:
        more = f" and {len(there) - 20:,} more" if len(there) > 20 else ""
        raise UserError(f"data.{split}.only: no document {missing[0]!r}; there are: {', '.join(there[:20])}{more}")
    chosen = pc.is_in(documents, value_set=pa.array(names)).to_numpy()
    if left := int((~chosen).sum()):
        reason = f"of a document that data.{split}.only does not name"
        report.kept -= left
        report.skipped[reason] = left
        report.first[reason] = f"document {documents[int(chosen.argmin())].as_py()}"
    return pairs.select(np.flatnonzero(chosen)), report


def pack_split(
    data: DataConfig,
    split: str,
    sentences: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    positions: int | None = None,
) -> PackedDocuments:
    """The sentences of a split packed as the recipe says, which has a section `packing`.

    Args:
        data: the recipe's section.
        split: "train", "validation" or "test".
        sentences: of `load_split`.
        tokenizer: of the run.
        positions: of the model, None where the model itself will refuse what is too long.

    Raises:
        UserError: see `pack_documents`.
    """
    packing = data.packing
    return pack_documents(
        sentences,
        tokenizer,
        max_tokens=data.max_length,
        too_long=packing.too_long if split == "train" else packing.too_long_evaluated,
        name=f"{split} documents",
        positions=positions,
    )
