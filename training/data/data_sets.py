"""Parallel text from what the library `datasets` loads: a set of the Hub, a folder of data files, a set saved on disk."""

from __future__ import annotations

from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

import datasets

from reluformer.configuration.errors import UserError
from reluformer.training.data.arrow_cache import cached_rows
from reluformer.training.data.columns import PairColumns, names_inside, value_at
from reluformer.training.data.corpora import CorpusNotFound, CorpusReport
from reluformer.training.data.table_rows import TableRow
from reluformer.training.data.tables import write_pairs
from reluformer.training.run.redaction import without_secrets


def read_dataset(
    path: str, name: str | None, split: str, columns: PairColumns, *, revision: str | None = None
) -> tuple[datasets.Dataset, CorpusReport]:
    """Read one split of a data set whose columns hold the two sides of each pair.

    A pair with a null, an empty or a non-text side is skipped and counted with the row (from 0) of the first.

    Args:
        path: what `datasets.load_dataset` takes, a Hub id or a folder of data files, or a folder written by `save_to_disk`.
        name: configuration of the set.
        split: its name, or a slice of it such as `train[:1%]`.
        columns: that hold the pairs.
        revision: branch, tag or commit on the Hub.

    Returns:
        The columns "source" and "target", with a document column "document" too, and the report.

    Raises:
        CorpusNotFound: a set that is not there, or a Hub that cannot be reached.
        UserError: a set that cannot be loaded; a missing split or column (listing those there are); no pair left; a row
            without a document, or a document that begins twice.
    """
    loaded = load_set(path, name, split, revision)
    label = without_secrets(" ".join(part for part in (path, name, split) if part))
    names = columns.choose(names_inside(_fields(loaded.features)), label)
    facts = {
        **set_facts(loaded),
        "label": label,
        "columns": astuple(columns),
    }

    def write(folder: Path) -> dict[str, Any]:
        rows = (
            TableRow(f"row {number}", tuple(value_at(row, column) for column in names))
            for number, row in enumerate(loaded)
        )
        documents = columns.document is not None
        return asdict(write_pairs(rows, label, folder, with_documents=documents, total=len(loaded)))

    entry = cached_rows("set", facts, write)
    return entry.rows, CorpusReport.of_entry(entry, label)


def set_facts(loaded: datasets.Dataset) -> dict[str, Any]:
    """What decides the rows of a set, for the key of what is made of them."""
    return {
        "set": loaded._fingerprint,  # of what was loaded, by `datasets`
        "files": [_file_facts(Path(file["filename"])) for file in loaded.cache_files],
    }


def _file_facts(path: Path) -> list[str | int]:
    status = path.stat()
    return [str(path), status.st_size, status.st_mtime_ns]


def _fields(features: Any) -> Any:
    """By column, the mapping of its fields, or None for a column that has none."""
    if isinstance(features, datasets.Translation):
        return dict.fromkeys(features.languages)
    return {name: _fields(inside) for name, inside in features.items()} if isinstance(features, dict) else None


def load_set(path: str, name: str | None, split: str, revision: str | None) -> datasets.Dataset:
    """The rows of a split; arguments and errors as of `read_dataset`."""
    local = Path(path).expanduser()
    if (local / "dataset_dict.json").exists() or (local / "state.json").exists():
        return _load_saved(local, split)
    if local.is_file():
        raise UserError(
            f"data.dataset.path: {path!r} is a file; expected the id of a data set, or a folder: give a table as "
            "data.tables.train, data.tables.validation and data.tables.test"
        )
    try:
        return datasets.load_dataset(path, name, split=split, revision=revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(f"{error}{f' ({error.__cause__})' if error.__cause__ else ''}".split())
        fault = f"data set {path!r} (name {name!r}, split {split!r}) cannot be loaded: {reason}"
        kind = CorpusNotFound if isinstance(error, (FileNotFoundError, ConnectionError)) else UserError
        raise kind(without_secrets(fault)) from error


def _load_saved(folder: Path, split: str) -> datasets.Dataset:
    """A folder written by `save_to_disk`: a `DatasetDict`, or one `Dataset`, whose split is then its own."""
    saved = datasets.load_from_disk(str(folder))
    if isinstance(saved, datasets.Dataset):
        saved = {str(saved.split) if saved.split else split: saved}
    if split not in saved:
        raise UserError(f"{folder}: no split {split!r}; there are: {', '.join(saved)}")
    return saved[split]
