"""What `reluformer translate` reads and writes: one text a line, or the arguments of the command."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import TextIO

from tqdm.auto import tqdm

from reluformer.configuration.errors import UserError
from reluformer.training.data.readers import is_unicode, refuse_table, text_lines, without_line_end


def read_lines(path: str) -> list[str]:
    """Lines of a file, perhaps compressed, or, for "-", of standard input. Only "\\n" ends a line: line n is translation n.

    Raises:
        UserError: no such file, a damaged one, a table, or bytes that are not UTF-8, with the line.
    """
    refuse_table(PurePath(path), "write the column to translate into a text file, or give plain text as standard input")
    try:
        lines = [without_line_end(line) for line in text_lines(sys.stdin.buffer if path == "-" else Path(path))]
    except UserError as error:
        raise UserError(f"--input: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not is_unicode(line):
            raise UserError(f"--input: {path!r}, line {number}: not UTF-8")
    return lines


def texts_of_arguments(texts: list[str]) -> list[str]:
    """The texts as they are.

    Raises:
        UserError: one that is not UTF-8.
    """
    for number, text in enumerate(texts, start=1):
        if not is_unicode(text):
            raise UserError(f"translate: text {number}: not UTF-8 ({text!a})")
    return texts


def check_output(name: str, source: str | None = None) -> None:
    """Raises `UserError` for a file that cannot be written, before minutes of translating rather than after them, and for the
    file that is read (source, as given to --input)."""
    path = Path(name)
    if source not in (None, "-") and path.is_file() and Path(source).exists() and path.samefile(source):
        raise UserError(f"--output: {name!r} is the file that --input reads and would be replaced; give another file")
    if path.is_dir():
        raise UserError(f"--output: {name!r} is a folder; give a file")
    if not path.absolute().parent.is_dir():
        raise UserError(f"--output: {name!r} lies in no existing folder")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise UserError(f"--output: {name!r} cannot be written: permission denied")


def write_lines(translations: Iterable[str], stream: TextIO, total: int) -> None:
    """Each translation as one line as soon as it is there; a line break in it becomes a space, with a note on stderr.

    Args:
        translations: in order.
        stream: where to write.
        total: how many there will be, to say what is written if one of them fails.
    """
    written = 0
    try:
        for translation in translations:
            line = re.sub(r"[\r\n]+", " ", translation)
            if line != translation:
                _note(f"translation {written + 1} held line breaks, written as spaces")
            stream.write(f"{line}\n")
            stream.flush()
            written += 1
    except BrokenPipeError:
        raise
    except BaseException:
        _note(f"the first {written:,} of {total:,} translations are written")
        raise


def _note(text: str) -> None:
    tqdm.write(f"reluformer: note: {text}", file=sys.stderr)


@contextlib.contextmanager
def output(path: str | None) -> Iterator[TextIO]:
    """The file, opened to be written, or standard output for None."""
    if path is None:
        yield sys.stdout
        return
    with Path(path).open("w", encoding="utf-8", newline="\n") as stream:
        yield stream
