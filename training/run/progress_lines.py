"""What a training shows while it goes on: one bar on a terminal, and everywhere one line for each logging."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tqdm.auto import tqdm
from transformers import TrainerCallback

from reluformer.training.run.progress import tell

# After so many updates it is told how long all of them will take; the first one is not counted, since it also warms up.
ESTIMATED_AFTER = 10


class ProgressLines(TrainerCallback):
    """In place of Transformers' bars and dictionaries; the main process alone writes.

    A line holds what was logged of `650/700 · loss 1.02 · validation loss 1.1 · BLEU 99.5 · dead rows 3 % · 17k tokens/s · 0:12
    left`; a logging and an evaluation after the same update share one. The time that is left counts evaluations as soon as
    one was made, where they come every so many updates. The bar is on stderr, the lines are on stdout.
    """

    def __init__(self) -> None:
        self._bar: tqdm | None = None
        self._logged: dict[str, float] = {}
        self._first_update = 0  # that this process makes
        self._clock: _Clock | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        self._first_update, self._clock, self._logged = state.global_step, None, {}
        self._bar = tqdm(
            total=state.max_steps,
            initial=state.global_step,
            desc="training",
            bar_format="{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} updates{postfix}",
            dynamic_ncols=True,
            leave=False,
            disable=True if args.disable_tqdm else None,  # None: where stderr is no terminal
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._bar is None:
            return
        if self._clock is None:
            self._clock = _Clock(state.global_step)
        self._clock.update(state.global_step)
        left = state.max_steps - state.global_step
        if state.global_step - self._first_update == ESTIMATED_AFTER and left > ESTIMATED_AFTER:
            tell(self._estimate(args, state))
        self._bar.set_postfix_str(self._time_left(args, state), refresh=False)
        self._bar.update(state.global_step - self._bar.n)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.set_description_str("evaluating")

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
        if "eval_loss" in logs and self._clock is not None:
            self._clock.evaluated()
        if "eval_loss" in logs or not control.should_evaluate:
            tell(progress_line(self._logged, state.global_step, state.max_steps, self._time_left(args, state)))
            self._logged = {}

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.set_description_str("training")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    def close(self) -> None:
        """Removes the bar, however the training has ended."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _time_left(self, args: Any, state: Any) -> str:
        """`0:12 left`; nothing before two updates were made, or after the last one."""
        left = state.max_steps - state.global_step
        if self._clock is None or self._clock.updates < 1 or left == 0:
            return ""
        return f"{clock_time(self._clock.seconds(left, evaluations_left(args, state)))} left"

    def _estimate(self, args: Any, state: Any) -> str:
        each, updates = self._clock.seconds(1, 0), state.max_steps - self._first_update
        evaluations = evaluations_left(args, state)
        without = f", without {evaluations} evaluation{'s' * (evaluations > 1)}" if evaluations else ""
        still = " that are left" if self._first_update else ""
        return (
            f"about {rough_time(each * updates)} for the {updates:,} updates{still} ({rough_time(each)} each{without})"
        )


class _Clock:
    """Mean seconds of an update and of an evaluation, from the end of the first update on."""

    def __init__(self, update: int) -> None:
        self._began = self._last = time.perf_counter()
        self._first_update = update
        self.updates = 0
        self._evaluating = 0.0
        self._evaluations = 0

    def update(self, update: int) -> None:
        """The end of an update."""
        self._last = time.perf_counter()
        self.updates = update - self._first_update

    def evaluated(self) -> None:
        """The end of an evaluation, which began right after the last update."""
        now = time.perf_counter()
        self._evaluating += now - self._last
        self._evaluations += 1
        self._last = now

    def seconds(self, updates: int, evaluations: int) -> float:
        """How long so many updates and evaluations will take; evaluations nothing as long as none was made."""
        each = (self._last - self._began - self._evaluating) / max(self.updates, 1)
        return each * updates + evaluations * self._evaluating / max(self._evaluations, 1)


def evaluations_left(args: Any, state: Any) -> int:
    """Evaluations after this update where they come every so many updates, otherwise 0: they are not foreseen."""
    if args.eval_strategy != "steps":
        return 0
    return state.max_steps // state.eval_steps - state.global_step // state.eval_steps


def progress_line(logged: Mapping[str, float], update: int, updates: int, left: str) -> str:
    """One line for a person of what the trainer has logged; figures that are not there are left out."""
    told = {
        "loss": "loss {:.3g}",
        "eval_loss": "validation loss {:.3g}",
        "eval_perplexity": "perplexity {:.4g}",
        "eval_bleu": "BLEU {:.1f}",
        "eval_tokenized_bleu": "tokenised BLEU {:.1f}",
        "eval_tokenized_lowercase_bleu": "lower-cased BLEU {:.1f}",
        "eval_accuracy": "accuracy {:.1f} %",
        "dead_row_fraction": "dead rows {}",
        "target_tokens_per_second": "{} tokens/s",
        "images_per_second": "{} pictures/s",
    }
    written = {
        "dead_row_fraction": percent,
        "target_tokens_per_second": short_number,
        "images_per_second": short_number,
    }
    figures = [
        text.format(written.get(name, float)(logged[name]))
        for name, text in told.items()
        if logged.get(name) is not None and not (name == "eval_tokenized_lowercase_bleu" and "eval_bleu" in logged)
    ]
    return " · ".join(part for part in (f"{update:,}/{updates:,}", *figures, left) if part)


def percent(share: float) -> str:
    """`3 %`, `0.2 %`, and `0 %` for none at all."""
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.01 else f"{100 * share:.1g} %"


def short_number(value: float) -> str:
    """`850`, `1.7k`, `17k`, `1.2M`."""
    for factor, unit in ((1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.{0 if value >= 10 * factor else 1}f}{unit}"
    return f"{value:.0f}"


def clock_time(seconds: float) -> str:
    """`0:12`, `12:05`, `26:03:04`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def rough_time(seconds: float) -> str:
    """`0.16 s`, `45 s`, `12 min`, `3.5 h`."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
