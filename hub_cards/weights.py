"""The weights of a model before they are published: all there, all numbers, and those of the configuration."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError
from transformers import PreTrainedConfig
from transformers.utils import logging

from reluformer.configuration.errors import UserError, one_line
from reluformer.training.loading import misfit, require_safetensors
from reluformer.training.run.progress import library_bars

WEIGHTS_FILE = "model.safetensors"
WEIGHTS_INDEX_FILE = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """The files of the weights: one, or the index and the shards it names.

    Raises:
        UserError: none are there, they are pickled, or the index is damaged or names shards that are not there.
    """
    require_safetensors(folder)
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    index = folder / WEIGHTS_INDEX_FILE
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{index}: is damaged ({one_line(error)}); save the model again") from error
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise UserError(f"{index}: names {name!r}, which is not in the folder; save the model again")
    return [index, *(folder / name for name in names)]


def check_weights(folder: Path, config: PreTrainedConfig, auto_class: str) -> None:
    """Loads the weights into the configuration's model, and looks at what the library reports and at every number.

    Args:
        auto_class: of Transformers, that makes the model.

    Raises:
        UserError: a tensor holds NaN or infinity, is missing, left over or of another shape, or a file is damaged.
    """
    first, *shards = weight_files(folder)
    try:
        with _in_silence():
            model, info = getattr(transformers, auto_class).from_pretrained(
                str(folder),
                config=config,
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # reported below
                output_loading_info=True,
            )
    except (SafetensorError, OSError) as error:
        where = f"{first}{' or one of its shards' if shards else ''}"
        raise UserError(f"{where}: is damaged ({one_line(error)}); save the model again") from error
    if (problem := misfit(info)) is not None:
        raise UserError(f"{folder}: weights and config.json do not fit: {problem}")
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise UserError(
                f"{folder}: the tensor {name} holds NaN or infinity; publish an earlier checkpoint's weights or train anew"
            )


@contextlib.contextmanager
def _in_silence() -> Iterator[None]:
    """Without the progress bar and the table of Transformers: what is wrong is told in one line."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with library_bars(shown=False):
            yield
    finally:
        logging.set_verbosity(verbosity)
