"""Runs independent pieces of one operation on several CPU threads, one torch thread each.

Small matrix products do not gain from being cut up among threads; whole heads do. The caller's thread settings stay as they
were: the workers' own count is local to them, and what is global to the process (MKL's) is put back at once.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

Piece = TypeVar("Piece")

_lock = threading.Lock()
# By the number of threads: one that another Python thread may be using is never shut down.
_pools: dict[int, ThreadPoolExecutor] = {}
_is_forked = False

# Multiplications and additions, for each thread, from which on it is worth to stop the threads that spin.
LONG_WORK = 3 * 2**27
_OMP_PAUSE_SOFT = 1  # of the OpenMP standard: all settings stay


def for_each(function: Callable[[Piece], None], pieces: Sequence[Piece], *, work: int = 0) -> None:
    """Calls `function` on every piece, on as many threads as `torch.get_num_threads()` says.

    With fewer pieces than threads, or one thread, the pieces run one after the other in the caller's thread, and each
    product uses the caller's threads. Pieces must write to places of their own. An error in a piece is raised here.

    Args:
        function: takes a piece.
        pieces: of the operation.
        work: multiplications and additions of all products together.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(pieces) < threads:
        for piece in pieces:
            function(piece)
        return
    if work >= LONG_WORK * threads:
        _stop_spinning()
    order = itertools.count()  # `next` is atomic: whoever is free takes the next piece
    # The mode is a thread's own, and without it a worker may not write to the caller's tensors.
    inference = torch.is_inference_mode_enabled()

    def take_pieces() -> None:
        with torch.inference_mode(inference), torch.no_grad():
            while (index := next(order)) < len(pieces):
                function(pieces[index])

    pool = _workers(threads)
    running = [pool.submit(take_pieces) for _ in range(threads)]
    for future in running:
        future.result()


def _workers(threads: int) -> ThreadPoolExecutor:
    with _lock:
        if threads not in _pools:
            pool = ThreadPoolExecutor(threads, "reluformer")
            started = threading.Barrier(threads)
            # The barrier makes every thread run this once.
            for future in [pool.submit(_use_one_torch_thread, started) for _ in range(threads)]:
                future.result()
            torch.set_num_threads(threads)
            _pools[threads] = pool
        return _pools[threads]


def _use_one_torch_thread(started: threading.Barrier) -> None:
    torch.get_num_threads()  # torch gives a new thread the process-wide count at its first question, and would do so later
    torch.set_num_threads(1)
    _use_one_mkl_thread()
    started.wait()


def _use_one_mkl_thread() -> None:
    """For this thread alone. MKL, whose logarithms the statistics take, otherwise follows a number of the whole process."""
    if torch.backends.mkl.is_available() and (set_threads := _symbol_of_torch("MKL_Set_Num_Threads_Local")) is not None:
        set_threads(1)


def _stop_spinning() -> None:
    """Ends the OpenMP threads that the caller's last parallel operator has left behind.

    They spin for some milliseconds in case there is another such operator, on processors that the workers need; the next
    one starts them again, in a tenth of a millisecond. Nothing where torch's OpenMP does not know how (before OpenMP 5).
    """
    pause = None if _is_forked else _symbol_of_torch("omp_pause_resource_all")
    if pause is not None:
        pause(_OMP_PAUSE_SOFT)


@functools.cache
def _symbol_of_torch(name: str) -> Any:
    """A C function of the libraries that torch was linked to; None where there is none of this name."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return getattr(ctypes.CDLL(str(library)), name, None) if library.is_file() else None


def _forget_workers() -> None:
    """A forked process has none of its parent's threads: neither these workers nor OpenMP's, for which it would wait forever."""
    global _pools, _lock, _is_forked
    _pools, _lock, _is_forked = {}, threading.Lock(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)
