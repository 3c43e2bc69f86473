"""How the processes of a run were started: what was promised, what came of it, and what cannot train rightly.

Several launchers fail softly: they start one process where several were asked for, or several that do not know of each
other and write into one folder. Both are found here before anything is read or written.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from reluformer.configuration.errors import TrainingStopped, UserError, one_line

if TYPE_CHECKING:
    from reluformer.configuration.recipe import Recipe

# Where torchrun and the MPI launchers that accelerate knows say how many processes they have started.
_WORLD_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def launched_processes() -> int | None:
    """The number of processes that the launcher says it has started; None without a launcher.

    Raises:
        UserError: what it says is not a number of processes.
    """
    name = next((name for name in _WORLD_SIZES if os.environ.get(name)), None)
    if name is None:
        return None
    if not (os.environ[name].isdecimal() and int(os.environ[name]) > 0):
        raise UserError(
            f"{name} is {os.environ[name]!r}, expected the number of processes, which the launcher sets; unset it to train in "
            "one process"
        )
    return int(os.environ[name])


def check_environment(expected_world_size: int | None) -> None:
    """What the environment alone can tell; to be called before a process group is joined, which may wait for others.

    Args:
        expected_world_size: of the recipe.

    Raises:
        UserError: a launcher that has started one process silently, or another number than the recipe expects, or that
            would restart workers into a wait for dead ones.
    """
    launched = launched_processes()
    if launched is None and (address := os.environ.get("MASTER_ADDR")):
        raise UserError(
            f"MASTER_ADDR is {address!r} but WORLD_SIZE is not set: a launcher was asked for several processes and has started "
            "one (`accelerate launch --cpu --num_processes 2` does that); use `torchrun --nproc_per_node 2 -m reluformer "
            "train …` or `accelerate launch --config_file configuration/accelerate/cpu_two_processes.yaml …`, or unset "
            "MASTER_ADDR to train in one process"
        )
    _check_restarts()
    processes = launched or 1
    if expected_world_size is not None and processes != expected_world_size:
        raise UserError(
            f"expected_world_size: the recipe expects {expected_world_size} processes, {processes} "
            f"{'was' if processes == 1 else 'were'} started; start them with `torchrun --nproc_per_node "
            f"{expected_world_size} -m reluformer train …` (on one machine), or change expected_world_size"
        )


def _check_restarts() -> None:
    """torchrun keeps one store for all its restarts (torch 2.13): a worker of the second round that looks before its peer has
    written finds the address of the dead one there, and waits for it until the process group's timeout of half an hour."""
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS") or 0)
    if restarts > 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise UserError(
            f"torchrun --max_restarts {restarts}: workers that are started again may wait for dead ones, since torchrun keeps "
            "their addresses; start it as `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --max_restarts "
            f"{restarts} …`, on several machines with --rdzv_backend c10d and --rdzv_endpoint instead of --standalone"
        )


@contextlib.contextmanager
def joining() -> Iterator[None]:
    """Around what joins the process group.

    Raises:
        UserError: the first process of the training cannot be reached, or not all of them have come in time.
    """
    import torch.distributed

    try:
        yield
    except torch.distributed.DistError as error:
        place = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise UserError(
            f"the {launched_processes() or 1} processes of this training did not find each other at {place} "
            f"({one_line(error)[:200]}); MASTER_ADDR and MASTER_PORT must be those of the machine of RANK 0, reachable from "
            "here, and every process must be started"
        ) from error


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """Around a training: the process group is left at its end while Python is still whole.

    torch asks for that: what gloo's threads still hold is let go before Python is taken down around them. It is not enough, see
    `end_worker`. After an error the group is kept: what this process still owes the others would be waited for.
    """
    try:
        yield
    except TrainingStopped:  # by all processes, after the same update
        _leave_process_group()
        raise
    _leave_process_group()


def _leave_process_group() -> None:
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def end_worker(status: int) -> None:
    """Ends a process that a launcher has started, with all work done, with `status`; any other process goes on.

    Once in many runs, torch's threads abort a process in which Python is taken down around them (pytorch#190489): the launcher
    sees a failure where there is none, and that of another machine waits for minutes. So Python does what it does at its end up
    to that point (it waits for threads, calls what is registered with `atexit`, `logging.shutdown` among it, and writes out
    what open files hold), but is not taken down. For the end of a program alone: nothing is run after it.
    """
    if not any(os.environ.get(name) for name in _WORLD_SIZES):
        return
    threading._shutdown()
    atexit._run_exitfuncs()
    for held in gc.get_objects():
        if issubclass(type(held), (io.TextIOWrapper, io.BufferedWriter)):
            _write_out(held)
    os._exit(status)


def _write_out(file: io.TextIOWrapper | io.BufferedWriter) -> None:
    try:
        if not file.closed and file.writable():
            file.flush()
    except OSError as error:
        print(f"reluformer: {file.name}: {one_line(error)}", file=sys.stderr, flush=True)
    except ValueError:  # it was taken apart by `detach`, and holds nothing
        return


def check_launch(recipe: Recipe) -> None:
    """What is known once the training arguments have found their devices and joined the process group.

    Raises:
        UserError: see `check_environment`; processes that do not train together; sharding (FSDP) that the Trainer would
            replace by copies, or that the recipe's other wishes do not go with.
    """
    check_environment(recipe.expected_world_size)
    training, launched = recipe.training, launched_processes() or 1
    if training.world_size != launched:
        raise UserError(
            f"{launched} processes were started, but the Trainer found no device to connect them on, so that each would train "
            "alone; without GPUs, add --training.use_cpu true"
        )
    if is_sharded(recipe):
        _check_sharding(recipe)
    if training.use_cpu and training.world_size > 1:
        from torch.distributed import distributed_c10d

        # Transformers hands training.ddp_timeout to the process group of GPUs alone: on a CPU, a process would wait for one
        # that does not answer for the half hour that is torch's default.
        distributed_c10d._set_pg_timeout(timedelta(seconds=training.ddp_timeout))


def is_sharded(recipe: Recipe) -> bool:
    """Whether FSDP was asked for: by `training.fsdp`, or by the file given to `accelerate launch`."""
    return bool(recipe.training.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def _check_sharding(recipe: Recipe) -> None:
    if recipe.training.device.type == "cpu":
        raise UserError(
            "FSDP was asked for (training.fsdp, or an accelerate file such as fsdp2.yaml), but this run is on a CPU, where "
            "the Trainer does not shard and would go on with a whole copy in each process (DDP); leave FSDP out, or use GPUs"
        )
    if launched_processes() is None:
        raise UserError(
            "training.fsdp: needs processes that a launcher has started, one for each GPU: `torchrun --nproc_per_node 2 -m "
            "reluformer train …` (two GPUs)"
        )
    if os.environ.get("FSDP_STATE_DICT_TYPE", "FULL_STATE_DICT") != "FULL_STATE_DICT":
        raise UserError(
            f"fsdp_state_dict_type: {os.environ['FSDP_STATE_DICT_TYPE']} leaves no model.safetensors in the run folder; set "
            "FULL_STATE_DICT in the accelerate file"
        )
    if recipe.averaging.last_checkpoints > 1:
        raise UserError("averaging.last_checkpoints: does not go with FSDP; set it to 0, or train without FSDP")
    if getattr(recipe.evaluation, "at_most", 0) and recipe.training.eval_strategy != "no":
        raise UserError(
            "evaluation.at_most: translating during training does not go with FSDP; set it to 0 (the loss alone), or train "
            "without FSDP"
        )
