"""What is read from the folder of a run."""

import json

import pytest

from benchmarks.studies.collection import read_log_history
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
