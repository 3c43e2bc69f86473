"""The sentence pairs of a recipe's splits: every pair is kept, or counted with the reason and the number of the first.

Files are read once into the cache of `datasets` and mapped into memory from there, so that a corpus may be larger than
memory. Raw text stays raw here; normalisation is the tokenizer's.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.recipe import SPLITS, DataConfig, DatasetConfig, ParallelFiles
from reluformer.records.redaction import without_secrets
from reluformer.training.data.demo_corpus import demo_pairs
from reluformer.translating.readers import is_unicode, text_file, text_lines

# Part of every key of the cache: raise it where the same files are read in another way than before.
READING_VERSION = 3
Row = dict[str, Any] | str  # the values of a pair by side, or the reason for which it is skipped
_FEATURES = datasets.Features({name: datasets.Value("string") for name in ("source", "target", "document", "problem")})


@dataclass
class CorpusReport:
    """What became of the pairs of one corpus: `read == kept + sum(skipped.values())`.

    `skipped` counts pairs by reason; `first` is the number, from 1, of the first one of each reason.
    """

    name: str
    read: int = 0
    kept: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)

    def count(self, rows: datasets.Dataset) -> np.ndarray:
        """Counts rows, and returns which are good: those whose column "problem" is null (rows,)."""
        problems = rows.data.column("problem")
        good = np.asarray(problems.is_null())
        self.read, self.kept = len(rows), int(good.sum())
        for row in np.flatnonzero(~good).tolist():
            reason = problems[row].as_py()
            self.skipped[reason] = self.skipped.get(reason, 0) + 1
            self.first.setdefault(reason, row + 1)
        return good

    def skips(self) -> str:
        """What was skipped, as the end of a line; "" for nothing."""
        reasons = [f"{count:,} × {why} (first: pair {self.first[why]:,})" for why, count in self.skipped.items()]
        return f"; skipped {'; '.join(reasons)}" if reasons else ""

    def summary(self) -> str:
        """One line for a log or an error message."""
        return f"{self.name}: {self.kept:,} of {self.read:,} pairs kept{self.skips()}"


def keep_good(rows: datasets.Dataset, name: str) -> tuple[datasets.Dataset, CorpusReport]:
    """The rows without a problem, and what was counted, see `CorpusReport.count`; `UserError` where none is left."""
    report = CorpusReport(name)
    good = report.count(rows)
    if not report.kept:
        raise UserError(f"empty corpus: {report.summary()}; expected at least one usable pair")
    rows = rows.remove_columns("problem")
    return rows.select(np.flatnonzero(good)).flatten_indices() if report.skipped else rows, report


def has_split(data: DataConfig, split: str) -> bool:
    """Whether the recipe names the split."""
    if data.demo is not None:
        return getattr(data.demo, split) > 0
    if data.dataset is not None:
        return data.dataset.files is None or getattr(data.dataset, split).partition("[")[0] in data.dataset.files
    return getattr(data, split) is not None


def load_split(data: DataConfig, split: str) -> tuple[datasets.Dataset, CorpusReport]:
    """The sentence pairs of a split, columns "source" and "target", and the report of the corpus.

    Where the recipe names documents there is a column "document" too.

    Raises:
        UserError: the recipe has no such split, or its files cannot be used.
    """
    if not has_split(data, split):
        splits = ", ".join(name for name in SPLITS if has_split(data, name))
        raise UserError(f"data: the recipe has no {split} split (splits it has: {splits}); give its files")
    try:
        return _read_split(data, split)
    except UserError as error:
        if data.homepage is None:
            raise
        raise UserError(f"{error}; the corpus is available at {data.homepage}") from error


def _read_split(data: DataConfig, split: str) -> tuple[datasets.Dataset, CorpusReport]:
    if data.demo is not None:
        pairs = demo_pairs(getattr(data.demo, split), split=split, seed=data.demo.seed)
        return pairs, CorpusReport(f"demo {split}", read=len(pairs), kept=len(pairs))
    if data.dataset is not None:
        return _read_dataset(data, getattr(data.dataset, split))
    files: ParallelFiles = getattr(data, split)
    if Path(files.source).expanduser().resolve() == Path(files.target).expanduser().resolve():
        raise UserError(f"data.{split}: source and target are the same file, {files.source}; expected a file for each")
    return read_parallel_files(files.source, files.target, name=split, documents=files.documents, only=files.only)


def read_parallel_files(
    source: str | Path,
    target: str | Path,
    *,
    name: str,
    documents: str | Path | None = None,
    only: Sequence[str] | None = None,
) -> tuple[datasets.Dataset, CorpusReport]:
    """Reads two text files, perhaps compressed, to the columns of `load_split`; line n of one translates line n of the
    other.

    Line n of `documents` names the document of pair n. Documents that are not in `only` are left out; None keeps all.

    Raises:
        UserError: a file that is missing or cannot be read, a table or text in UTF-16; different numbers of lines; no
            pair left; a document that begins twice, or that `only` names and does not exist.
    """
    sides = {"source": source, "target": target, "document": documents}
    instead = "give a table as data.dataset, or rename the file if it is plain text"
    paths = {side: text_file(path, instead) for side, path in sides.items() if path is not None}
    return _read(partial(_parallel_rows, paths, name, only), name, paths.values())


def _parallel_rows(paths: dict[str, Path], name: str, only: Sequence[str] | None) -> Iterator[Row]:
    counts, missing = [0] * len(paths), set(only or ())
    for lines in zip_longest(*map(text_lines, paths.values())):
        counts = [count + (line is not None) for count, line in zip(counts, lines, strict=True)]
        if None in lines:
            continue  # the error below names the true counts
        record = dict(zip(paths, lines, strict=True))
        if "document" in record:
            record["document"] = record["document"].strip()
            missing.discard(record["document"])
        left_out = only is not None and record["document"] not in only
        yield "of a document that `only` does not name" if left_out else record
    if len(set(counts)) > 1:
        listed = " and ".join(f"{count:,} in {path}" for count, path in zip(counts, paths.values(), strict=True))
        raise UserError(
            f"{name}: parallel files must have the same number of lines, found {listed}; give the files of one aligned "
            "corpus"
        )
    if missing:
        raise UserError(f"data.{name}.only: no document {min(missing)!r} in {paths['document']}")


def _read_dataset(data: DataConfig, split: str) -> tuple[datasets.Dataset, CorpusReport]:
    config, loaded = data.dataset, _load_set(data.dataset, split).flatten()
    name = without_secrets(" ".join(part for part in (config.path, config.name, split) if part))
    chosen = _choose_columns(loaded.column_names, data, name)
    return _read(partial(_set_rows, loaded.select_columns(list(chosen.values())), chosen), name, ())


def _set_rows(loaded: datasets.Dataset, chosen: dict[str, str]) -> Iterator[Row]:
    for row in loaded:
        record = {side: row[column] for side, column in chosen.items()}
        if "document" in record:  # may be a number
            record["document"] = "" if record["document"] is None else str(record["document"]).strip()
        yield record


def _load_set(config: DatasetConfig, split: str) -> datasets.Dataset:
    """A split of a set of the Hub, of tables, of a folder of data files, or of a folder written by `save_to_disk`."""
    local = Path(config.path).expanduser()
    if local.is_file():
        raise UserError(
            f"data.dataset.path: {config.path!r} is a file; give its kind (csv, json or parquet) as path, and the file "
            "as data.dataset.files"
        )
    which, options = {"data_files": config.files, "split": split, "revision": config.revision}, config.options
    try:
        if (local / "dataset_dict.json").exists():
            if config.name or config.files or config.revision or options:
                raise ValueError("a folder of save_to_disk takes no name, files, revision or options; leave them out")
            return _part_of_saved(local, split)
        if config.path == "csv":  # a cell is text as it stands: "null" is a word, and 007 no number
            options = {"keep_default_na": False, "index_col": False, **options}
            whole = {**which, "split": split.partition("[")[0]}  # a stream has no slices
            first = next(iter(datasets.load_dataset("csv", config.name, streaming=True, **whole, **options)), None)
            if first is None:
                raise ValueError("no row stands below the header")
            options["features"] = datasets.Features(dict.fromkeys(first, datasets.Value("string")))
        with warnings.catch_warnings():  # pandas only warns of a row with more cells than columns, and cuts it
            warnings.filterwarnings("error", message="Length of header or names does not match")
            return datasets.load_dataset(config.path, config.name, **which, **options)
    except (OSError, ValueError, TypeError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = one_line(f"{error}{f' ({error.__cause__})' if error.__cause__ else ''}")
        fault = f"data set {config.path!r} (name {config.name!r}, split {split!r}) cannot be loaded: {reason}"
        raise UserError(without_secrets(fault)) from error


def _part_of_saved(folder: Path, split: str) -> datasets.Dataset:
    """A split of a folder written by `save_to_disk`, or slices of it, such as `train[:90%]`."""
    name = split.partition("[")[0]
    rows = datasets.load_from_disk(str(folder / name))
    if name == split:
        return rows
    parts = datasets.ReadInstruction.from_spec(split).to_absolute({name: len(rows)})
    return rows.select([row for part in parts for row in range(part.from_, part.to)])


def _choose_columns(known: Sequence[str], data: DataConfig, name: str) -> dict[str, str]:
    """By side, its column: that which the recipe names, or that which is named as the language."""
    chosen = {}
    for side, language in (("source", data.source_language), ("target", data.target_language), ("document", None)):
        named = getattr(data.dataset, f"{side}_column")
        if named is None and language is None:
            continue
        wanted = [f"translation.{language}", language] if named is None else [named]
        matching = [column for column in wanted if column in known]
        if not matching:
            raise UserError(
                f"{name}: no column {' or '.join(map(repr, wanted))}; there are: {', '.join(known)}; set "
                f"data.dataset.{side}_column{', or options: {sep: …}' if len(known) == 1 else ''}"
            )
        chosen[side] = matching[0]
    if chosen["source"] == chosen["target"]:
        raise UserError(f"{name}: column {chosen['source']!r} is both source and target; name two in data.dataset")
    return chosen


def _read(rows: Callable[[], Iterator[Row]], name: str, files: Iterable[Path]) -> tuple[datasets.Dataset, CorpusReport]:
    """The good pairs of `rows`, from the cache of `datasets` unless `rows` or a file is new."""
    key = (READING_VERSION, *((path.stat().st_size, path.stat().st_mtime_ns) for path in files))
    arguments = {"rows": rows, "name": name, "key": key}
    try:
        read = datasets.Dataset.from_generator(_judged_rows, features=_FEATURES, gen_kwargs=arguments)
    except datasets.exceptions.DatasetGenerationError as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise
    pairs, report = keep_good(read, name)
    if pairs[0]["document"] is None:
        return pairs.remove_columns("document"), report
    runs = Counter(document for document, _ in groupby(pairs["document"]))
    if scattered := [document for document, count in runs.items() if count > 1]:
        raise UserError(
            f"{name}: the sentences of document {scattered[0]!r} do not stand together; sort the corpus by document, "
            "or give each document a name of its own"
        )
    return pairs, report


def _judged_rows(rows: Callable[[], Iterator[Row]], name: str, key: object) -> Iterator[dict[str, str | None]]:
    """Every row; one that cannot be used has no text, but a problem. `key` is part of the cache's key alone."""
    record = None
    for record in rows():
        problem = record if isinstance(record, str) else _problem(record)
        yield record if problem is None else {"problem": problem}
    if record is None:  # `datasets` cannot hold a set without rows
        raise UserError(f"empty corpus: {CorpusReport(name).summary()}; expected at least one usable pair")


def _problem(record: dict[str, Any]) -> str | None:
    """Why a pair cannot be used; None for a good one."""
    for side in ("source", "target"):
        if not isinstance(record[side], str):
            return f"{side} is not text"
        if not is_unicode(record[side]):
            return f"{side} is not UTF-8"
    empty = [side for side in ("source", "target") if not record[side].strip()]
    if empty:
        return "both sides empty" if len(empty) == 2 else f"{empty[0]} empty"
    if record.get("document", "any") == "" or not is_unicode(record.get("document", "")):
        return "no name of a document"
    return None
