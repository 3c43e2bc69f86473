"""What was measured in a training, as the run keeps it in training_record.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers.trainer_utils import TrainOutput

from reluformer.configuration.recipe import Recipe
from reluformer.training.run.divergence import DivergenceWatch
from reluformer.training.run.records import peak_memory, run_record, write_json
from reluformer.training.run.run_folder import RECORD_FILE
from reluformer.training.run_trainer import RunTrainer


def write_training_record(
    recipe: Recipe,
    trainer: RunTrainer,
    watch: DivergenceWatch,
    resume_from: Path | None,
    measured: dict[str, Any],
) -> None:
    """Writes the record of a training that has ended.

    Args:
        recipe: of the run.
        trainer: that has trained it.
        watch: what it has seen.
        resume_from: the checkpoint at which the training went on, if it did.
        measured: of [`training_record`].
    """
    path = recipe.run_folder / RECORD_FILE
    record = measured | {
        "diverged": watch.divergence,
        "dead_modules": watch.dead_modules,
        "exploded": watch.exploded,
    }
    if resume_from is not None:
        record["resumed_from"] = str(resume_from)
        if resume_from.name == f"checkpoint-{trainer.state.global_step}":
            record["training_loss"] = None  # all updates were made before
    # Where there is one already, all was trained, and only the evaluation was interrupted: nothing new was measured.
    if recipe.training.resume_from_checkpoint or not path.is_file():
        write_json(path, record)


def training_record(
    recipe: Recipe,
    trainer: RunTrainer,
    output: TrainOutput,
    seconds: float | None,
    averaged: list[str],
    command: str | None = None,
) -> dict[str, Any]:
    """What was measured in training, with what makes it traceable.

    `target_tokens_per_update` and `target_tokens_per_second` (in a training on pictures `images_per_…`) are means over all
    logged updates, weighted by their number; `seconds` is the wall time of the training in all its parts, evaluation included;
    `peak_memory_bytes` is what this process held at most, reading the corpus included, and null where neither Linux nor
    CUDA tells it; `attention_loop` is the one that computed on a CPU, "compiled" or "python", and null where neither did.
    """
    logs, means = [], {}
    update = 0
    for entry in trainer.state.log_history:
        if f"{trainer.items}_per_update" in entry:
            logs.append((entry["step"] - update, entry))
            update = entry["step"]
    for name in (f"{trainer.items}_per_update", f"{trainer.items}_per_second"):
        weight = sum(updates for updates, _ in logs)
        means[name] = sum(updates * entry[name] for updates, entry in logs) / weight if weight else None
    return {
        **run_record(command, recipe.name, recipe.training.seed),
        "updates": trainer.state.global_step,
        "epochs": trainer.state.epoch,
        "seconds": seconds,
        **means,
        "peak_memory_bytes": peak_memory(trainer.args.device),
        "training_loss": output.training_loss,
        "parameters": trainer.model.num_parameters(),
        "processes": recipe.training.world_size,
        "attention_loop": trainer.attention_loop,
        "averaged_checkpoints": averaged,
    }
