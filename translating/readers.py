"""Reads text files line by line, so that what is wrong with one line costs no other."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from reluformer.configuration.errors import UserError, one_line

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".zst")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".xlsx")
_HEAD_BYTES = 4_096


def text_file(path: str | Path, instead: str | None = None) -> Path:
    """The path of a text file, from one that may begin with `~`; raises `UserError` where there is none.

    `instead` says what to do with a table; None takes a file that is named as one, too.
    """
    path = Path(path).expanduser()
    if path.is_dir() or not path.exists():
        raise UserError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}; give a text file")
    suffix = without_compression(path).suffix.lower()
    if instead is not None and suffix in TABLE_SUFFIXES:
        raise UserError(f"{path}: is a table by its name ({suffix}); expected text, one sentence a line: {instead}")
    return path


def text_lines(path: Path | BinaryIO) -> Iterator[str]:
    """The lines of a text file, without "\\n" or "\\r\\n" at their ends and without a byte order mark.

    Only "\\n" ends a line, so that no other separator within a sentence puts two files out of step. Files that end in
    .gz, .bz2 or .zst are decompressed. Bytes that are not UTF-8 become lone surrogates, see `is_unicode`.

    Raises:
        UserError: a file that cannot be read or decompressed, or that is no text in UTF-8.
    """
    try:
        with io.BufferedReader(_opened(path) if isinstance(path, Path) else path) as stream:
            if b"\0" in stream.peek(_HEAD_BYTES)[:_HEAD_BYTES]:
                raise UserError(
                    f"{path}: holds NUL bytes, as UTF-16 and compressed files do; expected text in UTF-8, or a name "
                    f"that ends in {', '.join(COMPRESSED_SUFFIXES)}: convert it (`iconv -f UTF-16 -t UTF-8`), rename "
                    "it or unpack it"
                )
            for number, line in enumerate(stream):
                line = line if number else line.removeprefix(codecs.BOM_UTF8)
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape")
    except (OSError, EOFError, zlib.error) as error:  # the latter two where a compressed file is cut off or damaged
        raise UserError(f"{path}: cannot be read ({one_line(error)}); fetch or compress the file again") from error


def _opened(path: Path) -> BinaryIO:
    if path.suffix == ".zst":
        import pyarrow  # which the extra `train` brings; Python itself reads these from 3.14 on

        return pyarrow.input_stream(str(path))
    return {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)(path, "rb")


def is_unicode(text: str) -> bool:
    """Whether a text has no lone surrogates, which stand for bytes that are not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def without_compression(path: Path) -> Path:
    """The path without .gz, .bz2 or .zst at its end."""
    return path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path
