"""Files of the form of MNIST (IDX), plain or gzipped: read whole, and refused where anything of them does not fit."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from reluformer.configuration.errors import UserError, one_line

_BYTES = 8  # the number of the type in the form's header


def read_idx(path: str | Path, dimensions: int, obtain: str = "") -> np.ndarray:
    """The unsigned bytes of an IDX file, an array of so many dimensions.

    Args:
        path: of the file; gzipped if its name ends in .gz.
        dimensions: 3 for pictures (pictures, height, width), 1 for labels.
        obtain: how to get the file, for the message where it is missing.

    Raises:
        UserError: the file is missing, damaged, or holds something else; one line that names it.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        what = "is a folder, expected an IDX file" if path.is_dir() else "no such file"
        raise UserError(f"{path}: {what}; {obtain or 'give the path of an IDX file'}")
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path}: cannot be read as gzip ({one_line(error)}); the file is damaged, get it anew"
        ) from error
    header = 4 + 4 * dimensions
    if len(content) < header or content[:2] != b"\0\0":
        raise UserError(f"{path}: is no IDX file: it does not begin with two zero bytes and a header of {header} bytes")
    if content[2] != _BYTES or content[3] != dimensions:
        raise UserError(
            f"{path}: holds type {content[2]} in {content[3]} dimensions, expected unsigned bytes ({_BYTES}) in {dimensions}; "
            "pictures and labels are two files"
        )
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4))
    if len(content) - header != math.prod(shape):
        raise UserError(
            f"{path}: its header tells {' × '.join(map(str, shape))} bytes, {len(content) - header:,} follow; the file is "
            "damaged, get it anew"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
