"""Parallel text from tables with named columns: every pair is kept, or counted with the reason and its first place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple
from pathlib import Path

import datasets
from tqdm.auto import tqdm

from reluformer.training.data.arrow_cache import RowFiles, cached_rows, content_hash
from reluformer.training.data.columns import PairColumns
from reluformer.training.data.corpora import (
    DOCUMENT_FEATURES,
    PAIR_FEATURES,
    CorpusReport,
    DocumentOrder,
    existing_file,
    first_problem,
)
from reluformer.training.data.table_rows import TableRow, table_rows, table_suffix


def read_tables(
    paths: Sequence[str | Path], columns: PairColumns, *, name: str, delimiter: str | None = None
) -> tuple[datasets.Dataset, CorpusReport]:
    """Read one table, or several one after the other, whose columns hold the two sides of each pair.

    The end of a name says what a table is: .csv, .tsv, .jsonl, .json (a list of objects, or one on each line) or .parquet;
    all but the last may be packed, as .gz or .zst. CSV has quotations, in which a text may have line breaks;
    TSV has none. A row is skipped and counted where one side is empty, no text or not UTF-8, or the row cannot be read.

    Args:
        paths: of the tables.
        columns: that hold the pairs.
        name: of the corpus, for the report.
        delimiter: between the columns of CSV or TSV; None: a comma in CSV, a tab in TSV.

    Returns:
        The columns "source" and "target", with a document column "document" too, and the report.

    Raises:
        UserError: a file that is missing, unreadable, damaged or no such table; a missing column (listing those there are); a
            row without a document, or a document that begins twice; no pair left.
    """
    files = [existing_file(path, name, "a table (.csv, .tsv, .jsonl, .json or .parquet)") for path in paths]
    for path in files:
        table_suffix(path)
    facts = {
        "files": [[str(path), content_hash(path)] for path in files],
        "columns": astuple(columns),
        "delimiter": delimiter,
    }

    def write(folder: Path) -> dict:
        rows = (row for path in files for row in table_rows(path, columns.choose, delimiter))
        return asdict(write_pairs(rows, name, folder, with_documents=columns.document is not None))

    entry = cached_rows("table", facts, write)
    return entry.rows, CorpusReport.of_entry(entry, name)


def write_pairs(
    rows: Iterable[TableRow], name: str, folder: Path, *, with_documents: bool, total: int | None = None
) -> CorpusReport:
    """Writes the good pairs of rows into `folder`, and counts the others.

    Args:
        rows: source, target and, with `with_documents`, the document.
        name: of the corpus, for the report.
        folder: an entry of the cache.
        with_documents: whether there is a third value.
        total: number of rows, for the progress bar, where it is known.

    Raises:
        UserError: as `read_tables` for documents; no pair left.
    """
    report, order = CorpusReport(name), DocumentOrder()
    features = DOCUMENT_FEATURES if with_documents else PAIR_FEATURES
    bar = tqdm(rows, desc=f"reading {name}", unit=" pairs", total=total, delay=2, disable=None)
    with RowFiles(folder, "pairs", features) as kept:
        for row in bar:
            if row.problem is not None:
                report.skip(row.problem, row.place)
                continue
            source, target, *document = row.values
            names = {"document": order.check(document[0], f"{name}: {row.place}")} if with_documents else {}
            _, problem = first_problem(source, target, "is not text")
            if problem:
                report.skip(problem, row.place)
                continue
            report.keep()
            kept.append({"source": source, "target": target, **names})
    report.require_pairs()
    return report
