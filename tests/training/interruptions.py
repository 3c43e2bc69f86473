"""A run that ends without warning, and what it must have become when it has gone on."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from reluformer.commands.train import train_and_document as train
from reluformer.configuration.recipe_parser import parse_recipe
from reluformer.training.run.run_folder import RECORD_FILE


class Killed(Exception):
    pass


def train_until_killed(trainer: type, update: int, options: list[str], monkeypatch) -> None:
    """Begins the run of these options, whose `trainer` dies behind the log of an update."""
    original = trainer.log

    def log_until_killed(self, logs, start_time=None):
        original(self, logs, start_time)
        if self.state.global_step == update:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "log", log_until_killed)
        with pytest.raises(Killed):
            train(parse_recipe([*options, "--training.logging_steps", str(update)]))


def assert_gone_on_as(folder: Path, whole: Path, checkpoint: str) -> None:
    """The run in `folder` went on at a checkpoint and has the weights of one that was not interrupted."""
    final, expected = load_file(folder / "model.safetensors"), load_file(whole / "model.safetensors")
    assert all(torch.equal(final[name], expected[name]) for name in expected)
    assert json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))["resumed_from"].endswith(checkpoint)
