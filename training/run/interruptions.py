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
    """SIGTERM ends the training after the update that is being computed, with a checkpoint.

    All processes stop after the same update, whichever of them the signal reached. A signal that comes while validation
    pairs are evaluated is heeded after the next update.

    Attributes:
        stopped: whether the training was ended.
        off_schedule: whether the checkpoint is one that the recipe does not ask for.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.stopped = self.off_schedule = False
        self._trainer = trainer
        self._received = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Takes the signal within the block; outside the main thread, where Python allows no handler, it does not."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._receive)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _receive(self, number: int, frame: Any) -> None:
        self._received = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._received_anywhere():
            return
        self.stopped = True
        self.off_schedule = not control.should_save
        if args.save_strategy == SaveStrategy.EPOCH:
            self.off_schedule = state.epoch != int(state.epoch)
        control.should_save = control.should_training_stop = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The Trainer calls it amid an epoch too, when training stops there.
        if self.stopped and state.epoch != int(state.epoch):
            control.should_log = control.should_evaluate = control.should_save = False

    def _received_anywhere(self) -> bool:
        if self._trainer.args.world_size == 1:
            return self._received
        received = torch.tensor(int(self._received), device=self._trainer.args.device)
        return bool(self._trainer.accelerator.reduce(received, reduction="sum").item())


@contextlib.contextmanager
def interrupted_at(run_folder: Path) -> Iterator[None]:
    """Around a training: a `KeyboardInterrupt` leaves it with a message that says where the run resumes."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(resumes_at(run_folder)) from None


def resumes_at(run_folder: Path) -> str:
    """`the same command resumes at runs/demo/checkpoint-400`."""
    last = get_last_checkpoint(str(run_folder)) if run_folder.is_dir() else None
    return "there is no checkpoint yet" if last is None else f"the same command resumes at {last}"


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    """Around a training: its processes leave their group at its end. After an error they do not, as that waits for the others."""
    yield
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def end_worker(status: int) -> None:
    """Ends a process that a launcher of several has started, with all work done.

    Once in many runs, torch's threads abort a process while Python is taken down around them (pytorch#190489), and the launcher
    sees a failure where there is none. So the process ends before that.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
