"""Reads text files and tables row by row, so that what is wrong with one row costs no other row.

A new kind of table is one reader and one line of `TABLE_READERS`.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from reluformer.configuration.errors import UserError, one_line

# Where a row stands, and its values by column, or the reason for which it cannot be read. A field inside another is the column
# `outer.inner`.
Row = tuple[str, dict[str, Any] | str]

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".zst")
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
            if b"\0" in stream.peek(_HEAD_BYTES)[:_HEAD_BYTES]:
                raise UserError(
                    f"{path}: holds NUL bytes, as UTF-16 and compressed files do; expected text in UTF-8, or a name that ends in "
                    f"{', '.join(COMPRESSED_SUFFIXES)}: convert it (`iconv -f UTF-16 -t UTF-8`), rename it or unpack it"
                )
            for number, line in enumerate(stream):
                line = line if number else line.removeprefix(codecs.BOM_UTF8)
                yield line.decode("utf-8", "surrogateescape")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({one_line(error)}); fetch or compress the file again") from error


def without_line_end(line: str) -> str:
    """The line without "\\n" or "\\r\\n" at its end."""
    return line.removesuffix("\n").removesuffix("\r")


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


def _kind(path: PurePath) -> str:
    return without_compression(path).suffix.lower()


def refuse_table(path: PurePath, instead: str) -> None:
    """Raises `UserError` for a file that is named as a table; `instead` says what to do with it."""
    if _kind(path) in TABLE_READERS:
        raise UserError(
            f"{path}: is a table by its name ({_kind(path)}); expected text, one sentence a line: {instead}"
        )


def table_rows(path: Path, delimiter: str | None = None) -> Iterator[Row]:
    """The rows of a table, read by the end of its name; `delimiter` separates the columns of CSV (comma) or TSV (tab).

    Raises:
        UserError: a file that cannot be read, or that is not what its name says.
    """
    if _kind(path) not in TABLE_READERS:
        raise UserError(
            f"{path}: expected a table, a file ending in {', '.join(TABLE_READERS)}; text tables also with "
            f"{', '.join(COMPRESSED_SUFFIXES)}"
        )
    return TABLE_READERS[_kind(path)](path, delimiter)


def _separated_rows(path: Path, delimiter: str | None) -> Iterator[Row]:
    """CSV, in which a quoted text may have line breaks, or TSV, in which a quotation mark is a character like any other."""
    csv.field_size_limit(_LONGEST_FIELD)
    of_kind = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if _kind(path) == ".tsv" else {"delimiter": ","}
    of_kind |= {} if delimiter is None else {"delimiter": delimiter}
    reader = csv.reader(text_lines(path), strict=True, **of_kind)
    header = next(reader, [])
    if len(set(header)) < max(len(header), 1):
        raise UserError(f"{path}: its first line is {header!r}; expected the names of the columns, each of them once")
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if reader.line_num > line or str(error) == "unexpected end of data":
                raise UserError(
                    f"{path}:{line}: a quotation that begins in this row does not end as it should by line "
                    f"{reader.line_num:,} ({error}); close it, or write a quotation mark inside a quotation twice"
                ) from error
            yield f"{path}:{line}", f"row cannot be read ({error})"
        else:
            is_whole = len(fields) == len(header)
            problem = "number of fields is not that of the first line"
            yield f"{path}:{line}", dict(zip(header, fields, strict=True)) if is_whole else problem


def _json_line_rows(path: Path, delimiter: str | None) -> Iterator[Row]:
    """One JSON object a line."""
    for number, line in enumerate(text_lines(path), 1):
        try:
            yield f"{path}:{number}", _columns(json.loads(line))
        except (ValueError, RecursionError):
            yield f"{path}:{number}", "line is not JSON"


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
        yield f"{path}: item {number}", _columns(record)


def _parquet_rows(path: Path, delimiter: str | None) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            rows = (record for batch in file.iter_batches(1_000) for record in batch.to_pylist())
            for number, record in enumerate(rows):
                yield f"{path}: row {number}", _columns(record)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read as Parquet ({one_line(error)}); fetch or write it again") from error


def _columns(record: Any, prefix: str = "") -> dict[str, Any] | str:
    """A record with its fields inside others as `outer.inner`, or why it is none."""
    if not isinstance(record, Mapping):
        return "not an object with columns"
    columns: dict[str, Any] = {}
    for name, value in record.items():
        is_nested = isinstance(value, Mapping)
        columns |= _columns(value, f"{prefix}{name}.") if is_nested else {f"{prefix}{name}": value}
    return columns


TABLE_READERS: dict[str, Callable[[Path, str | None], Iterator[Row]]] = {
    ".csv": _separated_rows,
    ".tsv": _separated_rows,
    ".jsonl": _json_line_rows,
    ".json": _json_rows,
    ".parquet": _parquet_rows,
}
