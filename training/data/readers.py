"""Reads text files and tables row by row, so that what is wrong with one row costs no other row.

A new kind of table is one reader and one line of `TABLE_READERS`.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from reluformer.configuration.errors import UserError, one_line

# Where a row stands, and its values by column, or the reason for which it cannot be read.
Row = tuple[str, dict[str, Any] | str]

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".zst")
_OTHER_CONTENT = {
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
    b"\x1f\x8b": "gzip data",
    b"\x28\xb5\x2f\xfd": "zstd data",
    b"\xfd7zXZ\0": "xz data",
    b"PK\x03\x04": "zip data",
}
_HEAD_BYTES = 4_096
# Characters. The limit of `csv`, 131,072, is less than a long document.
_LONGEST_FIELD = 2**24


def text_lines(path: Path | BinaryIO) -> Iterator[str]:
    """The lines of a text file, each with its "\\n", without a byte order mark.

    Only "\\n" ends a line, so that no other separator within a sentence puts two files out of step. Files that end in .gz, .bz2
    or .zst are decompressed. Bytes that are not UTF-8 become lone surrogates, see `is_unicode`.

    Raises:
        UserError: a file that cannot be read or decompressed, or that is no text in UTF-8.
    """
    import pyarrow as pa  # here, since it takes a third of a second, which `--help` need not wait for

    try:
        opened = pa.input_stream(str(path)) if isinstance(path, Path) else path
        with io.BufferedReader(opened) as stream:
            _check_encoding(stream.peek(_HEAD_BYTES)[:_HEAD_BYTES], path)
            for number, line in enumerate(stream):
                line = line if number else line.removeprefix(codecs.BOM_UTF8)
                yield line.decode("utf-8", "surrogateescape")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({one_line(error)}); fetch or compress the file again") from error


def without_line_end(line: str) -> str:
    """The line without "\\n" or "\\r\\n" at its end."""
    return line.removesuffix("\n").removesuffix("\r")


def _check_encoding(head: bytes, path: object) -> None:
    """Raises `UserError` for a beginning of a file that is no text in UTF-8."""
    found = [kind for mark, kind in _OTHER_CONTENT.items() if head.startswith(mark)]
    # Every other byte of Latin text in UTF-16 is NUL, and NUL is valid UTF-8.
    found += ["UTF-16 or no text at all by its NUL bytes"] * (head.count(0) >= max(4, len(head) // 4))
    if found:
        raise UserError(
            f"{path}: is {found[0]}; expected text in UTF-8, or a name that ends in {', '.join(COMPRESSED_SUFFIXES)}: "
            "convert it (`iconv -f UTF-16 -t UTF-8`), rename it or unpack it"
        )


def is_unicode(text: str) -> bool:
    """Whether a text has no lone surrogates, which stand for bytes that are not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def without_compression(path: PurePath) -> PurePath:
    """The path without .gz, .bz2 or .zst at its end."""
    return path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path


def refuse_table(path: PurePath, instead: str) -> None:
    """Raises `UserError` for a file that is named as a table; `instead` says what to do with it."""
    suffix = without_compression(path).suffix.lower()
    if suffix in TABLE_READERS:
        raise UserError(f"{path}: is a table by its name ({suffix}); expected text, one sentence a line: {instead}")


def content_hash(path: Path) -> str:
    """Hash of the content of a file; raises `UserError` for a pipe, which would be empty the second time."""
    if not path.is_file():
        raise UserError(f"{path}: is not a regular file, and a corpus is read more than once; write the text to a file")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def table_rows(path: Path, delimiter: str | None = None) -> Iterator[Row]:
    """The rows of a table, read by the end of its name; `delimiter` separates the columns of CSV (comma) or TSV (tab).

    Raises:
        UserError: a file that cannot be read, or that is not what its name says.
    """
    reader = TABLE_READERS.get(without_compression(path).suffix.lower())
    if reader is None:
        raise UserError(
            f"{path}: expected a table, a file ending in {', '.join(TABLE_READERS)}; text tables also with "
            f"{', '.join(COMPRESSED_SUFFIXES)}"
        )
    return reader(path, delimiter)


def _csv_rows(path: Path, delimiter: str | None) -> Iterator[Row]:
    """CSV, in which a quoted text may have line breaks."""
    return _with_header(path, _csv_fields(path, delimiter or ","))


def _csv_fields(path: Path, delimiter: str) -> Iterator[tuple[str, list[str] | str]]:
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader(text_lines(path), delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            yield f"{path}:{line}", next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if reader.line_num > line or str(error) == "unexpected end of data":
                raise UserError(
                    f"{path}:{line}: a quotation that begins in this row does not end as it should by line "
                    f"{reader.line_num:,} ({error}); close it, or write a quotation mark inside a quotation twice"
                ) from error
            yield f"{path}:{line}", f"row cannot be read ({error})"


def _tsv_rows(path: Path, delimiter: str | None) -> Iterator[Row]:
    """TSV, in which a quotation mark is a character like any other."""
    lines = enumerate(text_lines(path), 1)
    fields = ((f"{path}:{number}", line.rstrip("\r\n").split(delimiter or "\t")) for number, line in lines)
    return _with_header(path, fields)


def _with_header(path: Path, rows: Iterator[tuple[str, list[str] | str]]) -> Iterator[Row]:
    _, header = next(rows, (None, []))
    if isinstance(header, str) or len(set(header)) < max(len(header), 1):
        raise UserError(f"{path}: its first line is {header!r}; expected the names of the columns, each of them once")
    for place, fields in rows:
        if isinstance(fields, str):
            yield place, fields
        elif len(fields) != len(header):
            yield place, "number of fields is not that of the first line"
        else:
            yield place, dict(zip(header, fields, strict=True))


def _json_line_rows(path: Path, delimiter: str | None) -> Iterator[Row]:
    """One JSON object a line."""
    for number, line in enumerate(text_lines(path), 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            yield f"{path}:{number}", "line is not JSON"
        else:
            yield f"{path}:{number}", record if isinstance(record, dict) else "not a JSON object"


def _json_rows(path: Path, delimiter: str | None) -> Iterator[Row]:
    """A list of JSON objects, or one object a line."""
    content = "".join(text_lines(path))
    if not content.lstrip().startswith("["):
        yield from _json_line_rows(path, delimiter)
        return
    try:
        records = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not JSON ({one_line(error)}); expected a list of objects") from error
    for number, record in enumerate(records):
        yield f"{path}: item {number}", record if isinstance(record, dict) else "not a JSON object"


def _parquet_rows(path: Path, delimiter: str | None) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(1_000):
                for record in batch.to_pylist():
                    yield f"{path}: row {number}", record
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read as Parquet ({one_line(error)}); fetch or write it again") from error


TABLE_READERS: dict[str, Callable[[Path, str | None], Iterator[Row]]] = {
    ".csv": _csv_rows,
    ".tsv": _tsv_rows,
    ".jsonl": _json_line_rows,
    ".json": _json_rows,
    ".parquet": _parquet_rows,
}
