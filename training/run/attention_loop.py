"""Which loop computes the attention of a training on a CPU: a run goes on with the one it began with, where that can be had.

Both loops draw the same dropout masks and have the same results to rounding.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import PreTrainedModel

from reluformer.modeling_reluformer.fused.compiled import library
from reluformer.training.run.checkpoints import read_manifest

logger = logging.getLogger(__name__)

# The values of `attn_implementation` that have two loops on a CPU.
_IMPLEMENTATIONS = ("fused", "reluformer")


@contextlib.contextmanager
def attention_loop(
    model: PreTrainedModel, device: torch.device, checkpoint: Path | None, *, tell: bool
) -> Iterator[str | None]:
    """Within the block, one loop computes the attention of a training; the compiled one is built before, if need be.

    A run that began with the Python loop goes on with it, unless RELUFORMER_COMPILED=1 demands the other.

    Args:
        model: that is trained.
        device: where.
        checkpoint: at which the training goes on, None if it begins.
        tell: whether this process says in one line that a run keeps or changes its loop.

    Yields:
        "compiled" or "python"; None where neither computes: on another device, with another implementation.

    Raises:
        CompiledAttentionError: RELUFORMER_COMPILED has an unknown value, or demands what cannot be built.
    """
    if device.type != "cpu" or model.config._attn_implementation not in _IMPLEMENTATIONS:
        yield None
        return
    before = None if checkpoint is None else (read_manifest(checkpoint) or {}).get("attention_loop")
    if before == "python" and library.chosen() is None:
        if tell:
            logger.warning(
                "%s: was trained with the Python loop of the attention, and goes on with it; %s=1 changes to the compiled one",
                *(checkpoint, library.VARIABLE),
            )
        with library.python_loop():
            yield "python"
        return
    library.library(large=True)
    now = library.loop_name()
    if before not in (None, now) and tell:
        logger.warning(
            "%s: was trained with the %s loop of the attention, and goes on with the %s one; results differ by rounding",
            *(checkpoint, _TITLES[before], _TITLES[now]),
        )
    yield now


_TITLES = {"compiled": "compiled", "python": "Python"}
