"""How a training ends before its time, by SIGTERM or Ctrl-C; and how a worker of several ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import SaveStrategy, get_last_checkpoint


class StopOnSigterm(TrainerCallback):
    """SIGTERM ends the training after the update that is being computed, with a checkpoint; in all processes the same.

    Attributes:
        stopped: whether the training was ended.
        off_schedule: whether the checkpoint is one that the recipe does not ask for.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.stopped = self.off_schedule = self._received = False
        self._asked: torch.Tensor | None = None  # at the update before, in how many processes
        self._trainer = trainer

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Takes the signal within the block; outside the main thread, where Python allows no handler, it does not."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, lambda number, frame: setattr(self, "_received", True))
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._received_anywhere():
            by_epoch = args.save_strategy == SaveStrategy.EPOCH
            self.off_schedule = state.epoch != int(state.epoch) if by_epoch else not control.should_save
            self.stopped = control.should_save = control.should_training_stop = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The Trainer calls it amid an epoch too, when training stops there.
        if self.stopped and state.epoch != int(state.epoch):
            control.should_log = control.should_evaluate = control.should_save = False

    def _received_anywhere(self) -> bool:
        """Of several processes, whether one had received it an update ago: that is known by now, and no update waits
        until the device has computed it."""
        if self._trainer.args.world_size == 1:
            return self._received
        received = torch.tensor(int(self._received), device=self._trainer.args.device)
        before, self._asked = self._asked, self._trainer.accelerator.reduce(received, reduction="sum")
        return before is not None and bool(before.item())


@contextlib.contextmanager
def orderly_end(run_folder: Path) -> Iterator[None]:
    """Around a training: `KeyboardInterrupt` says where the run resumes, and at the end processes leave their group.

    After an error they do not, as that waits for the others.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(resumes_at(run_folder)) from None
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def resumes_at(run_folder: Path) -> str:
    """`the same command resumes at runs/demo/checkpoint-400`."""
    last = get_last_checkpoint(str(run_folder)) if run_folder.is_dir() else None
    return "there is no checkpoint yet" if last is None else f"the same command resumes at {last}"


def end_worker(status: int) -> None:
    """Ends a process that a launcher of several has started, with all work done, before Python is taken down.

    Once in many runs, torch's threads abort a process then (pytorch#190489), and the launcher sees a failure where
    there is none.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
