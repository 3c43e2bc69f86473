"""How a training ends before its time without losing what it has learned: SIGTERM, Ctrl-C, a full disk, a lost process."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import SaveStrategy

from reluformer.configuration.errors import PeerLost, UserError, one_line
from reluformer.training.run.checkpoints import MANIFEST_FILE, checkpoint_folders, fault_of


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

    def on_step_end(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
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
def told_in_one_line(run_folder: Path) -> Iterator[None]:
    """What the disk refuses becomes a `UserError`, a lost process a `PeerLost`, and Ctrl-C tells where the run goes on.

    Raises:
        UserError: a full disk, a folder that must not be written to, and the like.
        PeerLost: another process of the training was killed, or its machine cannot be reached.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(where_it_goes_on(run_folder)) from None
    except Exception as error:
        if (loss := _loss_of_a_peer(error)) is not None:
            # Not verified: a launcher that has seen the loss ends this process soon, and large files take longer to read.
            where = where_it_goes_on(run_folder, verify=False)
            raise PeerLost(f"a process of this run has ended or cannot be reached ({loss}); {where}") from error
        reason = None if isinstance(error, UserError) else _refusal(error, run_folder)
        if reason is None:
            raise
        free = _free(run_folder)
        raise UserError(
            f"{run_folder}: cannot be written to ({reason}; {free}); {where_it_goes_on(run_folder)}"
        ) from error


def where_it_goes_on(run_folder: Path, *, verify: bool = True) -> str:
    """`the same command goes on at runs/demo/checkpoint-400`.

    Args:
        run_folder: of the run.
        verify: compare all files with the manifests; otherwise a manifest is enough.
    """
    folders = checkpoint_folders(run_folder) if run_folder.is_dir() else []
    whole = (folder for folder in reversed(folders) if (folder / MANIFEST_FILE).is_file() or verify)
    last = next((folder for folder in whole if not verify or fault_of(folder) is None), None)
    return "there is no complete checkpoint yet" if last is None else f"the same command goes on at {last}"


_REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR)
_RUST_ERROR = re.compile(r"(?:\(os error |\bcode: )(\d+)")  # how safetensors and tokenizers tell it
_TORCH_ERROR = re.compile(r"PytorchStreamWriter failed|inline_container\.cc.*unexpected pos")


# How gloo and NCCL tell that another process is gone. gloo's last sentence is not about this run.
_LOST = re.compile(r"gloo/transport/\S+\s+(.*?(?:by peer(?: \[[^]]*\]:\d+)?|[Tt]imed out[^.]*|refused))(?=\W|$)")
_LOST_NCCL = re.compile(r"remote process exited or there was a network error")


def _loss_of_a_peer(error: Exception) -> str | None:
    """How another process of the training was lost; None where the error is another one."""
    if not isinstance(error, RuntimeError) or not torch.distributed.is_available():
        return None
    message = one_line(error)
    if found := _LOST.search(message):
        return found[1]
    lost = isinstance(error, torch.distributed.DistNetworkError) or _LOST_NCCL.search(message)
    return message[:200] if lost else None


def _refusal(error: Exception, run_folder: Path) -> str | None:
    """Why a file of the run could not be written; None where the error is another one."""
    number = getattr(error, "errno", None)
    if found := _RUST_ERROR.search(str(error)):
        number = int(found[1])
    if isinstance(error, OSError):
        named = [name for name in (error.filename, error.filename2) if name is not None]
        if named and not any(_is_inside(name, run_folder) for name in named):
            return None  # a file of the corpus, say
    if number in _REFUSALS:
        return os.strerror(number)
    return one_line(error)[:200] if _TORCH_ERROR.search(str(error)) else None


def _is_inside(name: Any, folder: Path) -> bool:
    path = Path(os.path.abspath(os.fsdecode(name)))
    folder = Path(os.path.abspath(folder))
    return path.is_relative_to(folder) or folder.is_relative_to(path)


def _free(folder: Path) -> str:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return f"{shutil.disk_usage(folder).free / 2**20:,.0f} MiB are free on its disk"
