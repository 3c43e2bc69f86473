"""Refuses a file that is not plain UTF-8 text before its bytes are read as lines."""

from __future__ import annotations

import codecs
from pathlib import PurePath

from reluformer.configuration.errors import UserError

BYTE_ORDER_MARK = codecs.BOM_UTF8
# How much of a file's beginning `refuse_other_encodings` looks at.
HEAD_BYTES = 4_096
# UTF-32 first: its mark begins with that of UTF-16.
_OTHER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
PACKED_SUFFIXES = {".gz": "gzip", ".zst": "zstd"}


def refuse_other_encodings(head: bytes, path: object) -> None:
    """Raises `UserError` for text in UTF-16 or UTF-32, with or without its byte order mark.

    A NUL here and there is a character like any other; in UTF-16 without a mark every other byte of Latin text is NUL.

    Args:
        head: the first `HEAD_BYTES` of the file, fewer where it is shorter.
        path: what to call the file.
    """
    found = next(
        (f"{name} by its byte order mark" for mark, name in _OTHER_MARKS.items() if head.startswith(mark)), None
    )
    if found is None and head.count(0) >= max(4, len(head) // 4):
        found = "UTF-16 or no text at all by its NUL bytes"
    if found is not None:
        raise UserError(f"{path}: is {found}; expected UTF-8: convert it, as with `iconv -f UTF-16 -t UTF-8`")


def refuse_table(path: PurePath, instead: str) -> None:
    """Raises `UserError` for a file that is named as a table, whose lines would be taken for sentences as they stand.

    Args:
        path: of the file.
        instead: what to do with a table.
    """
    suffix = without_packing(path).suffix.lower()
    if suffix in TABLE_SUFFIXES:
        raise UserError(f"{path}: is a table by its name ({suffix}); expected text, one sentence a line: {instead}")


def without_packing(path: PurePath) -> PurePath:
    """The path without .gz or .zst at its end."""
    return path.with_suffix("") if path.suffix.lower() in PACKED_SUFFIXES else path
