"""What is read from the folder of a run."""

import json

import pytest

from benchmarks.studies.collection import last_figure, read_log_history
from reluformer.configuration.errors import UserError

LOG = [{"step": 1, "loss": 2.0}]


def test_the_log_is_read_from_the_run_folder(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_log_history(tmp_path)
    path = tmp_path / "trainer_state.json"
    path.write_text("[]")
    with pytest.raises(UserError, match="no trainer state"):
        read_log_history(tmp_path)
    path.write_text(json.dumps({"log_history": LOG}))
    assert read_log_history(tmp_path) == LOG


def test_the_last_logged_values_of_a_name():
    history = [{"loss": 5.0}, {"eval_loss": 9.0}, {"loss": 3.0, "eval_loss": None}, {"loss": 1.0}]
    assert last_figure(history, "loss") == 1.0 and last_figure(history, "eval_loss") == 9.0
    assert last_figure(history, "loss", 2) == 2.0 and last_figure(history, "loss", 3) == 3.0
    assert last_figure(history, "loss", 4) is None and last_figure(history, "other") is None
