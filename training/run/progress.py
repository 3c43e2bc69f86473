"""What a run tells while it trains: lines anywhere, bars on a terminal alone."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import datasets
import transformers
from tqdm.auto import tqdm
from transformers import TrainerCallback


def say(line: str) -> None:
    """One line of progress, printed by the main process alone."""
    if os.environ.get("RANK", "0") == "0":
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


class ProgressLines(TrainerCallback):
    """In place of Transformers' bars and dictionaries: a bar where stderr is a terminal, and one line for each log.

    `650/700 · loss 1.02 · validation loss 1.1 · BLEU 99.5 · dead rows 3.0% · 17,035 tokens/s · 0:12 left`; a log and an
    evaluation after the same update share a line. The bar is on stderr, the lines are on stdout, of the main process alone.
    """

    def __init__(self) -> None:
        self._bar: tqdm | None = None
        self._logged: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        self._began, self._first_update = time.perf_counter(), state.global_step
        hidden = True if args.disable_tqdm else None  # None: where stderr is no terminal
        self._bar = tqdm(
            desc="training",
            total=state.max_steps,
            initial=state.global_step,
            unit="update",
            leave=False,
            disable=hidden,
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.update(1)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, float] | None = None, **kwargs: Any
    ) -> None:
        if self._bar is None or logs is None:
            return
        if "train_runtime" in logs:
            updates = state.global_step - self._first_update
            tell(f"trained {updates:,} updates in {clock_time(logs['train_runtime'])}")
            return
        self._logged |= logs
        if "eval_loss" in logs or not control.should_evaluate:
            tell(progress_line(self._logged, state.global_step, state.max_steps, self._time_left(state)))
            self._logged = {}

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    def close(self) -> None:
        """Removes the bar, however the training has ended."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _time_left(self, state: Any) -> str:
        done, left = state.global_step - self._first_update, state.max_steps - state.global_step
        return f"{clock_time((time.perf_counter() - self._began) / done * left)} left" if done and left else ""


_TOLD = {
    "loss": "loss {:.3g}",
    "eval_loss": "validation loss {:.3g}",
    "eval_perplexity": "perplexity {:.4g}",
    "eval_bleu": "BLEU {:.1f}",
    "eval_tokenized_bleu": "tokenised BLEU {:.1f}",
    "eval_tokenized_lowercase_bleu": "lower-cased BLEU {:.1f}",
    "eval_accuracy": "accuracy {:.1f} %",
    "dead_row_fraction": "dead rows {:.1%}",
    "target_tokens_per_second": "{:,.0f} tokens/s",
    "images_per_second": "{:,.0f} pictures/s",
}


def progress_line(logged: Mapping[str, float], update: int, updates: int, left: str) -> str:
    """One line for a person of what the trainer has logged; values that are not there are left out."""
    values = [text.format(float(logged[name])) for name, text in _TOLD.items() if logged.get(name) is not None]
    return " · ".join(part for part in (f"{update:,}/{updates:,}", *values, left) if part)


def clock_time(seconds: float) -> str:
    """`0:12`, `12:05`, `26:03:04`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
