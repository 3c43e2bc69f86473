"""Parallel text from files or from `datasets`: every pair is kept, or counted with the reason and its first place.

What was read is kept on disk (see `arrow_cache`) and mapped into memory, so that a corpus may be larger than memory and is
read once. Raw text stays raw here; normalisation is the tokenizer's. What makes the whole corpus doubtful (files of different
lengths, broken gzip data, a missing column, nothing left) is a `UserError`; what is wrong with one pair skips that pair
alone.
"""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import datasets
from tqdm.auto import tqdm

from reluformer.configuration.errors import UserError
from reluformer.training.data.arrow_cache import CacheEntry, RowFiles, cached_rows, content_hash
from reluformer.training.data.plain_text import BYTE_ORDER_MARK, HEAD_BYTES, refuse_other_encodings, refuse_table
from reluformer.training.run.redaction import without_secrets

logger = logging.getLogger(__name__)

PAIR_FEATURES = datasets.Features({"source": datasets.Value("string"), "target": datasets.Value("string")})
DOCUMENT_FEATURES = datasets.Features({**PAIR_FEATURES, "document": datasets.Value("string")})
GZIP_MAGIC = b"\x1f\x8b"
FILE_BUILDERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv"}


@dataclass
class CorpusReport:
    """What became of the pairs of one corpus: `read == kept + sum(skipped.values())`.

    `skipped` counts pairs by reason; `first` names the place (file:line, row or pair) of the first one of each. It is the
    same whether the corpus was read now or comes from the cache, which `from_cache` tells.
    """

    from_cache = False  # of this process, no fact about the corpus: not a field

    name: str
    read: int = 0
    kept: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def keep(self) -> None:
        """Count one good pair."""
        self.read += 1
        self.kept += 1

    def skip(self, reason: str, place: str) -> None:
        """Count one pair left out for `reason`; `place` is remembered if it is the first."""
        self.read += 1
        self.skipped[reason] = self.skipped.get(reason, 0) + 1
        self.first.setdefault(reason, place)

    def add(self, other: CorpusReport) -> None:
        """Count what `other` has counted; its pairs come after those of this one."""
        self.read += other.read
        self.kept += other.kept
        for reason, count in other.skipped.items():
            self.skipped[reason] = self.skipped.get(reason, 0) + count
            self.first.setdefault(reason, other.first[reason])

    def require_pairs(self) -> None:
        """Nothing left is a `UserError`."""
        if self.kept == 0:
            raise UserError(f"empty corpus: {self.summary()}; expected at least one usable pair")

    def summary(self) -> str:
        """One line for a log or an error message."""
        line = f"{self.name}: {self.kept:,} of {self.read:,} pairs kept"
        reasons = [f"{count:,} × {reason} (first: {self.first[reason]})" for reason, count in self.skipped.items()]
        return f"{line}; skipped {'; '.join(reasons)}" if reasons else line

    @classmethod
    def of_entry(cls, entry: CacheEntry, name: str) -> CorpusReport:
        """The report that was kept with the rows of `entry`, its skips logged as if they were found now."""
        report = cls(**{**entry.report, "name": name})
        report.from_cache = entry.found
        report.finish()
        return report

    def finish(self) -> None:
        """Log the skips; nothing left is a `UserError`."""
        self.require_pairs()
        if self.skipped:
            logger.warning(self.summary())


class DocumentOrder:
    """Sees to it that every row of a corpus names its document, and that the rows of one document stand together."""

    def __init__(self) -> None:
        self._last: str | None = None
        self._first_row: dict[str, str] = {}

    def check(self, name: object, place: str) -> str:
        """The name of the row's document. `place`: file:line or row, for an error.

        Raises `UserError`: no name, or a document that was left for another one before.
        """
        if name is None or not str(name).strip():
            raise UserError(
                f"{place}: names no document (empty, or not text); each pair needs the name of its document"
            )
        name = str(name).strip()
        if name != self._last:
            if name in self._first_row:
                raise UserError(
                    f"{place}: document {name!r} begins again after {self._last!r}; it was first at "
                    f"{self._first_row[name]}. The sentences of one document must stand together"
                )
            self._first_row[name], self._last = place, name
        return name


def read_parallel_files(
    source: str | Path, target: str | Path, *, name: str, documents: str | Path | None = None
) -> tuple[datasets.Dataset, CorpusReport]:
    """Read two text files, plain or gzip, line n of one translating line n of the other.

    A line ends at "\\n" alone (a "\\r" before it is dropped), so no other separator can shift the alignment. A pair
    with an empty line or with bytes that are not UTF-8 on either side is skipped and counted with file:line of the
    first.

    Line n of `documents` names the document of pair n.

    Returns the columns "source" and "target", with `documents` "document" too, and the report.

    The pairs go to the cache a few at a time. `documents` keeps the names of all documents in memory.

    Raises `UserError`: a missing, unreadable or broken file, a table or text in UTF-16; different numbers of lines; no pair
    left; a line of `documents` that is empty or not UTF-8, or a document that begins twice; a cache that cannot be written
    to.
    """
    given = {"source": source, "target": target, **({"document": documents} if documents is not None else {})}
    paths = {side: _existing_file(path, name) for side, path in given.items()}
    hashes = {path: content_hash(path) for path in set(paths.values())}
    for path in hashes:
        _refuse_other_encodings(path)  # here, since a cache may hold what an earlier version has read
    if paths["source"] != paths["target"] and len({hashes[paths["source"]], hashes[paths["target"]]}) == 1:
        logger.warning("%s: source %s and target %s hold the same text", name, paths["source"], paths["target"])
    # Places in the report name the files, so their paths belong to the key.
    facts = {"files": {side: [str(path), hashes[path]] for side, path in paths.items()}}
    entry = cached_rows("pairs", facts, lambda folder: asdict(_write_parallel_files(paths, name, folder)))
    return entry.rows, CorpusReport.of_entry(entry, name)


def _write_parallel_files(paths: dict[str, Path], name: str, folder: Path) -> CorpusReport:
    report, order = CorpusReport(name), DocumentOrder()
    features = DOCUMENT_FEATURES if "document" in paths else PAIR_FEATURES
    counts = dict.fromkeys(paths, 0)
    lines = zip_longest(*(_read_lines(path) for path in paths.values()))
    with RowFiles(folder, "pairs", features) as rows:
        for number, row in enumerate(tqdm(lines, desc=f"reading {name}", unit=" lines", delay=2), 1):
            for side, line in zip(paths, row, strict=True):
                counts[side] += line is not None
            if None in row:
                continue  # read on: the error below names the true counts
            texts = dict(zip(paths, map(_decode_line, row), strict=True))
            if "document" in paths:
                texts["document"] = order.check(texts["document"], f"{paths['document']}:{number}")
            side, problem = _first_problem(texts["source"], texts["target"], "is not UTF-8")
            if problem:
                report.skip(problem, f"{paths[side]}:{number}")
                continue
            report.keep()
            rows.append(texts)
    _check_counts(name, paths, counts)
    report.require_pairs()
    return report


def _check_counts(name: str, paths: dict[str, Path], counts: dict[str, int]) -> None:
    if len(set(counts.values())) == 1:
        return
    found = " and ".join(f"{counts[side]:,} in {path}" for side, path in paths.items())
    shortest = min(counts, key=counts.get)
    raise UserError(
        f"{name}: parallel files must have the same number of lines, found {found}: {paths[shortest]}:"
        f"{counts[shortest] + 1} is missing; give the files of one aligned corpus"
    )


def _existing_file(path: str | Path, name: str) -> Path:
    path = Path(path).expanduser()
    if not path.exists():
        raise UserError(f"{name}: file not found: {path}")
    if path.is_dir():
        raise UserError(f"{name}: expected a text file (plain or .gz), found a folder: {path}")
    refuse_table(
        path,
        "give a table as data.dataset.path (with data.dataset.translation_column null where each language is a column), or "
        "rename the file if it is plain text",
    )
    return path


def _refuse_other_encodings(path: Path) -> None:
    lines = _read_lines(path)
    next(lines, None)
    lines.close()


def _read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a plain or gzip file (told by its first bytes) as bytes without the line end."""
    number = 0
    try:
        with path.open("rb") as raw:
            head = raw.peek(2)[:2]
            if path.suffix == ".gz" and head and head != GZIP_MAGIC:
                raise UserError(f"{path}: named .gz, but its content is not gzip; rename it or compress it")
            content = gzip.GzipFile(fileobj=raw) if head == GZIP_MAGIC else raw
            refuse_other_encodings(content.peek(HEAD_BYTES)[:HEAD_BYTES], path)
            for number, line in enumerate(content, 1):
                if number == 1:
                    line = line.removeprefix(BYTE_ORDER_MARK)
                yield line.removesuffix(b"\n").removesuffix(b"\r")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: broken gzip data after line {number:,} ({error}); fetch the file again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _decode_line(line: bytes) -> str | None:
    """The text, or None if the bytes are not UTF-8."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return None  # the caller counts it


def _first_problem(source: object, target: object, not_text: str) -> tuple[str, str | None]:
    """The side and the reason for which a pair cannot be used; the reason is None for a good pair."""
    if not isinstance(source, str):
        return "source", f"source {not_text}"
    if not isinstance(target, str):
        return "target", f"target {not_text}"
    empty_source, empty_target = not source.strip(), not target.strip()
    if empty_source and empty_target:
        return "source", "both sides empty"
    if empty_source:
        return "source", "source empty"
    return "target", "target empty" if empty_target else None


def read_dataset(
    path: str,
    name: str | None,
    split: str,
    *,
    revision: str | None = None,
    translation_column: str | None = "translation",
    source_language: str,
    target_language: str,
    data_files: str | list[str] | dict[str, str] | None = None,
    document_column: str | None = None,
) -> tuple[datasets.Dataset, CorpusReport]:
    """Read one split of a `datasets` set whose `translation_column` holds {language: text}.

    `path` is what `datasets.load_dataset` takes (a Hub id, a folder of data files, or a builder such as "json" together
    with `data_files`), a folder written by `save_to_disk`, or one .json, .jsonl, .parquet or .csv file, which is then
    the split asked for. With `translation_column=None` the languages are columns themselves. A pair with a null, an
    empty or a non-text side is skipped and counted with the row (from 0) of the first. `document_column` holds the name
    or number of each pair's document.

    Returns the columns "source" and "target", with `document_column` "document" too, and the report.

    Raises `UserError`: a set that cannot be loaded; a missing split, column or language (listing those there are); no
    pair left; a row without a document, or a document that begins twice.
    """
    loaded = _load(path, name, split, revision, data_files)
    label = without_secrets(" ".join(part for part in (path, name, split) if part))
    languages = (source_language, target_language)
    _check_columns(loaded, label, translation_column, languages, document_column)
    facts = {
        "set": loaded._fingerprint,  # of what was loaded, by `datasets`
        "files": [_file_facts(Path(file["filename"])) for file in loaded.cache_files],
        "label": label,
        "columns": [translation_column, *languages, document_column],
    }
    entry = cached_rows("set", facts, lambda folder: asdict(_write_dataset(loaded, facts, folder)))
    return entry.rows, CorpusReport.of_entry(entry, label)


def _file_facts(path: Path) -> list[str | int]:
    status = path.stat()
    return [str(path), status.st_size, status.st_mtime_ns]


def _write_dataset(loaded: datasets.Dataset, facts: dict[str, Any], folder: Path) -> CorpusReport:
    label, (translation_column, *languages, document_column) = facts["label"], facts["columns"]
    report, order = CorpusReport(label), DocumentOrder()

    features = DOCUMENT_FEATURES if document_column else PAIR_FEATURES
    bar = tqdm(loaded, desc=f"reading {label}", unit=" pairs", delay=2)
    with RowFiles(folder, "pairs", features) as rows:
        for number, row in enumerate(bar):
            texts = row if translation_column is None else row[translation_column] or {}
            source, target = (texts.get(language) for language in languages)
            names = {}
            if document_column:
                names["document"] = order.check(row[document_column], f"{label}: row {number}")
            _, problem = _first_problem(source, target, "is not text")
            if problem:
                report.skip(problem, f"row {number}")
                continue
            report.keep()
            rows.append({"source": source, "target": target, **names})
    report.require_pairs()
    return report


def _load(path: str, name: str | None, split: str, revision: str | None, data_files) -> datasets.Dataset:
    local = Path(path).expanduser()
    if data_files is None and ((local / "dataset_dict.json").exists() or (local / "state.json").exists()):
        return _load_saved(local, split)
    if data_files is None and local.is_file():
        suffixes = [suffix for suffix in local.suffixes if suffix != ".gz"][-1:] or [""]
        if suffixes[0] not in FILE_BUILDERS:
            raise UserError(
                f"{local}: expected a file ending in {', '.join(FILE_BUILDERS)}, or two parallel text files"
            )
        path, data_files = FILE_BUILDERS[suffixes[0]], {split.split("[")[0]: str(local)}
    try:
        return datasets.load_dataset(path, name, split=split, revision=revision, data_files=data_files)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(f"{error}{f' ({error.__cause__})' if error.__cause__ else ''}".split())
        fault = f"data set {path!r} (name {name!r}, split {split!r}) cannot be loaded: {reason}"
        raise UserError(without_secrets(fault)) from error


def _load_saved(folder: Path, split: str) -> datasets.Dataset:
    """A folder written by `save_to_disk`: a `DatasetDict`, or one `Dataset`, whose split is then its own."""
    saved = datasets.load_from_disk(str(folder))
    if isinstance(saved, datasets.Dataset):
        saved = {str(saved.split) if saved.split else split: saved}
    if split not in saved:
        raise UserError(f"{folder}: no split {split!r}; there are: {', '.join(saved)}")
    return saved[split]


def _check_columns(
    loaded: datasets.Dataset, label: str, column: str | None, languages: tuple[str, str], document_column: str | None
) -> None:
    if document_column is not None and document_column not in loaded.column_names:
        raise UserError(f"{label}: no document column {document_column!r}; there are: {', '.join(loaded.column_names)}")
    if column is None:
        missing, present = [name for name in languages if name not in loaded.column_names], loaded.column_names
        if missing:
            raise UserError(f"{label}: no column {missing[0]!r}; there are: {', '.join(present)}")
        return
    if column not in loaded.column_names:
        raise UserError(f"{label}: no translation column {column!r}; there are: {', '.join(loaded.column_names)}")
    feature = loaded.features[column]
    present = feature.languages if isinstance(feature, datasets.Translation) else feature
    if not isinstance(present, (dict, list, tuple)):
        raise UserError(f"{label}: column {column!r} must hold {{language: text}} in each row, found {feature}")
    for language in languages:
        if language not in present:
            raise UserError(f"{label}: no language {language!r} in column {column!r}; there are: {', '.join(present)}")
