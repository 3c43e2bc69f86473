"""A recipe's source of texts → its documents, in order: files, sources of packages, or rows of a data set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any

from reluformer.configuration.errors import UserError
from reluformer.configuration.language_recipe import SplitConfig, TextDataConfig, TextDataset, TextSource
from reluformer.configuration.splits import SPLITS
from reluformer.training.data.arrow_cache import content_hash, files_hash
from reluformer.training.data.compressed import content_lines
from reluformer.training.data.corpora import CorpusNotFound, DocumentOrder, existing_file
from reluformer.training.data.data_sets import load_set, set_facts
from reluformer.training.data.package_sources import package_files
from reluformer.training.data.plain_text import refuse_table

Keep = Callable[[str], bool]
_NAMED = "expected a text file (plain, .gz or .zst)"


@dataclass(frozen=True)
class Document:
    """One text. name: the same wherever the corpus lies: a path in it, or a number. text: None where its bytes are not UTF-8."""

    name: str
    text: str | None


@dataclass(frozen=True)
class Documents:
    """The documents of a split.

    facts: everything that decides them, in types of JSON. read: goes through them in order.
    """

    facts: dict[str, Any]
    read: Callable[[], Iterator[Document]]


def has_texts(data: TextDataConfig, split: str) -> bool:
    """Whether the recipe has documents for the split."""
    return data.source(split) is not None


def split_documents(data: TextDataConfig, split: str) -> Documents:
    """The documents of a split.

    Args:
        data: the recipe's section.
        split: "train", "validation" or "test".

    Raises:
        UserError: the recipe has no such split, or its files cannot be used; `read` raises it for what is found later.
    """
    source = data.source(split)
    if source is None:
        have = ", ".join(name for name in SPLITS if has_texts(data, name))
        raise UserError(f"data: the recipe has no {split} split; give data.{split} (splits it has: {have})")
    shares = data.shares if data.corpus is not None else None
    keep: Keep = _everything if shares is None else lambda name: split_of(name, shares) == split
    facts = {"split": None if shares is None else [split, shares.validation, shares.test, shares.seed]}
    try:
        if source.dataset is not None:
            return _of_dataset(source.dataset, keep, facts)
        if source.documents is not None:
            return _of_lines(source, keep, facts, split)
        return _of_files(corpus_files(source), keep, facts)
    except CorpusNotFound as error:
        if data.homepage is None:
            raise
        raise UserError(f"{error}; the texts are to be had at {data.homepage}") from error


def split_of(name: str, shares: SplitConfig) -> str:
    """The split of a document, by its name and the seed alone."""
    digest = hashlib.blake2b(f"{shares.seed}:{name}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
    place = int.from_bytes(digest) / 2**64
    if place < shares.test:
        return "test"
    return "validation" if place < shares.test + shares.validation else "train"


def corpus_files(source: TextSource) -> dict[str, Path]:
    """Name → path of the files of a source that is no data set, sorted by name.

    A file below a folder is named by its path from there, any other one as it is given.

    Raises:
        CorpusNotFound: a path that does not exist.
        UserError: a folder without a file of the pattern, a file that is given twice, a package that is not installed.
    """
    if source.packages is not None:
        return package_files(source.packages)
    files: dict[str, Path] = {}
    for given in source.all_paths():
        path = Path(given).expanduser()
        if path.is_dir():
            found = {each.relative_to(path).as_posix(): each for each in path.rglob(source.pattern) if each.is_file()}
            if not found:
                raise UserError(f"{given}: holds no file {source.pattern!r}; give another folder or data.….pattern")
        else:
            found = {given: existing_file(path, "data", _NAMED)}
        if twice := sorted(files.keys() & found.keys()):
            raise UserError(f"data: {twice[0]!r} is there twice, in {given} too; give each file once")
        files |= found
    return dict(sorted(files.items()))


def _everything(name: str) -> bool:
    return True


def _of_files(files: dict[str, Path], keep: Keep, facts: dict[str, Any]) -> Documents:
    chosen = {name: path for name, path in files.items() if keep(name)}
    for path in chosen.values():
        refuse_table(path, "give text files, or a table by data.….dataset")

    def read() -> Iterator[Document]:
        for name, path in chosen.items():
            yield Document(name, _decoded(b"".join(content_lines(path))))

    return Documents({**facts, "files": files_hash(chosen)}, read)


def _of_lines(source: TextSource, keep: Keep, facts: dict[str, Any], split: str) -> Documents:
    """The lines of one file, joined to documents by the names in another."""
    text, names = (existing_file(path, f"data.{split}", _NAMED) for path in (source.all_paths()[0], source.documents))
    refuse_table(text, "give a text file")
    wanted = None if source.only is None else set(source.only)

    def read() -> Iterator[Document]:
        missing = set(wanted or ())
        for name, rows in groupby(_named_lines(text, names), itemgetter(0)):
            lines = [line for _, line in rows]
            missing.discard(name)
            if keep(name) and (wanted is None or name in wanted):
                yield Document(name, _decoded(b"".join(lines)))
        if missing:
            raise UserError(f"data.{split}.only: no document {min(missing)!r} in {names}; name one that is there")

    hashes = [content_hash(text), content_hash(names)]
    return Documents({**facts, "lines": hashes, "only": source.only}, read)


def _named_lines(text: Path, names: Path) -> Iterator[tuple[str, bytes]]:
    """Each line with the name of its document."""
    order, counts = DocumentOrder(), [0, 0]
    for number, (line, name) in enumerate(zip_longest(content_lines(text), content_lines(names)), start=1):
        counts = [counts[0] + (line is not None), counts[1] + (name is not None)]
        if line is not None and name is not None:
            yield order.check(_decoded(name), f"{names}:{number}"), line
    if counts[0] != counts[1]:
        raise UserError(
            f"data: {text} has {counts[0]:,} lines and {names} {counts[1]:,}; expected the name of a document for each line"
        )


def _of_dataset(given: TextDataset, keep: Keep, facts: dict[str, Any]) -> Documents:
    rows = load_set(given.path, given.name, given.split, given.revision)
    if given.column not in rows.column_names:
        raise UserError(
            f"data: {given.path} has no column {given.column!r}; give column as one of {', '.join(rows.column_names)}"
        )

    def read() -> Iterator[Document]:
        for number, row in enumerate(rows.select_columns(given.column)):
            if keep(str(number)):
                text = row[given.column]
                yield Document(str(number), text if isinstance(text, str) else None)

    return Documents({**facts, **set_facts(rows), "column": given.column}, read)


def _decoded(content: bytes) -> str | None:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None
