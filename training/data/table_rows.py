"""The rows of one table with named columns: CSV, TSV, JSON or Parquet. One that cannot be read is lost alone, with its place.

The readers of `datasets` refuse the whole file for one bad row, take the words "null" and "NA" for nothing, and take a `"` at
the beginning of a line of TSV for a quotation over many lines.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reluformer.configuration.errors import UserError, one_line
from reluformer.training.data.columns import names_inside, value_at
from reluformer.training.data.compressed import content_lines
from reluformer.training.data.plain_text import TABLE_SUFFIXES, without_packing

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_OTHER_DELIMITERS = ";\t,|"
# What `csv` says where the text ends inside a quotation, and how it begins where a carriage return ends no line.
_NOT_CLOSED = "unexpected end of data"
_CARRIAGE_RETURN = "new-line character seen in unquoted field"
# Characters. The limit of `csv`, 131,072, is below a long document; one is needed, since a quotation that is not closed would
# take the rest of the file into memory. It holds for the whole process, and so is only ever raised.
_LONGEST_FIELD = 2**24
# Rows of JSON that tell which columns there are.
_FIRST_RECORDS = 1_000
_ROWS_OF_PARQUET = 1_000


class TableRow(NamedTuple):
    """place: of the row, as file:line. values: of the chosen columns, in their order. problem: why there are none."""

    place: str
    values: tuple[Any, ...] = ()
    problem: str | None = None


# Columns that there are, name of the table → those that are wanted; raises a `UserError` for one that is missing.
Choice = Callable[[Sequence[str], str], list[str]]


def table_rows(path: Path, choose: Choice, delimiter: str | None = None) -> Iterator[TableRow]:
    """The rows of a table, read by the end of its name; CSV, TSV and JSON may be packed (.gz, .zst).

    Args:
        path: of the file.
        choose: the columns.
        delimiter: between the columns of CSV or TSV; None: a comma in CSV, a tab in TSV.

    Raises:
        UserError: a file that cannot be read, or is not what its name says; a field whose quotation is not closed, since where
            the next row begins is then not known.
    """
    match table_suffix(path):
        case ".csv" | ".tsv" as suffix:
            return _delimited_rows(path, choose, delimiter or _DELIMITERS[suffix], quoted=suffix == ".csv")
        case ".parquet":
            return _parquet_rows(path, choose)
        case _:
            return _json_rows(path, choose)


def table_suffix(path: Path) -> str:
    """What kind of table a file is by its name.

    Raises:
        UserError: none of `TABLE_SUFFIXES`.
    """
    suffix = without_packing(path).suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise UserError(
            f"{path}: expected a table, a file ending in {', '.join(TABLE_SUFFIXES)}, all but the last also with .gz or .zst"
        )
    return suffix


def _delimited_rows(path: Path, choose: Choice, delimiter: str, *, quoted: bool) -> Iterator[TableRow]:
    # What is not UTF-8 becomes lone surrogates, so that it is known which field it is in.
    lines = (line.decode("utf-8", "surrogateescape") for line in content_lines(path))
    rows = _quoted_rows(path, lines, delimiter) if quoted else _plain_rows(path, lines, delimiter)
    header = _header(next(rows, TableRow(f"{path}:1")), path, delimiter)
    places = [header.index(name) for name in choose(header, str(path))]
    for row in rows:
        if row.problem is None and row.values and len(row.values) != len(header):
            row = TableRow(row.place, problem="number of fields is not that of the first line")
        elif row.problem is None:  # an empty line is a pair of empty texts, as in plain text
            row = TableRow(row.place, tuple(row.values[place] if row.values else "" for place in places))
        yield row


def _plain_rows(path: Path, lines: Iterator[str], delimiter: str) -> Iterator[TableRow]:
    """All fields of the lines of TSV, in which `"` and a carriage return within the line are characters like any other."""
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\n").rstrip("\r")
        yield TableRow(f"{path}:{number}", tuple(line.split(delimiter)) if line else ())


def _quoted_rows(path: Path, lines: Iterator[str], delimiter: str) -> Iterator[TableRow]:
    """All fields of the rows of CSV."""
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            yield TableRow(f"{path}:{line}", tuple(next(reader)))
        except StopIteration:
            return
        except csv.Error as error:
            if reader.line_num > line or str(error) == _NOT_CLOSED:
                raise UserError(
                    f"{path}:{line}: a quotation that begins in this row does not end as it should by line {reader.line_num:,} "
                    f"({error}); close it, or write a quotation mark inside a quotation twice"
                ) from error
            problem = "carriage return outside of a quotation" if str(error).startswith(_CARRIAGE_RETURN) else error
            yield TableRow(f"{path}:{line}", problem=f"row cannot be read ({problem})")


def _header(row: TableRow, path: Path, delimiter: str) -> Sequence[str]:
    if row.problem is not None:
        raise UserError(f"{row.place}: {row.problem}; expected a line that names the columns")
    header = row.values
    if not header:
        raise UserError(f"{path}: its first line is empty; expected one that names the columns")
    other = next((character for character in _OTHER_DELIMITERS if character in header[0]), None)
    if len(header) == 1 and other is not None:
        raise UserError(
            f"{path}: its first line is {header[0]!r}, without a {delimiter!r} between the names of columns; set "
            f"data.tables.delimiter, perhaps to {other!r}"
        )
    return header


def _json_rows(path: Path, choose: Choice) -> Iterator[TableRow]:
    records = _records(path)
    head = list(itertools.islice(records, _FIRST_RECORDS))
    known = dict.fromkeys(name for row in head if row.problem is None for name in names_inside(row.values[0]))
    if not known:
        raise UserError(
            f"{path}: expected a JSON object with the columns on each line, found none in the first {len(head):,} lines"
        )
    names = choose(list(known), str(path))
    for row in itertools.chain(head, records):
        if row.problem is None:
            row = TableRow(row.place, tuple(value_at(row.values[0], name) for name in names))
        yield row


def _records(path: Path) -> Iterator[TableRow]:
    """One JSON object a row as its only value: of each line, or of one list that is the whole file."""
    lines, head = content_lines(path), []
    for line in lines:
        head.append(line)
        if line.strip():
            break
    if head and head[-1].lstrip().startswith(b"["):
        yield from _listed_records(path, b"".join([*head, *lines]))
        return
    for number, line in enumerate(itertools.chain(head, lines), 1):
        place = f"{path}:{number}"
        if not line.strip():
            yield TableRow(place, problem="line is empty")
            continue
        try:
            record = json.loads(line)
        except UnicodeDecodeError:
            yield TableRow(place, problem="line is not UTF-8")
        except (ValueError, RecursionError):
            yield TableRow(place, problem="line is not JSON")
        else:
            yield _record(place, record)


def _listed_records(path: Path, content: bytes) -> Iterator[TableRow]:
    try:
        records = json.loads(content)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: is no JSON: {error.msg}; expected a list of objects") from error
    except (ValueError, RecursionError) as error:  # no UTF-8, a number of too many digits, or lists too deep in lists
        raise UserError(f"{path}: is no JSON: {one_line(error)}; expected a list of objects") from error
    for number, record in enumerate(records):
        yield _record(f"{path}: item {number}", record)


def _record(place: str, record: Any) -> TableRow:
    return TableRow(place, (record,)) if isinstance(record, dict) else TableRow(place, problem="no JSON object")


def _parquet_rows(path: Path, choose: Choice) -> Iterator[TableRow]:
    try:
        with pq.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            repeated = [name for name, count in Counter(columns).items() if count > 1]  # `_fields` has them once
            names = choose([*names_inside(_fields(file.schema_arrow)), *repeated], str(path))
            number = 0
            for batch in file.iter_batches(_ROWS_OF_PARQUET, columns=list(dict.fromkeys(names))):
                for values in zip(*(_values(batch, name) for name in names), strict=True):
                    yield TableRow(f"{path}: row {number}", values)
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read as Parquet ({one_line(error)}); fetch or write it again") from error


def _fields(fields: pa.Schema | pa.StructType) -> dict[str, Any]:
    return {field.name: _fields(field.type) if pa.types.is_struct(field.type) else None for field in fields}


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    """What stands in a column, or in the field of one."""
    column, *inside = [name] if name in batch.schema.names else name.split(".")
    values = batch.column(column)
    for field in inside:
        values = pc.struct_field(values, field)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return values.to_pylist()
    # Not every writer checks that its strings are UTF-8.
    texts = values.cast(pa.large_binary()).to_pylist()
    return [None if text is None else text.decode("utf-8", "surrogateescape") for text in texts]
