"""The weights of a run before they are published: all there, all numbers, and those of the configuration."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.configuration.errors import UserError, one_line
from reluformer.training.loading import require_safetensors

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


def check_weights(folder: Path, config: ReLUFormerConfig) -> None:
    """Reads every tensor and compares the names and shapes with those of the configuration's model.

    Raises:
        UserError: a tensor that holds NaN or infinity, is missing, left over or of another shape; a damaged file.
    """
    found: dict[str, tuple[int, ...]] = {}
    for path in weight_files(folder):
        if path.suffix == ".safetensors":
            found |= _shapes_of_finite_tensors(path)
    expected, tied = _expected_shapes(config)
    # A file holds a tied tensor once, under any of its names.
    held = {tied.get(name, name) for name in found}
    problems = {
        "the weights lack": [name for name in expected if tied.get(name, name) not in held],
        "the configuration has no place for": [name for name in found if name not in expected],
    }
    for what, names in problems.items():
        if names:
            raise UserError(
                f"{folder}: weights and config.json do not fit: {what} {len(names)} tensors, first {names[0]}"
            )
    for name, shape in found.items():
        if shape != expected[name]:
            raise UserError(
                f"{folder}: weights and config.json do not fit: {name} has shape {list(shape)}, the configuration asks for "
                f"{list(expected[name])}"
            )


def _shapes_of_finite_tensors(path: Path) -> dict[str, tuple[int, ...]]:
    shapes = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (not a dict)
                tensor = file.get_tensor(name)
                if not torch.isfinite(tensor).all():
                    raise UserError(
                        f"{path}: the tensor {name} holds NaN or infinity; publish an earlier checkpoint's weights or train anew"
                    )
                shapes[name] = tuple(tensor.shape)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: is damaged ({one_line(error)}); save the model again") from error
    return shapes


def _expected_shapes(config: ReLUFormerConfig) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Shape of every saved tensor by name, and for each tied name the name of what it is tied to."""
    with torch.device("meta"):
        model = ReLUFormerForConditionalGeneration(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return shapes, dict(model.all_tied_weights_keys)
