"""What a run tells while it goes on."""

from __future__ import annotations

from tqdm.auto import tqdm

from reluformer.configuration.recipe import Recipe


def say(recipe: Recipe, line: str) -> None:
    """One line of progress, printed by the main process alone and clear of any progress bar."""
    if recipe.training.should_save:
        tqdm.write(line)
