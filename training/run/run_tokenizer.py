"""The tokenizer of a run: the one that its recipe names, the one in its folder, or a newly trained one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from reluformer.configuration.errors import UserError
from reluformer.configuration.language_recipe import LanguageRecipe
from reluformer.configuration.recipe import Recipe
from reluformer.training.loading import load_tokenizer
from reluformer.training.run.progress import say
from reluformer.training.run.resumption import require_same_tokenizer


def run_tokenizer(
    recipe: Recipe | LanguageRecipe, train: Callable[[], PreTrainedTokenizerBase], resume_from: Path | None
) -> PreTrainedTokenizerBase:
    """The tokenizer, the same on every process; a new one is written into the run folder.

    Args:
        recipe: of the run.
        train: makes a new one of the training split.
        resume_from: a checkpoint; take the tokenizer that the run has trained already, and compare it with the checkpoint's.

    Raises:
        UserError: one that cannot be loaded, or that has become another one.
    """
    with recipe.training.main_process_first(local=False, desc="tokenizer"):
        # Processes that wait for the first one find its tokenizer.
        known = resume_from is not None or not recipe.training.should_save
        if resume_from is not None and recipe.training.should_save:
            _bring(recipe, resume_from)
        tokenizer = _found(recipe, from_run_folder=known)
        if tokenizer is None:
            tokenizer = train()
            tokenizer.save_pretrained(recipe.run_folder)
            say(recipe, f"tokenizer: {len(tokenizer):,} pieces")
    if resume_from is not None:
        require_same_tokenizer(tokenizer, resume_from)
    return tokenizer


def _bring(recipe: Recipe | LanguageRecipe, resume_from: Path) -> None:
    """Where a run goes on in another folder than its first updates, its own tokenizer is that of the checkpoint."""
    named = recipe.tokenizer.path or recipe.initialize_from
    if named is None and not (Path(recipe.run_folder) / "tokenizer_config.json").is_file():
        load_tokenizer(resume_from).save_pretrained(recipe.run_folder)


def _found(recipe: Recipe | LanguageRecipe, *, from_run_folder: bool) -> PreTrainedTokenizerBase | None:
    key, path = "tokenizer.path", recipe.tokenizer.path
    if recipe.initialize_from is not None:
        key, path = "initialize_from", recipe.initialize_from
    if path is not None:
        try:
            return load_tokenizer(path)
        except UserError as error:
            raise UserError(f"{key}: {error}") from error
    if not from_run_folder:
        return None
    say(recipe, f"tokenizer: the one in {recipe.run_folder}")
    return AutoTokenizer.from_pretrained(recipe.run_folder)
