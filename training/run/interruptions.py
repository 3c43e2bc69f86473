"""How a training ends before its time: SIGTERM, Ctrl-C, a full disk, a lost process; and how a worker of several ends."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import SaveStrategy, get_last_checkpoint

from reluformer.configuration.errors import PeerLost, UserError, one_line


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
def told_in_one_line(run_folder: Path | None = None) -> Iterator[None]:
    """Around a training, or around what connects its processes, when the run folder is not known yet.

    Raises:
        UserError: a disk that is full or must not be written to.
        PeerLost: another process of the training was killed, or its machine cannot be reached.
        KeyboardInterrupt: Ctrl-C; its message says where the run resumes.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("" if run_folder is None else resumes_at(run_folder)) from None
    except UserError:
        raise
    except Exception as error:
        where = "" if run_folder is None else f"; {resumes_at(run_folder)}"
        if _is_loss_of_a_peer(error):
            message = one_line(error)[:200]
            raise PeerLost(f"a process of this run has ended or cannot be reached ({message}){where}") from error
        if run_folder is not None and (reason := _refusal_of_the_disk(error, run_folder)):
            raise UserError(f"{run_folder}: cannot be written to ({reason}){where}") from error
        raise


def resumes_at(run_folder: Path) -> str:
    """`the same command resumes at runs/demo/checkpoint-400`."""
    last = get_last_checkpoint(str(run_folder)) if run_folder.is_dir() else None
    return "there is no checkpoint yet" if last is None else f"the same command resumes at {last}"


# How gloo and NCCL tell that another process is gone.
_LOST = re.compile(r"gloo/transport|remote process exited|network error|Connection (closed|reset)")


def _is_loss_of_a_peer(error: Exception) -> bool:
    if not torch.distributed.is_available() or not isinstance(error, RuntimeError):
        return False
    return isinstance(error, torch.distributed.DistError) or bool(_LOST.search(str(error)))


_REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO)
_RUST_ERROR = re.compile(r"(?:\(os error |\bcode: )(\d+)")  # of safetensors and tokenizers
_TORCH_ERROR = re.compile(r"PytorchStreamWriter failed|inline_container\.cc.*unexpected pos")


def _refusal_of_the_disk(error: Exception, run_folder: Path) -> str | None:
    """Why a file of the run could not be written; None where the error is another one, of a corpus' file say."""
    named = [name for name in (getattr(error, f"filename{end}", None) for end in ("", "2")) if name is not None]
    if named and not any(_is_inside(name, run_folder) for name in named):
        return None
    found = _RUST_ERROR.search(str(error))
    number = int(found[1]) if found else getattr(error, "errno", None)
    if number not in _REFUSALS and not _TORCH_ERROR.search(str(error)):
        return None
    free = shutil.disk_usage(run_folder).free if run_folder.is_dir() else 0
    reason = os.strerror(number) if number in _REFUSALS else one_line(error)[:200]
    return f"{reason}; {free / 2**20:,.0f} MiB are free"


def _is_inside(name: str | bytes, folder: Path) -> bool:
    path, folder = Path(os.fsdecode(name)).resolve(), folder.resolve()
    return path.is_relative_to(folder) or folder.is_relative_to(path)


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
