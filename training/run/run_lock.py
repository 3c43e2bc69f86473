"""One training at a time in a run folder: two would remove, average and overwrite each other's files."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from reluformer.configuration.errors import UserError
from reluformer.configuration.whole_files import write_whole


@contextlib.contextmanager
def only_training_in(folder: Path) -> Iterator[None]:
    """Holds the lock of a run folder within the block; the system releases it if the process dies.

    The lock and the name of its holder lie beside the folder, as `.<name>.lock` and `.<name>.holder`: whatever is done to the
    folder's files leaves them alone.

    Raises:
        UserError: another training holds it; says which process, on which machine, and since when.
    """
    place = folder.resolve()
    holder = place.with_name(f".{place.name}.holder")
    lock = FileLock(place.with_name(f".{place.name}.lock"))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
        started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        write_whole(holder, f"process {os.getpid()} on {platform.node()}, since {started}")
    except Timeout:
        # a process has the lock a moment before its name is there
        who = holder.read_text(encoding="utf-8") if holder.is_file() else "a process that has just begun"
        raise UserError(
            f"{folder}: another training is writing into it ({who}); wait until it ends, or give another name or "
            "training.output_dir"
        ) from None
    except OSError as error:  # told of the folder, which the user knows of; what exists in place of a folder is a file
        number = errno.ENOTDIR if isinstance(error, FileExistsError) else error.errno
        raise OSError(number, os.strerror(number), str(folder)) from error
    try:
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()
