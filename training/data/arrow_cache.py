"""What was read or encoded once is kept on disk and mapped into memory: Arrow files in the cache of `datasets`.

Each entry is a folder `reluformer/<kind>-<key>` of that cache (`HF_DATASETS_CACHE`). The key is a hash of everything that
decides what is in it, the content of corpus files included, so an entry is never out of date: what has changed has another
key. An entry is written whole or not at all, by one process, while the others that want it wait and then map the same
files. Entries are not removed; the folder can be deleted at any time that nothing trains.

Files are written by `ArrowWriter`, mapped by `datasets` and encoded by its `map`. Its `from_generator` does not serve here:
it finds an entry again by the path of a file whose content has changed, it wraps each error into one of its own, and it has no
place for what was skipped, which must appear and disappear together with the rows.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from datasets.arrow_writer import ArrowWriter
from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from reluformer.configuration.errors import UserError, one_line

logger = logging.getLogger(__name__)

# Part of every key: another number where the same input is read or encoded in another way than before.
FORMAT = 1
ENTRY_FILE = "entry.json"
# Rows of a record batch, which is collected as Python objects before it is written, and looked at where a single row is read.
ROWS_PER_RECORD_BATCH = 1_000
ROWS_PER_FILE = 500_000
_HASHED_AT_ONCE = 1 << 20
_REFUSALS = tuple(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "EIO", "ENOTDIR", "EEXIST", "ENOLCK")
    if hasattr(errno, name)  # Windows has no EDQUOT
)

Report = dict[str, Any]


@dataclass(frozen=True)
class CacheEntry:
    """Rows that lie on disk, and what was counted when they were written.

    Args:
        rows: mapped into memory, so that what is resident of it can be given back at any time.
        report: as the writer returned it.
        found: whether it was there already.
    """

    rows: datasets.Dataset
    report: Report
    found: bool


def cached_rows(kind: str, facts: Mapping[str, Any], write: Callable[[Path], Report]) -> CacheEntry:
    """The entry for `facts`, written now if there is none.

    Args:
        kind: the first part of its name.
        facts: everything that decides its content, in types of JSON.
        write: called with an empty folder; leaves Arrow files (`*.arrow`, the rows in the order of the names) there and
            returns a report in types of JSON.

    Raises:
        UserError: a cache that cannot be written to; what `write` raises.
    """
    key = _key({"format": FORMAT, "kind": kind, **facts})
    folder = cache_folder() / f"{kind}-{key}"
    # Before any lock: what is complete can be read from a folder that nobody may write to.
    if (entry := _existing(folder, key)) is not None:
        return entry
    with _only_writer(folder):
        if (entry := _existing(folder, key)) is not None:
            return entry
        partial = folder.with_name(f"{folder.name}.partial")
        for leftover in (partial, folder):  # of a process that was killed; an entry that is damaged
            if leftover.exists():
                shutil.rmtree(leftover)
        try:
            partial.mkdir()
            _complete(partial, facts, write(partial))
            os.replace(partial, folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    entry = _existing(folder, key)
    assert entry is not None
    return CacheEntry(entry.rows, entry.report, found=False)


def cache_folder() -> Path:
    """Where the entries lie."""
    return Path(datasets.config.HF_DATASETS_CACHE).expanduser().absolute() / "reluformer"


def rows_by_file(rows: datasets.Dataset) -> Iterator[datasets.Dataset]:
    """The rows in order: those of an entry one file after the other, any others at once.

    Each file is mapped anew. Pages that were read stay resident as long as their file is mapped, so a pass through an entry
    of many files holds one of them rather than all.
    """
    files = [Path(file["filename"]) for file in rows.cache_files]
    # Whatever changes a set changes its fingerprint, so these are the files as they were written.
    if {path.parent.name.rpartition("-")[2] for path in files} != {rows._fingerprint}:
        yield rows
        return
    for path in files:
        yield datasets.Dataset(datasets.table.MemoryMappedTable.from_file(str(path)), fingerprint=f"{path.stem}")


class RowFiles:
    """Writes rows of text to `<name>-<number>.arrow`, and holds a few of them at a time. A context.

    Args:
        folder: of the files.
        name: the first part of their names.
        features: the columns.
    """

    def __init__(self, folder: Path, name: str, features: datasets.Features) -> None:
        self._folder, self._name, self._features = folder, name, features
        self._files = self._rows_in_file = 0
        self._writer = self._next_writer()

    def append(self, row: Mapping[str, str]) -> None:
        """One row, by column."""
        if self._rows_in_file == ROWS_PER_FILE:
            self._writer.finalize()
            self._writer = self._next_writer()
        self._writer.write(row)
        self._rows_in_file += 1

    def _next_writer(self) -> ArrowWriter:
        path = self._folder / f"{self._name}-{self._files:05d}.arrow"
        self._files, self._rows_in_file = self._files + 1, 0
        return ArrowWriter(path=str(path), features=self._features, writer_batch_size=ROWS_PER_RECORD_BATCH)

    def __enter__(self) -> RowFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None:
            self._writer.finalize()
        else:
            self._writer.close()


def content_hash(path: Path) -> str:
    """Hash of a file's content.

    Raises:
        UserError: a file that cannot be read; a pipe, which would be empty the second time.
    """
    if not path.is_file():
        raise UserError(f"{path}: is no regular file, and a corpus is read more than once; write the text to a file")
    digest = hashlib.blake2b(digest_size=16)
    try:
        with (
            path.open("rb", buffering=0) as file,
            tqdm(
                total=path.stat().st_size, desc=f"hashing {path.name}", unit="B", unit_scale=True, delay=2, disable=None
            ) as bar,
        ):
            while block := file.read(_HASHED_AT_ONCE):
                digest.update(block)
                bar.update(len(block))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def files_hash(files: Mapping[str, Path]) -> str:
    """One hash of the names and contents of files, in their order; see `content_hash`."""
    digest = hashlib.blake2b(digest_size=16)
    for name, path in files.items():
        digest.update(f"{name}\0{content_hash(path)}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _key(facts: Mapping[str, Any]) -> str:
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False)
    # Names of files may hold bytes that are no text.
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()


def _complete(folder: Path, facts: Mapping[str, Any], report: Report) -> None:
    sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("*.arrow"))}
    entry = {"facts": dict(facts), "files": sizes, "report": report}
    (folder / ENTRY_FILE).write_text(json.dumps(entry, indent=2) + "\n", encoding="utf-8")


def _existing(folder: Path, key: str) -> CacheEntry | None:
    """The entry in `folder`; None where there is none, or a file of it was shortened or removed since."""
    try:
        entry = json.loads((folder / ENTRY_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("%s: not used: %s cannot be read (%s)", folder, ENTRY_FILE, one_line(error))
        return None
    files = [folder / name for name in sorted(entry["files"])]
    for path in files:
        if not path.is_file() or path.stat().st_size != entry["files"][path.name]:
            logger.warning("%s: not used: %s is not the file that was written", folder, path.name)
            return None
    tables = [datasets.table.MemoryMappedTable.from_file(str(path)) for path in files]
    table = tables[0] if len(tables) == 1 else datasets.table.concat_tables(tables)
    # The key as fingerprint: whoever derives something from these rows gets the same key in every process.
    return CacheEntry(datasets.Dataset(table, fingerprint=key), entry["report"], found=True)


@contextlib.contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """Lets one process at a time write the entry; others wait. What the disk refuses meanwhile is a `UserError`."""
    try:
        locks = folder.parent / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        lock = FileLock(locks / folder.name)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            tqdm.write(f"waiting for the process that writes {folder.name} into the cache")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()
    except (OSError, NotImplementedError) as error:  # the latter: a file system without locks
        if isinstance(error, OSError) and error.errno not in _REFUSALS:
            raise
        raise UserError(
            f"{folder.parent}: the cache of corpora cannot be written to ({_reason(error)}; {_free(folder)}); make room, "
            "or set HF_DATASETS_CACHE to another folder"
        ) from error


def _reason(error: Exception) -> str:
    return os.strerror(error.errno) if isinstance(error, OSError) else one_line(error)[:200]


def _free(folder: Path) -> str:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return f"{shutil.disk_usage(folder).free / 2**20:,.0f} MiB are free on its disk"
