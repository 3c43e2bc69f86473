"""What ends a training before its time: kills, SIGTERM, Ctrl-C; nothing that was saved is lost."""

import os
import signal

import pytest
from transformers import TrainerControl, TrainerState

from reluformer.commands import main as cli
from reluformer.training.run.checkpoints import checkpoint_folders, read_run_state
from reluformer.training.run.interruptions import StopOnSigterm

from .kill_harness import Harness


@pytest.fixture
def command(recipe_file, tmp_path):
    return ["train", "--config", str(recipe_file), "--training.output_dir", str(tmp_path / "broken")]


def last_error(capsys) -> str:
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("reluformer:")]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(tmp_path):
    harness = Harness(tmp_path, seed=1)
    harness.kill(3)
    report = harness.report()
    assert report["kills"] >= 3
    assert report["while_a_checkpoint_was_being_written"] >= 1
    assert report["runs_ended_and_compared"] >= 1


def test_sigterm_saves_and_the_same_command_goes_on(command, at_log, tmp_path, capsys):
    before = signal.getsignal(signal.SIGTERM)
    remove = at_log(2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert cli.main(command) == cli.EXIT_STOPPED == 143
    remove()
    folder = tmp_path / "broken"
    extra = folder / "checkpoint-3"  # the recipe saves every second update
    line = last_error(capsys)
    assert line == f"reluformer: stopped by SIGTERM after update 3; the same command resumes at {extra}"
    assert read_run_state(extra)["off_schedule"]
    assert signal.getsignal(signal.SIGTERM) == before
    assert not (folder / "training_record.json").exists()
    assert cli.main(command) == 0, capsys.readouterr().err
    # else the mean of the last checkpoints would be another one
    assert [path.name for path in checkpoint_folders(folder)] == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]


@pytest.mark.parametrize(("epoch", "is_over"), [(1.5, False), (2.0, True)])
def test_a_training_that_ends_amid_an_epoch_does_not_do_what_belongs_to_its_end(epoch, is_over):
    control, stop = TrainerControl(should_log=True, should_evaluate=True, should_save=True), StopOnSigterm(None)
    stop.stopped = True
    stop.on_epoch_end(None, TrainerState(epoch=epoch), control)
    assert [control.should_log, control.should_evaluate, control.should_save] == [is_over] * 3


def test_ctrl_c_tells_where_the_run_goes_on(command, at_log, tmp_path, capsys):
    def interrupt():
        raise KeyboardInterrupt

    remove = at_log(4, interrupt)
    assert cli.main(command) == 130
    remove()
    folder = tmp_path / "broken"
    assert last_error(capsys).endswith(f"interrupted: the same command resumes at {folder / 'checkpoint-2'}")
