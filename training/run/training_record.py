"""What was measured in a training, as the run keeps it in training_record.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reluformer.configuration.recipe import Recipe
from reluformer.training.run.divergence import DivergenceWatch
from reluformer.training.run.records import peak_memory, run_record, write_json
from reluformer.training.run.run_folder import RECORD_FILE
from reluformer.training.trainer import ReLUFormerTrainer


def write_training_record(
    recipe: Recipe,
    trainer: ReLUFormerTrainer,
    watch: DivergenceWatch,
    resume_from: Path | None,
    averaged: Sequence[str],
) -> None:
    """Writes what was measured in a training that has ended, with what makes it traceable.

    `target_tokens_per_update` and `target_tokens_per_second` are means over all logged updates; `seconds` is the wall time of the
    training in all its parts, evaluation included; `peak_memory_bytes` is what this process held at most.
    """
    path = recipe.run_folder / RECORD_FILE
    if path.is_file() and not recipe.training.resume_from_checkpoint:
        return  # all was trained before, and only the evaluation was interrupted: nothing new was measured
    record = {
        **run_record(None, recipe.name, recipe.training.seed),
        "updates": trainer.state.global_step,
        "epochs": trainer.state.epoch,
        "seconds": trainer.seconds,
        **_speed(trainer),
        "peak_memory_bytes": peak_memory(trainer.args.device),
        "training_loss": _mean_loss(trainer),
        "parameters": trainer.model.num_parameters(),
        "processes": recipe.training.world_size,
        "averaged_checkpoints": list(averaged),
        "diverged": watch.divergence,
        "dead_modules": watch.dead_modules,
        "exploded": watch.exploded,
    }
    write_json(path, record if resume_from is None else {**record, "resumed_from": str(resume_from)})


def _speed(trainer: ReLUFormerTrainer) -> dict[str, float | None]:
    logs, update = [], 0
    for entry in trainer.state.log_history:
        if "target_tokens_per_update" in entry:
            logs.append((entry["step"] - update, entry))
            update = entry["step"]
    names = ("target_tokens_per_update", "target_tokens_per_second")
    return {name: sum(count * entry[name] for count, entry in logs) / update if update else None for name in names}


def _mean_loss(trainer: ReLUFormerTrainer) -> float | None:
    """The Trainer's; it is in the last log of a training that made updates."""
    return next((entry["train_loss"] for entry in reversed(trainer.state.log_history) if "train_loss" in entry), None)
