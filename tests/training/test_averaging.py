"""The mean of checkpoints, and what is refused."""

import json
import logging

import pytest
import torch
from safetensors.torch import save_file

from reluformer.configuration.errors import UserError
from reluformer.training.averaging import average_checkpoints


def write_checkpoint(run, number, **tensors):
    folder = run / f"checkpoint-{number}"
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_the_last_k_by_number_are_averaged(tmp_path):
    for number in (100, 20, 9):  # by name 9 would be the last
        write_checkpoint(tmp_path, number, w=torch.full((2,), float(number)), steps=torch.tensor([number]))
    (tmp_path / "checkpoint-final").mkdir()
    weights, folders = average_checkpoints(tmp_path, 2)
    assert [folder.name for folder in folders] == ["checkpoint-20", "checkpoint-100"]
    assert weights["w"].tolist() == [60.0, 60.0]
    assert weights["steps"].tolist() == [100]  # not floating point: the last
    for last_update in (20, 99):  # the run has not come to the last
        _, folders = average_checkpoints(tmp_path, 2, last_update=last_update)
        assert [folder.name for folder in folders] == ["checkpoint-9", "checkpoint-20"]


def test_sums_are_not_kept_in_half_precision(tmp_path):
    """256 + 1 is 256 in bfloat16, so a bfloat16 sum would forget the small ones."""
    for number, value in enumerate((1.0, 1.0, 1.0, 1.0, 256.0), start=1):
        write_checkpoint(tmp_path, number, w=torch.tensor([value], dtype=torch.bfloat16))
    weight = average_checkpoints(tmp_path, 5)[0]["w"]
    assert weight.dtype == torch.bfloat16
    assert weight.item() == 52.0


def test_fewer_checkpoints_than_wanted_is_said(tmp_path, caplog):
    write_checkpoint(tmp_path, 1, w=torch.ones(1))
    write_checkpoint(tmp_path, 2, w=torch.full((1,), 3.0))
    with caplog.at_level(logging.WARNING):
        weights, folders = average_checkpoints(tmp_path, 5)
    assert len(folders) == 2 and weights["w"].item() == 2.0
    assert "averaging 2 checkpoints, not 5" in caplog.text


def test_shards_are_read(tmp_path):
    write_checkpoint(tmp_path, 1, a=torch.zeros(1), b=torch.zeros(1))
    folder = tmp_path / "checkpoint-2"
    folder.mkdir()
    save_file({"a": torch.ones(1)}, folder / "model-1.safetensors")
    save_file({"b": torch.ones(1)}, folder / "model-2.safetensors")
    weight_map = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    state, _ = average_checkpoints(tmp_path, 2)
    assert {name: tensor.item() for name, tensor in state.items()} == {"a": 0.5, "b": 0.5}


def test_damaged_and_missing_weights_are_refused_with_the_folder(tmp_path):
    with pytest.raises(UserError, match="no checkpoint-N folder"):
        average_checkpoints(tmp_path, 2)
    folder = write_checkpoint(tmp_path, 1, w=torch.ones(100))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"checkpoint-1: its weights cannot be read"):
        average_checkpoints(tmp_path, 1)
    weights.unlink()
    with pytest.raises(UserError, match=r"checkpoint-1: its weights cannot be read"):
        average_checkpoints(tmp_path, 1)
