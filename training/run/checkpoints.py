"""Transformers' checkpoints in a run folder, with the few facts beside them that an exact continuation needs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from reluformer.configuration.errors import UserError, one_line
from reluformer.records.records import read_json

RUN_STATE_FILE = "run_state.json"
# A checkpoint is written in here, and gets its name when it is whole.
PARTIAL_FOLDER = ".checkpoint.partial"
_INSTEAD = "copy the checkpoint again, or move it away, and the run resumes at the one before it"


def checkpoint_folders(run_folder: str | Path) -> list[Path]:
    """The `checkpoint-N` folders of a run, sorted by N; none where there is no such run."""
    paths = Path(run_folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
    return sorted((path for path in paths if path.is_dir() and update_of(path) >= 0), key=update_of)


def update_of(checkpoint: Path) -> int:
    """The N of `checkpoint-N`; -1 for another name."""
    number = checkpoint.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
    return int(number) if number.isdecimal() else -1


def best_update(args: Any, state: Any) -> int | None:
    """The update whose weights a Trainer with `load_best_model_at_end` ends with, if it saved any."""
    is_loaded = args.load_best_model_at_end and state.best_model_checkpoint
    return update_of(Path(state.best_model_checkpoint)) if is_loaded else None


def read_run_state(checkpoint: Path) -> dict[str, Any]:
    """What [`publish_checkpoint`] wrote beside Transformers' files; empty for a checkpoint of another program.

    `settings` that must not change (or null), `data` (a fingerprint of the training set), `seconds` of training until
    then, `files` (the bytes of each other file by its path in the checkpoint), and `off_schedule`: a signal asked for
    this checkpoint, so that it serves to resume and is neither averaged nor kept.
    """
    path = checkpoint / RUN_STATE_FILE
    return read_json(path, instead=_INSTEAD) if path.is_file() else {}


def require_whole(checkpoint: Path) -> None:
    """Raises a `UserError` that names the first file of a checkpoint that is missing or cut off.

    The Trainer would go on without the state of optimizer, schedule or random numbers, and end with other weights.
    """
    files = read_run_state(checkpoint).get("files")
    if files is None:
        _require_usual_files(checkpoint)
    for name, size in (files or {}).items():
        path = checkpoint / name
        if not path.is_file():
            raise _is_not_whole(checkpoint, f"its file {name} is missing")
        if (actual_size := path.stat().st_size) != size:
            raise _is_not_whole(
                checkpoint, f"its file {name} has {actual_size:,} bytes, and had {size:,} when it was written"
            )
    read_json(checkpoint / TRAINER_STATE_NAME, instead=_INSTEAD)


def _require_usual_files(checkpoint: Path) -> None:
    """As `require_whole`, for the checkpoint of a plain Trainer, which keeps no list of its files."""
    names = [path.name for path in checkpoint.iterdir()]
    if any(name.startswith("global_step") for name in names):  # the folder in which DeepSpeed keeps everything
        return
    # FSDP writes optimizer.bin or a folder optimizer_0; of several processes, each writes an rng_state_<number>.pth.
    usual = {"optimizer": OPTIMIZER_NAME, "scheduler": SCHEDULER_NAME, "rng_state": "rng_state.pth"}
    for beginning, name in {**usual, "trainer_state": TRAINER_STATE_NAME}.items():
        if not any(existing.startswith(beginning) for existing in names):
            raise _is_not_whole(checkpoint, f"its file {name} is missing")


def _is_not_whole(checkpoint: Path, fault: str) -> UserError:
    return UserError(f"{checkpoint}: {fault}, so that the run would end with other weights; {_INSTEAD}")


@contextlib.contextmanager
def reading(checkpoint: str | Path) -> Iterator[None]:
    """Around the loading of a part of a checkpoint: an error says which checkpoint is damaged."""
    try:
        yield
    except Exception as error:  # what a damaged file makes torch raise is of any kind
        raise UserError(
            f"{checkpoint}: cannot be loaded ({type(error).__name__}: {one_line(error)}); {_INSTEAD}"
        ) from error


def publish_checkpoint(partial: Path, checkpoint: Path, run_state: dict[str, Any]) -> None:
    """Gives a checkpoint its name, once all its files are on the disk; beside them are `run_state` and a list of the
    files."""
    files = {path.relative_to(partial).as_posix(): path.stat().st_size for path in partial.rglob("*") if path.is_file()}
    run_state = {**run_state, "files": dict(sorted(files.items()))}
    (partial / RUN_STATE_FILE).write_text(json.dumps(run_state, indent=2, default=str) + "\n", encoding="utf-8")
    for path in [*partial.rglob("*"), partial]:
        _sync(path)
    before = set_aside(checkpoint) if checkpoint.exists() else None
    os.replace(partial, checkpoint)
    _sync(checkpoint.parent)
    if before is not None:  # removed last, as that takes time in which the process may be killed
        shutil.rmtree(before)


def _sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk.

    Windows opens no folders, and syncs no file that is opened for reading alone.
    """
    is_windows = os.name == "nt"
    if is_windows and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if is_windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_off_schedule(last: Path) -> None:
    """Removes the checkpoints that a signal asked for, now that `last` is there, so that averaging does not find
    them."""
    for folder in checkpoint_folders(last.parent):
        if read_run_state(folder).get("off_schedule"):
            shutil.rmtree(set_aside(folder))


def set_aside(checkpoint: Path) -> Path:
    """Takes the name from a folder that is to go: half a checkpoint must not be found under it."""
    renamed = checkpoint.with_name(f".{checkpoint.name}.partial")
    shutil.rmtree(renamed, ignore_errors=True)
    return checkpoint.rename(renamed)


def saved_processes(checkpoint: Path) -> int:
    """How many processes wrote a checkpoint: each saves the state of its random numbers."""
    return max(len(list(checkpoint.glob("rng_state_*.pth"))), 1)
