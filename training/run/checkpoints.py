"""Transformers' checkpoints in a run folder, with the few facts beside them that an exact continuation needs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

RUN_STATE_FILE = "run_state.json"
# A checkpoint is written in here, and gets its name when it is whole.
PARTIAL_FOLDER = ".checkpoint.partial"


def checkpoint_folders(run_folder: str | Path) -> list[Path]:
    """The `checkpoint-N` folders of a run, sorted by N; none where there is no such run."""
    found = Path(run_folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
    return sorted((path for path in found if path.is_dir() and update_of(path) >= 0), key=update_of)


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

    `settings` that must not change (or null), `data` (a fingerprint of the training set), `seconds` of training until then, and
    `off_schedule`: a signal asked for this checkpoint, so that it serves to resume and is neither averaged nor kept.
    """
    path = checkpoint / RUN_STATE_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def publish_checkpoint(partial: Path, checkpoint: Path, run_state: dict[str, Any]) -> None:
    """Gives a checkpoint its name, once all its files are on the disk."""
    (partial / RUN_STATE_FILE).write_text(json.dumps(run_state, indent=2, default=str) + "\n", encoding="utf-8")
    for path in [*partial.rglob("*"), partial]:
        _sync(path)
    before = _set_aside(checkpoint) if checkpoint.exists() else None
    os.replace(partial, checkpoint)
    _sync(checkpoint.parent)
    if before is not None:  # removed last, as that takes time in which the process may be killed
        shutil.rmtree(before)


def _sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_off_schedule(last: Path) -> None:
    """Removes the checkpoints that a signal asked for, now that `last` is there, so that averaging does not find them."""
    for folder in checkpoint_folders(last.parent):
        if read_run_state(folder).get("off_schedule"):
            shutil.rmtree(_set_aside(folder))


def _set_aside(checkpoint: Path) -> Path:
    """Takes the name from a folder that is to go: half a checkpoint must not be found under it."""
    renamed = checkpoint.with_name(f".{checkpoint.name}.partial")
    shutil.rmtree(renamed, ignore_errors=True)
    return checkpoint.rename(renamed)


def saved_processes(checkpoint: Path) -> int:
    """How many processes wrote a checkpoint: each saves the state of its random numbers."""
    return max(len(list(checkpoint.glob("rng_state_*.pth"))), 1)
