"""Checkpoints that are whole or not used: sealed with a manifest when everything of them is on the disk, verified before use."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.whole_files import sync

MANIFEST_FILE = "checkpoint_manifest.json"
# In a folder from before its first file until after its manifest: a process that is killed in between leaves it behind.
UNSEALED_FILE = "being_written"
_REMOVED = ".removed-"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def checkpoint_folders(run_dir: str | Path) -> list[Path]:
    """The `checkpoint-N` folders of a run, complete or not, sorted by N.

    Raises:
        UserError: the run folder does not exist.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise UserError(f"{run_dir}: no such folder; give the folder of a run, with checkpoint-N folders in it")
    numbered = [(int(match[1]), path) for path in run_dir.iterdir() if (match := _CHECKPOINT.fullmatch(path.name))]
    return [path for _, path in sorted(numbered) if path.is_dir()]


def begin_checkpoint(folder: Path) -> None:
    """Makes the folder, without what an earlier attempt at the same update has left, and marks it as unsealed."""
    if folder.exists():
        remove_checkpoint(folder)
    folder.mkdir(parents=True)
    (folder / UNSEALED_FILE).touch()
    sync(folder)


def seal_checkpoint(
    folder: Path,
    *,
    processes: int,
    accumulation_steps: int | None = None,
    attention_loop: str | None = None,
    seconds: float | None = None,
    off_schedule: bool = False,
    **batch_size: int,
) -> None:
    """Brings all files of a checkpoint to the disk and then writes its manifest: from now on the checkpoint counts.

    Args:
        folder: of the checkpoint; every process has written its part.
        processes: that train together.
        accumulation_steps: batches of an update that each of them computes.
        attention_loop: that has computed, see [`reluformer.training.run.attention_loop.attention_loop`].
        seconds: that the training has taken until then, see `RunTrainer.seconds`.
        off_schedule: it was asked for by a signal. It serves to go on, and is neither averaged nor kept.
        batch_size: of each batch, by the name that the task has for it: `RunTrainer.batch_key`.
    """
    files = {}
    for path in _contents(folder):
        files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": _digest(path)}
        sync(path)
    for inner in [path for path in folder.rglob("*") if path.is_dir()]:
        sync(inner)
    manifest = {
        "processes": processes,
        "gradient_accumulation_steps": accumulation_steps,
        **batch_size,
        "attention_loop": attention_loop,
        "seconds": seconds,
        "off_schedule": off_schedule,
        "files": files,
    }
    partial = folder / f".{MANIFEST_FILE}.partial"
    partial.write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    sync(partial)
    os.replace(partial, folder / MANIFEST_FILE)
    (folder / UNSEALED_FILE).unlink(missing_ok=True)
    sync(folder)
    sync(folder.parent)


@contextlib.contextmanager
def removed_if_it_fails(folder: Path) -> Iterator[None]:
    """Removes a checkpoint whose writing fails within the block: on a full disk, it would only take room."""
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError):  # the error that was first is the one to tell
            remove_checkpoint(folder)
        raise


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What [`seal_checkpoint`] wrote; None if there is none, or a damaged one."""
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
        whole = manifest.keys() >= {"processes", "off_schedule", "files"}
    except (FileNotFoundError, ValueError, AttributeError):
        return None
    return manifest if whole else None


def is_off_schedule(folder: Path) -> bool:
    """Whether a signal asked for this checkpoint, rather than the recipe."""
    return bool((read_manifest(folder) or {}).get("off_schedule"))


def saved_processes(folder: Path) -> int:
    """How many processes have written a checkpoint: each writes the state of its random numbers."""
    return max(len(list(folder.glob("rng_state_*.pth"))), 1)


def fault_of(folder: Path) -> str | None:
    """Why training cannot go on at a checkpoint exactly, in words; None if it can.

    Every file is compared with the manifest by size and SHA-256. A checkpoint without manifest, written before there were
    any, is checked as far as its files allow: JSON must parse, safetensors must have the length their headers tell, and
    the CRC-32 of torch's zip archives must hold. A flipped byte in the weights of such a one is not found.
    """
    if (folder / MANIFEST_FILE).is_file():
        manifest = read_manifest(folder)
        if manifest is None:
            return f"{MANIFEST_FILE} is damaged"
        fault = next((f for name, facts in manifest["files"].items() if (f := _difference(folder / name, facts))), None)
    elif (folder / UNSEALED_FILE).is_file():
        return "it was being written when the run ended"
    else:
        fault = next((f for path in _contents(folder) if (f := _unreadable(path))), None)
    return fault or _missing_part(folder)


def remove_older(run_folder: Path, last: Path, *, keep: int | None, best: str | None = None) -> None:
    """Removes what the newly sealed checkpoint `last` makes superfluous: those off schedule and, beyond `keep`, the oldest.

    Args:
        run_folder: with the checkpoints.
        last: stays in any case.
        keep: how many stay, `last` included; None or 0 keeps all that the recipe asked for.
        best: path of the checkpoint that scored best, which stays.
    """
    remove_off_schedule(run_folder, last)
    kept = [last] if best is None else [last, run_folder / Path(best).name]
    folders = checkpoint_folders(run_folder)
    removable = [folder for folder in folders if folder not in kept]
    superfluous = len(folders) - max(keep, len(set(kept))) if keep else 0
    for folder in removable[: max(superfluous, 0)]:
        remove_checkpoint(folder)


def remove_off_schedule(run_folder: Path, last: Path) -> None:
    """Removes the checkpoints that a signal asked for, but for `last`: averaging must not find them."""
    for folder in checkpoint_folders(run_folder):
        if folder != last and is_off_schedule(folder):
            remove_checkpoint(folder)


def remove_checkpoint(folder: Path) -> None:
    """Removes a checkpoint. It is renamed first: half a checkpoint is never to be seen under its name."""
    renamed = folder.with_name(f"{_REMOVED}{folder.name}")
    if renamed.exists():
        shutil.rmtree(renamed)
    folder.rename(renamed)
    shutil.rmtree(renamed)


def remove_leftovers(run_folder: Path) -> None:
    """Removes what a process that was killed has left in a run folder under a name of its own; nothing reads such files."""
    for path in filter(is_leftover, list(run_folder.iterdir())):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def is_leftover(path: Path) -> bool:
    """Whether [`remove_leftovers`] removes it."""
    return path.name.startswith(_REMOVED) or (path.name.startswith(".") and path.suffix == ".partial")


def move_files(source: Path, target: Path, *, last: str) -> None:
    """Moves all files of a folder into another on the same disk, each in one step, those that match `last` at the end."""
    paths = sorted(source.rglob("*"), key=lambda path: (path.match(last), path))
    for path in filter(Path.is_file, paths):
        sync(path)
        (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target / path.relative_to(source))
    sync(target)
    shutil.rmtree(source)


def _contents(folder: Path) -> list[Path]:
    own = {MANIFEST_FILE, UNSEALED_FILE, f".{MANIFEST_FILE}.partial"}
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in own)


def _difference(path: Path, facts: dict[str, Any]) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing"
    size = path.stat().st_size
    if size != facts["bytes"]:
        return f"{path.name} has {size:,} bytes, not the {facts['bytes']:,} that were written"
    return None if _digest(path) == facts["sha256"] else f"the content of {path.name} is not what was written"


def _unreadable(path: Path) -> str | None:
    try:
        if path.suffix == ".json":
            json.loads(path.read_bytes())
        elif path.suffix == ".safetensors":
            with safe_open(path, framework="pt"):
                pass
        elif path.suffix in (".pt", ".pth"):
            with zipfile.ZipFile(path) as archive:
                return f"{path.name} is damaged ({bad})" if (bad := archive.testzip()) else None
    except (OSError, ValueError, SafetensorError, zipfile.BadZipFile) as error:
        return f"{path.name} is damaged ({one_line(error)})"
    return None


# What a training needs beside the weights. The Trainer goes on without, silently, with an optimizer that knows nothing.
_PARTS = {
    "trainer_state.json": "trainer_state.json",
    "*.safetensors": "weights",
    "optimizer*": "state of the optimizer",
    "scheduler.pt": "state of the learning rate's schedule",
    "rng_state*.pth": "state of the random numbers",
}


def _missing_part(folder: Path) -> str | None:
    sharded = any(folder.glob("pytorch_model_fsdp*"))  # how accelerate names the weights of FSDP, file or folder
    for pattern, what in _PARTS.items():
        if not any(folder.glob(pattern)) and not (what == "weights" and sharded):
            return f"it holds no {what}"
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
