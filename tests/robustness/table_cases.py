"""More of `cases.py`: tables and data sets in place of two files of lines."""

from __future__ import annotations

from .cases import Case, expressions, refusals

_TABLES = [
    Case(
        case.given,
        case.call.replace("train ", "train --config good.yaml --data.train null ", 1),
        case.outcome,
        case.says,
    )
    for case in refusals("""
a column that is not there
train --data.tables.train columns.csv
columns.csv: no column 'translation.de' or 'de'; there are: german, english; set data.tables.source_column

one column for both sides
train --data.tables.train columns.csv --data.tables.source_column german --data.tables.target_column german
columns.csv: column 'german' is both source and target; set data.tables.source_column and data.tables.target_column

a field that is not there
train --data.tables.train nested.jsonl --data.tables.source_column translation.deu
nested.jsonl: no column 'translation.deu'; there are: translation.de, translation.en; set data.tables.source_column

semicolons in place of commas
train --data.tables.train semicolons.csv
semicolons.csv: its first line is 'de;en', without a ',' between the names of columns; set data.tables.delimiter, perhaps to ';'

a quotation that is not closed
train --data.tables.train quotation.csv
quotation.csv:2: a quotation that begins in this row does not end as it should by line 4 (unexpected end of data); close it

a sheet of Excel
train --data.tables.train sheet.csv
sheet.csv: is zip data; expected plain text, gzip or zstd: unpack it

a file with another end of its name
train --data.tables.train good.de
good.de: expected a table, a file ending in .csv, .tsv, .jsonl, .json, .parquet, all but the last also with .gz or .zst

a table in UTF-16
train --data.tables.train utf16.csv
utf16.csv: is UTF-16 by its byte order mark; expected UTF-8: convert it, as with `iconv -f UTF-16 -t UTF-8`

.zst that is cut off
train --data.tables.train truncated.csv.zst
truncated.csv.zst: broken zstd data after line … (Truncated compressed stream); fetch the file again

.zst that is gzip
train --data.tables.train gzip.csv.zst
gzip.csv.zst: named .zst, but its content is gzip; rename it

.jsonl without JSON
train --data.tables.train text.jsonl
text.jsonl: expected a JSON object with the columns on each line, found none in the first 3 lines

.parquet without Parquet
train --data.tables.train text.parquet
text.parquet: cannot be read as Parquet (…); fetch or write it again

no good row
train --data.tables.train empty_rows.csv
empty corpus: train: 0 of 2 pairs kept; skipped 2 × target empty (first: empty_rows.csv:2); expected at least one usable pair

a table that does not exist, of a corpus whose recipe knows where it is to be had
train --data.tables.train nowhere.csv --data.homepage https://www.statmt.org/europarl/
train: file not found: nowhere.csv; the corpus is to be had at https://www.statmt.org/europarl/

a delimiter of two characters
train --data.tables.train columns.csv --data.tables.delimiter ::
data.tables.delimiter: '::' cannot be one; give one character, such as ';'

a delimiter for what has none
train --data.tables.train nested.jsonl --data.tables.delimiter ;
data.tables.delimiter: would have no effect, since no table is CSV or TSV; leave it out

a table as data set
train --data.dataset.path columns.csv
data.dataset.path: 'columns.csv' is a file; expected the id of a data set, or a folder: give a table as data.tables.train

tables and a data set at once
train --data.tables.train columns.csv --data.dataset.path a_folder
data: give exactly one of train/validation/test, tables, dataset, demo; given: tables and dataset
""")
]

TABLES = [
    *_TABLES,
    *expressions("""
rows of CSV with too few fields, and with bytes that are not UTF-8
read_tables(["ragged.csv"], PairColumns("de", "en"), name="train")[1].first
result: {'number of fields is not that of the first line': 'ragged.csv:3', 'source is not UTF-8': 'ragged.csv:4'}

line breaks within quotations
list(read_tables(["line_breaks.csv"], PairColumns("de", "en"), name="train")[0]["source"])
result: ['eins\\nzwei', 'null']

a quotation mark in TSV, which is a character like any other
list(read_tables(["mark.tsv"], PairColumns("de", "en"), name="train")[0]["source"])
result: ['"eins', 'zwei"']

a line of JSON that is cut off
read_tables(["cut.jsonl"], PairColumns("de", "en"), name="train")[1].summary()
result: train: 1 of 2 pairs kept; skipped 1 × line is not JSON (first: cut.jsonl:2)
"""),
]
