"""`--overwrite` takes an earlier run away only when the new one can begin: until then its files are set aside, not removed."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import Recipe
from reluformer.training.run.checkpoints import remove_checkpoint, remove_leftovers
from reluformer.training.run.own_files import RECIPE_FILE, own_files_of_run, remove_files

logger = logging.getLogger(__name__)

_ASIDE = ".overwritten.partial"


def require_inputs_elsewhere(recipe: Recipe) -> None:
    """Raises a `UserError` that names an input of the run which `--overwrite` would take away, as it lies in the run folder."""
    folder = recipe.run_folder.resolve()
    for key, path in recipe.inputs():
        if path is not None and Path(path).exists() and Path(path).resolve().is_relative_to(folder):
            raise UserError(
                f"{key}: {path!r} lies in {recipe.run_folder}, which --overwrite would take away before it is read; give the "
                "run another name, or move what it begins with out of its folder"
            )


def set_aside(folder: Path) -> None:
    """Moves an earlier run, but for its recipe, to where [`removed_unless_it_fails`] and [`put_back`] find it.

    Raises:
        UserError: the folder holds what no run has written; it is named, and nothing is moved.
    """
    own_files_of_run(folder)
    remove_leftovers(folder)
    aside = folder / _ASIDE
    aside.mkdir()
    for path in list(folder.iterdir()):
        if path not in (aside, folder / RECIPE_FILE):
            path.rename(aside / path.name)
    shutil.copy2(folder / RECIPE_FILE, aside)  # the last: all is there now


def put_back(folder: Path) -> None:
    """Undoes [`set_aside`], wherever it or this function was interrupted, and removes what the new run has written since."""
    aside = folder / _ASIDE
    if not aside.is_dir():
        return
    if (aside / RECIPE_FILE).is_file():
        new = [path for path in own_files_of_run(folder) if aside not in path.parents and path != folder / RECIPE_FILE]
        remove_files(folder, new)
        os.replace(aside / RECIPE_FILE, folder / RECIPE_FILE)
    for path in list(aside.iterdir()):
        path.rename(folder / path.name)
    aside.rmdir()
    logger.warning("%s: the run that --overwrite was to replace is back, as the new one did not begin", folder)


@contextlib.contextmanager
def removed_unless_it_fails(folder: Path) -> Iterator[None]:
    """Removes the run that was set aside, if there is one, after the block, or puts it back if the block raises."""
    try:
        yield
    except BaseException:
        put_back(folder)
        raise
    if (folder / _ASIDE).is_dir():
        remove_checkpoint(folder / _ASIDE)
