"""What a run tells while it goes on: lines anywhere, bars on a terminal alone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import datasets
import transformers
from tqdm.auto import tqdm

from reluformer.configuration.recipe import Recipe


def say(recipe: Recipe, line: str) -> None:
    """One line of progress, printed by the main process alone."""
    if recipe.training.should_save:
        tell(line)


def tell(line: str) -> None:
    """One line on stdout, clear of any progress bar, and at once where stdout is a file that somebody follows."""
    tqdm.write(line)
    sys.stdout.flush()


def bars_are_seen() -> bool:
    """Whether stderr is a terminal: a log file would hold every state of a bar."""
    return sys.stderr.isatty()


@contextlib.contextmanager
def library_bars(shown: bool) -> Iterator[None]:
    """Without the bars of Transformers, huggingface_hub and `datasets`, unless `shown`."""
    of_transformers, of_datasets = transformers.logging.is_progress_bar_enabled(), datasets.is_progress_bar_enabled()
    if not shown:
        transformers.logging.disable_progress_bar()
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if of_transformers:
            transformers.logging.enable_progress_bar()
        if of_datasets:
            datasets.enable_progress_bars()
