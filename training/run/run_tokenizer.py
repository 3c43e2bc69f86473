"""The tokenizer of a run: the one of its checkpoint, the one that its recipe names, or a newly trained one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import Recipe
from reluformer.training.loading import load_tokenizer
from reluformer.training.run.progress import say


def run_tokenizer(
    recipe: Recipe, train: Callable[[], PreTrainedTokenizerBase], resume_from: Path | None
) -> PreTrainedTokenizerBase:
    """The tokenizer, the same on every process; a new one is written into the run folder.

    Args:
        recipe: of the run.
        train: makes a new one of the training split.
        resume_from: a checkpoint, whose tokenizer is taken.

    Raises:
        UserError: one that cannot be loaded.
    """
    with recipe.training.main_process_first(local=False, desc="tokenizer"):
        if resume_from is not None:
            return load_tokenizer(resume_from)
        for key, path in (("initialize_from", recipe.initialize_from), ("tokenizer.path", recipe.tokenizer.path)):
            if path is not None:
                return _named(key, path)
        if not recipe.training.should_save:  # the main process has trained it
            return load_tokenizer(recipe.run_folder)
        tokenizer = train()
        tokenizer.save_pretrained(recipe.run_folder)
    say(recipe, f"tokenizer: {len(tokenizer):,} pieces")
    return tokenizer


def _named(key: str, path: str) -> PreTrainedTokenizerBase:
    try:
        return load_tokenizer(path)
    except UserError as error:
        raise UserError(f"{key}: {error}") from error
