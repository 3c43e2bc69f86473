"""Lines of a text file that may be compressed: gzip and zstd are told by the first bytes, other packings refused by name."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from reluformer.configuration.errors import UserError, one_line
from reluformer.training.data.plain_text import BYTE_ORDER_MARK, HEAD_BYTES, PACKED_SUFFIXES, refuse_other_encodings

# How the content of a file begins, and what is done about it.
_PACKED = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
_UNPACK_FIRST = {"xz": b"\xfd7zXZ\0", "bzip2": b"BZh91AY&SY", "zip": b"PK\x03\x04"}


def content_lines(path: Path) -> Iterator[bytes]:
    """The lines of a plain, gzip or zstd file in UTF-8, as bytes with their "\\n"; without a byte order mark.

    Raises `UserError`: a file that cannot be read or is damaged, that is named as what it is not, that is packed in another
    way, or text in UTF-16 or UTF-32.
    """
    number, packing = 0, None
    try:
        with path.open("rb") as raw:
            packing = _packing(raw.peek(16), path)
            content = raw if packing is None else _unpacked(raw, packing, path)
            refuse_other_encodings(content.peek(HEAD_BYTES)[:HEAD_BYTES], path)
            for number, line in enumerate(content, 1):
                yield line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
    except (EOFError, zlib.error) as error:
        raise _broken(path, packing, number, error) from error
    except OSError as error:
        if packing is not None and error.errno is None:  # of the format, not of the disk
            raise _broken(path, packing, number, error) from error
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _broken(path: Path, packing: str | None, lines: int, error: Exception) -> UserError:
    return UserError(f"{path}: broken {packing} data after line {lines:,} ({one_line(error)}); fetch the file again")


def _packing(head: bytes, path: Path) -> str | None:
    """ "gzip", "zstd", or None for a file that is not packed."""
    for name, magic in _UNPACK_FIRST.items():
        if head.startswith(magic):
            raise UserError(f"{path}: is {name} data; expected plain text, gzip or zstd: unpack it")
    found = next((name for name, magic in _PACKED.items() if head.startswith(magic)), None)
    named = PACKED_SUFFIXES.get(path.suffix.lower())
    if named not in (None, found) and head:
        raise UserError(
            f"{path}: named {path.suffix}, but its content is {'not ' + named if found is None else found}; "
            f"rename it{' or compress it' if found is None else ''}"
        )
    return found


def _unpacked(raw: BinaryIO, packing: str, path: Path) -> io.BufferedReader | gzip.GzipFile:
    if packing == "gzip":
        return gzip.GzipFile(fileobj=raw)
    try:
        import pyarrow  # which `datasets` needs anyway, and which brings zstd

        return io.BufferedReader(pyarrow.CompressedInputStream(raw, "zstd"))
    except ImportError as error:
        raise UserError(f"{path}: is zstd data, which needs the package pyarrow: pip install pyarrow") from error
