"""Writing a file, or a folder, whole or not at all: under its name is what was there before, or all of what is new.

Both are written under a temporary name, `.<name>.<process>.partial`, beside their place. A process that is killed leaves
that name behind.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from reluformer.configuration.errors import UserError


@contextmanager
def whole_file(path: str | Path) -> Iterator[TextIO]:
    """A text file (UTF-8) that replaces `path` when the block ends, and is removed if the block raises.

    It is on the disk before it gets its name: a machine that stops leaves no empty file. Missing folders are created.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: str | Path, text: str) -> None:
    """Writes a text as [`whole_file`] does."""
    with whole_file(path) as stream:
        stream.write(text)


@contextmanager
def whole_folder(path: str | Path, remove: Callable[[Path], None] = shutil.rmtree) -> Iterator[Path]:
    """An empty folder to fill that gets the name `path` when the block ends, and is removed if the block raises.

    Args:
        path: of the folder.
        remove: takes away the folder that has this name until then, if there is one.
    """
    path = Path(path).absolute()
    partial = _partial(path)
    try:
        partial.mkdir(parents=True)
        yield partial
        if path.exists():
            remove(path)
        os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def holds_one(folder: Path, what: str, marks: Sequence[str], *, overwrite: bool) -> bool:
    """Whether a folder that is about to be written holds a `what` that is to be replaced; False for one that is empty or missing.

    Args:
        folder: what the user has named.
        what: the program writes there, for the message.
        marks: files or folders that each `what` has.
        overwrite: whether it may be replaced. The caller looks for files of others in it, see [`require_own`].

    Raises:
        UserError: it is a file, holds something else, or holds a `what` and `overwrite` is not given.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; give a folder")
    if not folder.is_dir() or not any(folder.iterdir()):
        return False
    if not all((folder / mark).exists() for mark in marks):
        raise UserError(f"{folder}: holds files but no {what}; give another folder")
    if not overwrite:
        raise UserError(f"{folder}: holds a {what} already; give another folder, or --overwrite to replace it")
    return True


def require_own(folder: Path, foreign: Sequence[str]) -> None:
    """Raises a `UserError` that names files which `--overwrite` must not remove, if there are any."""
    if foreign:
        raise UserError(
            f"{folder}: holds {', '.join(foreign[:5])}{' and more' if len(foreign) > 5 else ''}, which the program did not "
            "write, and --overwrite removes only what it did; move them out of the folder, or give another folder"
        )
