"""Folders of models that no recipe has trained, without weights: as a plain `Trainer` leaves them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from reluformer import ReLUFormerConfig
from reluformer.training.run.records import write_json

from .documented_run import TINY


class Trap:
    """Its pickle makes a folder where it is opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def evaluation(step: int, prefix: str = "eval", **metrics: float) -> dict[str, Any]:
    """An entry of the log, with what the Trainer adds to it."""
    added = {"runtime": 1.5, "samples_per_second": 8.1, "steps_per_second": 2.2}
    return {
        "step": step,
        "epoch": step / 100,
        **{f"{prefix}_{name}": value for name, value in {**metrics, **added}.items()},
    }


def trainer_state(updates: int = 600, **fields: Any) -> dict[str, Any]:
    history = [
        {"step": 200, "epoch": 2.0, "loss": 4.321, "learning_rate": 0.00025},
        evaluation(200, loss=3.5, exact_match=0.75),
        {"step": 600, "epoch": 6.0, "loss": 2.5, "learning_rate": 0.0001},
        evaluation(600, loss=3.25, exact_match=0.5),
    ]
    history = [entry for entry in history if entry["step"] <= updates]
    return {"global_step": updates, "epoch": updates / 100, "log_history": history, **fields}


def write_plain_output(folder: Path, **state: Any) -> Path:
    """The output_dir of a plain Trainer: the model, and two checkpoints of it with their states; returns it."""
    for inner, updates in ((folder, None), (folder / "checkpoint-200", 200), (folder / "checkpoint-600", 600)):
        ReLUFormerConfig(**TINY).save_pretrained(inner)
        (inner / "training_args.bin").write_bytes(pickle.dumps(Trap(folder.parent / "opened")))
        if updates is not None:
            write_json(inner / "trainer_state.json", trainer_state(updates, **state))
    return folder
