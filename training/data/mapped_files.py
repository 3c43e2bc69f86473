"""Mapped files do not fill the memory of a process: what was read of them is given back while it trains.

A page of a mapped file stays resident once it was looked at, with those around it, until the system is short of memory. Over
an epoch that is the whole corpus, in each process. It costs nothing that others could use, but it is counted as the process's,
and limits on memory (of a container, of a batch system) may stop it for that. `datasets` and pyarrow map files, and have
no way to give their pages back.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

MAPS = Path("/proc/self/maps")
BATCHES_BETWEEN = 10


def release(files: Collection[str]) -> int:
    """Gives back what is resident of the files that this process has mapped for reading.

    Only mappings that the system itself names and that nobody can write to: nothing is lost, and a page that is wanted again is
    mapped again. Does nothing where there is no /proc/self/maps (other systems than Linux).

    Args:
        files: their paths.

    Returns: the mappings that were given back.

    Raises:
        OSError: the system refuses.
    """
    if not MAPS.is_file():
        return 0
    wanted = {os.path.realpath(file) for file in files}
    system, released = ctypes.CDLL(None, use_errno=True), 0
    for line in MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        # address range, permissions, offset, device, inode, path
        addresses, permissions, *_, path = line.split(maxsplit=5)
        if path not in wanted or "w" in permissions:
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        if system.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), "madvise", path)
        released += 1
    return released


class ReleasingCollator:
    """A collator that gives the rows' files back after its first batch and after every `BATCHES_BETWEEN` further ones.

    Args:
        collate: makes a batch of rows, which it copies.
        files: that the rows are mapped from.
    """

    def __init__(self, collate: Callable[[list[dict[str, Any]]], Any], files: Collection[str]) -> None:
        self.collate, self.files, self._batches = collate, tuple(files), 0

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        batch = self.collate(rows)
        if self._batches % BATCHES_BETWEEN == 0:
            release(self.files)
        self._batches += 1
        return batch
