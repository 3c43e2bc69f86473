"""The folder of a run: whether training starts in it, goes on in it, or must not touch it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from reluformer.configuration.recipe import Recipe
from reluformer.configuration.recipe_parser import recipe_to_dict
from reluformer.training.averaging import checkpoint_folders
from reluformer.training.errors import UserError

RECIPE_FILE = "recipe.yaml"
RECORD_FILE = "training_record.json"
# What may differ between a run and its continuation: how long it lasts, what is reported, how it is evaluated. The
# rest decides what is learned.
_MAY_CHANGE = ("description", "evaluation", "averaging", "on_divergence", "training")


def checkpoint_to_resume(recipe: Recipe, *, overwrite: bool = False) -> Path | None:
    """The checkpoint at which training goes on, or None to start anew.

    An explicit `training.resume_from_checkpoint` is followed. Otherwise a run with unfinished checkpoints goes on at its
    last one, and a finished run is refused.

    Args:
        recipe: the run that is about to begin.
        overwrite: delete what an earlier run of this name has left.

    Raises:
        UserError: a finished run, a folder that is not a run's, a checkpoint that does not exist, or a recipe that
            differs from the one the checkpoints were trained with.
    """
    folder = recipe.run_folder
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; give another training.output_dir")
    if explicit := recipe.training.resume_from_checkpoint:
        if overwrite:
            raise UserError(
                "--overwrite deletes the checkpoint that training.resume_from_checkpoint wants; give one of them"
            )
        if not (Path(explicit) / "trainer_state.json").is_file():
            raise UserError(f"training.resume_from_checkpoint: {explicit!r} is no checkpoint folder of a training run")
        return Path(explicit)
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    if not (folder / RECIPE_FILE).is_file():
        raise UserError(
            f"{folder}: holds files but no {RECIPE_FILE}, so it is not a run's; give another training.output_dir"
        )
    if overwrite:
        shutil.rmtree(folder)
        return None
    if (folder / RECORD_FILE).is_file():
        raise UserError(
            f"{folder}: holds a finished run; give another name or training.output_dir, or --overwrite to train it anew"
        )
    # A checkpoint that was being written when the run was killed has no state yet.
    complete = [path for path in checkpoint_folders(folder) if (path / "trainer_state.json").is_file()]
    if not complete:
        return None
    _require_same_recipe(recipe, folder)
    return complete[-1]


def _require_same_recipe(recipe: Recipe, folder: Path) -> None:
    before = yaml.safe_load((folder / RECIPE_FILE).read_text(encoding="utf-8"))
    now = recipe_to_dict(recipe)
    for section in now:
        if section not in _MAY_CHANGE:
            _require_same(section, before.get(section), now[section], folder)
    for name in ("seed", "data_seed", "gradient_accumulation_steps"):
        _require_same(f"training.{name}", before["training"].get(name), now["training"].get(name), folder)


def _require_same(name: str, before: Any, now: Any, folder: Path) -> None:
    if before == now:
        return
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            _require_same(f"{name}.{key}", before.get(key), now.get(key), folder)
        return  # a key that one of them lacks, since it was written by another version, is null in the other
    raise UserError(
        f"{folder}: holds checkpoints trained with {name} {before!r}, the recipe says {now!r}; "
        "give another name, or --overwrite to train anew"
    )
