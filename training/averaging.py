"""The mean of the weights of a run's last checkpoints, as in Vaswani et al. (§6.1)."""

from __future__ import annotations

import logging
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from tqdm.auto import tqdm

from reluformer.configuration.errors import UserError
from reluformer.training.run.checkpoints import checkpoint_folders, update_of

logger = logging.getLogger(__name__)


def average_checkpoints(
    run_dir: str | Path, last_k: int, last_update: int | None = None
) -> tuple[dict[str, Tensor], list[Path]]:
    """Averages the weights of the last `last_k` checkpoints of a run, or with a warning of those that there are.

    Sums are kept in float64; the mean has the checkpoints' own dtype and is on the CPU. Tensors that are not floating
    point are those of the last checkpoint.

    Args:
        run_dir: folder with `checkpoint-N` folders that hold safetensors weights, in one file or in shards.
        last_update: later checkpoints do not count, as they are not of this run. None: all do.

    Returns:
        The averaged tensors that the checkpoints hold (a tied one once), and the folders, oldest first.

    Raises:
        UserError: no checkpoints; weights that are missing or unreadable, naming the folder.
    """
    folders = [each for each in checkpoint_folders(run_dir) if last_update is None or update_of(each) <= last_update]
    folders = folders[-last_k:]
    if not folders:
        raise UserError(f"{run_dir}: holds no checkpoint-N folder to average; train with training.save_strategy=steps")
    if len(folders) < last_k:
        logger.warning("%s: averaging %d checkpoints, not %d: there are no more.", run_dir, len(folders), last_k)
    last = _load_weights(folders[-1])
    sums = {name: tensor.double() for name, tensor in last.items() if tensor.is_floating_point()}
    for folder in tqdm(folders[:-1], desc="averaging checkpoints", unit="checkpoint", leave=False, disable=None):
        weights = _load_weights(folder)
        for name, total in sums.items():
            total += weights[name]
    means = {name: (total / len(folders)).to(last[name].dtype) for name, total in sums.items()}
    return {**last, **means}, folders


def _load_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, {name: tensor}, on the CPU."""
    files = sorted(folder.glob("model*.safetensors")) or [folder / "model.safetensors"]
    try:
        return {name: tensor for file in files for name, tensor in load_file(file).items()}
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{folder}: its weights cannot be read ({error}); remove the folder, or average fewer"
        ) from error
