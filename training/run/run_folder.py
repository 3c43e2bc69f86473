"""The folder of a run: whether training starts in it, goes on in it, or must not touch it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import yaml

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import Recipe
from reluformer.configuration.recipe_parser import is_saved_recipe, recipe_to_dict, save_recipe
from reluformer.configuration.recipe_text import read_recipe_text
from reluformer.training.run.checkpoints import (
    MANIFEST_FILE,
    checkpoint_folders,
    fault_of,
    is_leftover,
    remove_leftovers,
    remove_off_schedule,
)
from reluformer.training.run.global_batch import require_same_updates
from reluformer.training.run.overwriting import put_back, require_inputs_elsewhere, set_aside
from reluformer.training.run.own_files import RECIPE_FILE
from reluformer.training.run.resumption import (
    require_same_recipe,
    require_same_training_files,
    require_unfinished_length,
)

logger = logging.getLogger(__name__)

RECORD_FILE = "training_record.json"
CARD_FILE = "README.md"  # the last file of a run
_TRAIN_ANEW = "give another name, or --overwrite to train anew"
_WITHOUT = "leave training.resume_from_checkpoint out to train anew"


def checkpoint_to_resume(recipe: Recipe, *, overwrite: bool = False) -> Path | None:
    """The checkpoint at which training goes on, or None to start anew.

    An explicit `training.resume_from_checkpoint` is followed. Otherwise an unfinished run goes on at the last checkpoint
    that is whole, with a warning for each that is not, and a finished run is refused. What a process that was killed has left
    half written is removed.

    Args:
        recipe: the run that is about to begin.
        overwrite: set aside what an earlier run of this name has left, but for its recipe, which [`write_recipe`] replaces.

    Raises:
        UserError: a finished run, a folder that is not a run's or, with `overwrite`, holds other files too or what the run
            begins with, a recipe in it that somebody has written and that would be replaced, an explicit checkpoint that does
            not exist or is damaged, a recipe or training files that differ from those the checkpoints were trained with, in
            the batches of an update too: processes × accumulation steps; a training that ends before the checkpoint.
    """
    folder = recipe.run_folder
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; give another training.output_dir")
    if recipe.training.should_save:
        put_back(folder)  # of an `--overwrite` that was killed
    if (folder / RECIPE_FILE).is_file():
        _require_replaceable(recipe, folder / RECIPE_FILE)
    if explicit := recipe.training.resume_from_checkpoint:
        if overwrite:
            raise UserError(
                "--overwrite deletes the checkpoint that training.resume_from_checkpoint wants; give one of them"
            )
        if not (Path(explicit) / "trainer_state.json").is_file():
            raise UserError(f"training.resume_from_checkpoint: {explicit!r} is no checkpoint folder of a training run")
        if fault := fault_of(Path(explicit)):
            raise UserError(f"training.resume_from_checkpoint: {explicit!r} cannot be used: {fault}; give another one")
        require_same_updates(recipe, Path(explicit), Path(explicit).parent / RECIPE_FILE)
        _require_same_training(recipe, Path(explicit).parent)
        require_unfinished_length(recipe, Path(explicit), remedy=_WITHOUT)
        _require_newest(recipe, Path(explicit))
        return Path(explicit)
    if not folder.is_dir() or all(is_leftover(path) for path in folder.iterdir()):
        return None
    if not (folder / RECIPE_FILE).is_file():
        raise UserError(
            f"{folder}: holds files but no {RECIPE_FILE}, so it is not a run's; give another training.output_dir"
        )
    if overwrite:
        require_inputs_elsewhere(recipe)
        set_aside(folder)
        return None
    if is_finished(folder):
        raise UserError(
            f"{folder}: holds a finished run; give another name or training.output_dir, or --overwrite to train it anew"
        )
    if recipe.training.should_save:
        remove_leftovers(folder)
    last = _last_whole_checkpoint(folder, tell=recipe.training.should_save)
    if last is None:
        if (folder / RECORD_FILE).is_file():
            raise UserError(
                f"{folder}: holds a run that is trained but was not evaluated to the end, and no checkpoint to go on at; "
                f"`reluformer evaluate --run {folder}` evaluates it, --overwrite trains it anew"
            )
        return None
    require_same_recipe(recipe, folder / RECIPE_FILE, remedy=_TRAIN_ANEW)
    require_same_training_files(recipe, folder, remedy=_TRAIN_ANEW)
    require_same_updates(recipe, last, folder / RECIPE_FILE)
    require_unfinished_length(recipe, last, remedy=_TRAIN_ANEW)
    if recipe.training.should_save:
        remove_off_schedule(folder, last)
    return last


def write_recipe(recipe: Recipe) -> None:
    """Writes the resolved recipe into the run folder, unless the file there says the same already, with comments perhaps."""
    path = recipe.run_folder / RECIPE_FILE
    if not path.is_file() or not _says_the_same(recipe, read_recipe_text(path)):
        save_recipe(recipe, path)


def _says_the_same(recipe: Recipe, text: str) -> bool:
    return yaml.safe_load(text) == recipe_to_dict(recipe)


def _require_replaceable(recipe: Recipe, path: Path) -> None:
    text = read_recipe_text(path)
    if not _says_the_same(recipe, text) and not is_saved_recipe(text):
        raise UserError(
            f"{path}: was not written by a run, which would put its resolved recipe in its place; give another "
            "training.output_dir, so that yours stays as it is"
        )


def _require_same_training(recipe: Recipe, before: Path) -> None:
    """Of the run in whose folder an explicit checkpoint lies."""
    if not (before / RECIPE_FILE).is_file():
        if recipe.training.should_save:
            logger.warning("%s: has no %s to compare this one with", before, RECIPE_FILE)
        return
    require_same_recipe(recipe, before / RECIPE_FILE, remedy=_WITHOUT, other_name=True)
    require_same_training_files(recipe, before, remedy=_WITHOUT)


def _require_newest(recipe: Recipe, explicit: Path) -> None:
    """A mean of checkpoints, and the next start, would take later ones, and those of another training, for this one's."""
    folder = recipe.run_folder
    if not folder.is_dir():
        return
    if explicit.resolve().parent != folder.resolve():
        says = read_recipe_text(folder / RECIPE_FILE) if (folder / RECIPE_FILE).is_file() else ""
        if checkpoint_folders(folder) and not _says_the_same(recipe, says):
            raise UserError(
                f"{folder}: holds checkpoints of another training than {str(explicit)!r} (training.resume_from_checkpoint); give "
                "another name or training.output_dir"
            )
        return
    updates = json.loads((explicit / "trainer_state.json").read_text(encoding="utf-8")).get("global_step") or 0
    others = [path.name for path in checkpoint_folders(folder) if path.name != explicit.resolve().name]
    if later := [name for name in others if int(name.rpartition("-")[2]) > updates]:
        raise UserError(
            f"training.resume_from_checkpoint: {str(explicit)!r} is not the last one of its run; remove "
            f"{' and '.join(later)}, or give another training.output_dir to branch off"
        )


def is_finished(folder: Path) -> bool:
    """Whether a run has left everything: its record, and its card unless it has diverged and has nothing to show."""
    record = folder / RECORD_FILE
    if not record.is_file():
        return False
    return (folder / CARD_FILE).is_file() or bool(json.loads(record.read_text(encoding="utf-8")).get("diverged"))


def _last_whole_checkpoint(folder: Path, *, tell: bool) -> Path | None:
    folders = checkpoint_folders(folder)
    for checkpoint in reversed(folders):
        fault = fault_of(checkpoint)
        if fault is None:
            if tell and not (checkpoint / MANIFEST_FILE).is_file():
                logger.warning("%s: has no manifest, so its files were checked less strictly", checkpoint)
            return checkpoint
        if tell:
            logger.warning("%s: not used: %s", checkpoint, fault)
    if folders and tell:
        logger.warning("%s: no checkpoint can be used; training starts anew", folder)
    return None
