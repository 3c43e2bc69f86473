"""Writing a file, or a folder, whole or not at all: under its name is what was there before, or all of what is new.

Both are written under a temporary name, `.<name>.<process>.partial`, beside their place. A process that is killed leaves
that name behind; `reluformer.training.run.checkpoints.is_leftover` recognises it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


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
