"""What a run tells while it trains: lines anywhere, bars on a terminal alone."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from tqdm.auto import tqdm
from transformers import ProgressCallback, TrainerCallback


def say(line: str) -> None:
    """A line of the main process on stdout, clear of progress bars, and at once where stdout is a file that somebody
    follows."""
    if os.environ.get("RANK", "0") == "0":
        tqdm.write(line)
        sys.stdout.flush()


class ProgressBars(ProgressCallback):
    """Transformers' bars, without a dictionary for each log."""

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        """The line is printed by `ProgressLines`."""


class ProgressLines(TrainerCallback):
    """One line for each log, on stdout, of the main process alone; a log and an evaluation after the same update share
    it.

    `650/700 · loss 1.02 · validation loss 1.1 · BLEU 99.5 · dead rows 3.0% · 17,035 tokens/s · 00:12 left`
    """

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}
        self._began = self._first_update = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began, self._first_update = time.perf_counter(), state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self._logged |= logs or {}
        if state.is_world_process_zero and ("eval_loss" in self._logged or not control.should_evaluate):
            if "loss" in self._logged or "eval_loss" in self._logged:
                say(progress_line(self._logged, state.global_step, state.max_steps, self._time_left(state)))
            self._logged = {}

    def _time_left(self, state: Any) -> str:
        done, left = state.global_step - self._first_update, state.max_steps - state.global_step
        seconds = (time.perf_counter() - self._began) / max(done, 1) * left
        return f"{tqdm.format_interval(seconds)} left" if done and left else ""


_TOLD = {
    "loss": "loss {:.3g}",
    "eval_loss": "validation loss {:.3g}",
    "eval_bleu": "BLEU {:.1f}",
    "eval_tokenized_bleu": "tokenised BLEU {:.1f}",
    "eval_tokenized_lowercase_bleu": "lower-cased BLEU {:.1f}",
    "dead_row_fraction": "dead rows {:.1%}",
    "target_tokens_per_second": "{:,.0f} tokens/s",
}


def progress_line(logged: Mapping[str, float], update: int, updates: int, left: str) -> str:
    """One line for a person of what the trainer has logged; values that are not there are left out."""
    values = [text.format(float(logged[name])) for name, text in _TOLD.items() if logged.get(name) is not None]
    return " · ".join(part for part in (f"{update:,}/{updates:,}", *values, left) if part)
