"""Parallel text from two files of lines: every pair is kept, or counted with the reason and its first place.

What was read is kept on disk (see `arrow_cache`) and mapped into memory, so that a corpus may be larger than memory and is
read once. Raw text stays raw here; normalisation is the tokenizer's. What makes the whole corpus doubtful (files of different
lengths, damaged data, nothing left) is a `UserError`; what is wrong with one pair skips that pair alone.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path

import datasets
from tqdm.auto import tqdm

from reluformer.configuration.errors import UserError
from reluformer.training.data.arrow_cache import CacheEntry, RowFiles, cached_rows, content_hash
from reluformer.training.data.compressed import content_lines
from reluformer.training.data.plain_text import refuse_table

logger = logging.getLogger(__name__)

PAIR_FEATURES = datasets.Features({"source": datasets.Value("string"), "target": datasets.Value("string")})
DOCUMENT_FEATURES = datasets.Features({**PAIR_FEATURES, "document": datasets.Value("string")})


class CorpusNotFound(UserError):
    """A file that is not there, or a set that cannot be reached: who knows where the corpus is to be had can say so."""


@dataclass
class CorpusReport:
    """What became of the pairs (or what `unit` says) of one corpus: `read == kept + sum(skipped.values())`.

    `skipped` counts pairs by reason; `first` names the place (file:line, row or pair) of the first one of each. It is the
    same whether the corpus was read now or comes from the cache, which `from_cache` tells.
    """

    from_cache = False  # of this process, no fact about the corpus: not a field
    unit = "pairs"

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
            raise UserError(
                f"empty corpus: {self.summary()}; expected at least one usable {self.unit.removesuffix('s')}"
            )

    def summary(self) -> str:
        """One line for a log or an error message."""
        line = f"{self.name}: {self.kept:,} of {self.read:,} {self.unit} kept"
        reasons = [f"{count:,} × {reason} (first: {self.first[reason]})" for reason, count in self.skipped.items()]
        return f"{line}; skipped {'; '.join(reasons)}" if reasons else line

    @classmethod
    def of_entry(cls, entry: CacheEntry, name: str) -> CorpusReport:
        """The report that was kept with the rows of `entry`. Nothing left is a `UserError`."""
        report = cls(**{**entry.report, "name": name})
        report.from_cache = entry.found
        report.require_pairs()
        return report


class DocumentOrder:
    """Sees to it that every row of a corpus names its document, and that the rows of one document stand together."""

    def __init__(self) -> None:
        self._last: str | None = None
        self._first_row: dict[str, str] = {}

    def check(self, name: object, place: str) -> str:
        """The name of the row's document. `place`: file:line or row, for an error.

        Raises `UserError`: no name, or a document that was left for another one before.
        """
        if name is None or not str(name).strip() or not _is_unicode(str(name)):
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
    """Read two text files, plain, gzip or zstd, line n of one translating line n of the other.

    A line ends at "\\n" alone (a "\\r" before it is dropped), so no other separator can shift the alignment. A pair
    with an empty line or with bytes that are not UTF-8 on either side is skipped and counted with file:line of the
    first.

    Line n of `documents` names the document of pair n.

    Returns the columns "source" and "target", with `documents` "document" too, and the report.

    The pairs go to the cache a few at a time. `documents` keeps the names of all documents in memory.

    Raises `CorpusNotFound`: a missing file. Raises `UserError`: an unreadable or broken file, a table or text in UTF-16;
    different numbers of lines; no pair left; a line of `documents` that is empty or not UTF-8, or a document that begins
    twice; a cache that cannot be written to.
    """
    given = {"source": source, "target": target, **({"document": documents} if documents is not None else {})}
    paths = {side: _text_file(path, name) for side, path in given.items()}
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
    lines = zip_longest(*(content_lines(path) for path in paths.values()))
    with RowFiles(folder, "pairs", features) as rows:
        for number, row in enumerate(tqdm(lines, desc=f"reading {name}", unit=" lines", delay=2, disable=None), 1):
            for side, line in zip(paths, row, strict=True):
                counts[side] += line is not None
            if None in row:
                continue  # read on: the error below names the true counts
            texts = dict(zip(paths, map(_decode_line, row), strict=True))
            if "document" in paths:
                texts["document"] = order.check(texts["document"], f"{paths['document']}:{number}")
            side, problem = first_problem(texts["source"], texts["target"], "is not UTF-8")
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


def existing_file(path: str | Path, name: str, expected: str) -> Path:
    """The path of a file of corpus `name`; `expected` says what it should be, for errors.

    Raises `CorpusNotFound`: there is none. Raises `UserError`: a folder.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise CorpusNotFound(f"{name}: file not found: {path}")
    if path.is_dir():
        raise UserError(f"{name}: expected {expected}, found a folder: {path}")
    return path


def _text_file(path: str | Path, name: str) -> Path:
    path = existing_file(path, name, "a text file (plain, .gz or .zst)")
    refuse_table(path, "give a table as data.tables, or rename the file if it is plain text")
    return path


def _refuse_other_encodings(path: Path) -> None:
    lines = content_lines(path)
    next(lines, None)
    lines.close()


def _decode_line(line: bytes) -> str | None:
    """The text without its line end, or None if the bytes are not UTF-8."""
    try:
        return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        return None  # the caller counts it


def first_problem(source: object, target: object, not_text: str) -> tuple[str, str | None]:
    """The side and the reason for which a pair cannot be used; the reason is None for a good pair.

    `not_text`: the reason where a side is no `str`.
    """
    for side, text in (("source", source), ("target", target)):
        if not isinstance(text, str):
            return side, f"{side} {not_text}"
        if not _is_unicode(text):
            return side, f"{side} is not UTF-8"
    empty_source, empty_target = not source.strip(), not target.strip()
    if empty_source and empty_target:
        return "source", "both sides empty"
    if empty_source:
        return "source", "source empty"
    return "target", "target empty" if empty_target else None


def _is_unicode(text: str) -> bool:
    """Whether a text has no lone surrogates, which stand for bytes that are not UTF-8 and cannot be written."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
