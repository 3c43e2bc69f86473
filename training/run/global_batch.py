"""How many batches an update holds and how many processes share them: the first may not change within a run, the second may."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import yaml

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import Recipe
from reluformer.training.run.checkpoints import read_manifest, saved_processes

logger = logging.getLogger(__name__)

# How manifests call the size of a batch; see `RunTrainer.batch_key`.
_SIZES = ("tokens_per_batch", "images_per_batch", "contexts_per_batch")


@dataclass(frozen=True)
class GlobalBatch:
    """The batches of one update.

    Args:
        processes: that compute them at the same time.
        accumulation_steps: that each process computes one after the other.
        size: of each batch, in tokens, pictures or contexts; None in checkpoints of an earlier version.
    """

    processes: int
    accumulation_steps: int
    size: int | None = None

    @property
    def batches(self) -> int:
        return self.processes * self.accumulation_steps

    def __str__(self) -> str:
        return f"{_count(self.processes, 'process', 'processes')} × {self.accumulation_steps} accumulation"


def global_batch_of(recipe: Recipe) -> GlobalBatch:
    """What the processes that were started will compute."""
    training = recipe.training
    return GlobalBatch(training.world_size, training.gradient_accumulation_steps, size=recipe.batch_size)


def saved_global_batch(checkpoint: Path, recipe_file: Path) -> GlobalBatch | None:
    """What a checkpoint was trained with; None if nothing tells.

    Args:
        checkpoint: whole. Its manifest tells all; where it is of an earlier version,
        recipe_file: the recipe of the run tells the accumulation steps, which could not change then.
    """
    manifest = read_manifest(checkpoint) or {}
    processes = saved_processes(checkpoint)
    if (steps := manifest.get("gradient_accumulation_steps")) is not None:
        return GlobalBatch(processes, steps, next(filter(None, map(manifest.get, _SIZES)), None))
    if not recipe_file.is_file():
        return None
    before = yaml.safe_load(recipe_file.read_text(encoding="utf-8"))
    # A recipe in a run folder leaves out what is Transformers' default.
    return GlobalBatch(processes, before["training"].get("gradient_accumulation_steps", 1))


def require_same_updates(recipe: Recipe, checkpoint: Path, recipe_file: Path) -> None:
    """A run goes on with any number of processes, as long as an update holds the same batches.

    The plan of batches is a function of the pairs, the seed, `tokens_per_batch` and the number of batches in an update, so
    that the same updates follow, in another number of processes too.

    Args:
        recipe: of the run that is about to go on.
        checkpoint: at which it does.
        recipe_file: of the run that the checkpoint is from.

    Raises:
        UserError: an update would hold another number of batches, or batches of another size, than in the checkpoint.
    """
    before, now = saved_global_batch(checkpoint, recipe_file), global_batch_of(recipe)
    if before is None:
        if recipe.training.should_save:
            logger.warning("%s: does not tell how many batches an update held; not compared", checkpoint)
        return
    if before.size is None:
        if str(before) != str(now):
            raise UserError(
                f"{checkpoint}: was written by an earlier version with {before}; go on with the same, not with {now}: the "
                "next checkpoint allows other numbers"
            )
        return
    if before.size != now.size:
        raise UserError(
            f"{checkpoint}: was trained with batches of {before.size} {recipe.batch_unit}, the recipe says "
            f"{now.size}; set {recipe.batch_key} to {before.size} to go on"
        )
    if before.batches != now.batches:
        raise UserError(
            f"{checkpoint}: was trained with {_count(before.batches, 'batch', 'batches')} an update ({before}), this run "
            f"would make updates of {now.batches} ({now}); {_remedy(before, now)}, or train anew"
        )


def change_of_processes(recipe: Recipe, checkpoint: Path) -> str | None:
    """What to tell where another number of processes goes on than has written the checkpoint; None where it is the same."""
    before, now = saved_processes(checkpoint), recipe.training.world_size
    if before == now:
        return None
    return (
        f"written by {_count(before, 'process', 'processes')}, gone on with by {now}: the same updates, "
        "with dropout masks of their own"
    )


def _remedy(before: GlobalBatch, now: GlobalBatch) -> str:
    steps, rest = divmod(before.batches, now.processes)
    if not rest:
        return f"set training.gradient_accumulation_steps to {steps} to go on"
    counts = [str(count) for count in range(1, before.batches + 1) if before.batches % count == 0]
    return (
        f"start {' or '.join(counts)} processes, with training.gradient_accumulation_steps so that there are "
        f"{before.batches} together, to go on"
    )


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"
