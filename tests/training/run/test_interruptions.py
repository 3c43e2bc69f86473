"""What ends a training before its time: kills, SIGTERM, Ctrl-C, a disk that takes no more; nothing that was saved is lost."""

import errno
import os
import re
import resource
import signal

import pytest
import torch
from safetensors.torch import load_file

from reluformer.commands import main as cli
from reluformer.commands.train import train_and_document as train
from reluformer.configuration.errors import PeerLost
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.training.run.checkpoints import checkpoint_folders, read_run_state
from reluformer.training.run.interruptions import told_in_one_line
from reluformer.training.trainer import ReLUFormerTrainer

from .kill_harness import Harness


@pytest.fixture
def at_log(monkeypatch):
    """Calls a function when a training logs a given update, which is before it saves that update."""

    def install(update, action):
        original = ReLUFormerTrainer.log

        def log(self, logs, start_time=None):
            original(self, logs, start_time)
            if self.state.global_step == update and "loss" in logs:
                action()

        monkeypatch.setattr(ReLUFormerTrainer, "log", log)
        return lambda: monkeypatch.setattr(ReLUFormerTrainer, "log", original)

    return install


@pytest.fixture
def command(recipe_file, tmp_path):
    return ["train", "--config", str(recipe_file), "--training.output_dir", str(tmp_path / "broken")]


def assert_resumes_to_the_same_end(command, recipe, folder, capsys):
    """The same command again ends with the weights of a run that nothing has disturbed."""
    assert cli.main(command) == 0, capsys.readouterr().err
    whole = train(load_recipe(recipe))
    final, expected = load_file(folder / "model.safetensors"), load_file(whole / "model.safetensors")
    assert [name for name in expected if not torch.equal(final[name], expected[name])] == []


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


def test_sigterm_saves_and_the_same_command_goes_on(command, recipe_file, at_log, tmp_path, capsys):
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
    assert_resumes_to_the_same_end(command, recipe_file, folder, capsys)
    # else the mean of the last checkpoints would be another one
    assert [path.name for path in checkpoint_folders(folder)] == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]


def test_ctrl_c_tells_where_the_run_goes_on(command, at_log, tmp_path, capsys):
    def interrupt():
        raise KeyboardInterrupt

    remove = at_log(4, interrupt)
    assert cli.main(command) == 130
    remove()
    folder = tmp_path / "broken"
    assert last_error(capsys).endswith(f"interrupted: the same command resumes at {folder / 'checkpoint-2'}")


GLOO = "[/build/gloo/transport/tcp/pair.cc:537] "
LOSSES = {
    "reset": f"{GLOO}Read error [127.0.0.1]:28557: Connection reset by peer. This is typically caused by a bug",
    "timeout": f"{GLOO}Timed out waiting 1800000ms for recv operation to complete",
    "nccl": "NCCL error: remote process exited or there was a network error, NCCL version 2.28",
}


@pytest.mark.parametrize("message", LOSSES.values(), ids=LOSSES)
def test_a_process_that_was_lost_is_told_in_one_line(message, tmp_path):
    expected = f"a process of this run has ended or cannot be reached ({message}); there is no checkpoint yet"
    with pytest.raises(PeerLost, match=re.escape(expected)), told_in_one_line(tmp_path):
        raise RuntimeError(message)


def test_other_errors_of_torch_stay_what_they_are(tmp_path):
    with pytest.raises(RuntimeError, match="mat1 and mat2"), told_in_one_line(tmp_path):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (a peer timed out)")


def test_the_command_ends_with_a_status_of_its_own(command, at_log, tmp_path, capsys):
    def lose():
        raise RuntimeError(LOSSES["reset"])

    remove = at_log(4, lose)
    assert cli.main(command) == cli.EXIT_PEER_LOST == 74
    remove()
    folder = tmp_path / "broken"
    line = last_error(capsys)
    assert line.startswith("reluformer: a process of this run has ended or cannot be reached ([/build/gloo")
    assert line.endswith(f"the same command resumes at {folder / 'checkpoint-2'}")


def test_a_disk_that_takes_no_more_is_one_line(command, recipe_file, at_log, tmp_path, capsys):
    """A limit on the size of files stops safetensors, torch and Python alike where a full disk would."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    remove = at_log(4, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, unlimited[1])))
    try:
        status = cli.main(command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        remove()
    assert status == 2
    folder = tmp_path / "broken"
    line = last_error(capsys)
    assert line.startswith(f"reluformer: error: {folder}: cannot be written to (")
    assert line.endswith(f"the same command resumes at {folder / 'checkpoint-2'}")
    assert [path.name for path in checkpoint_folders(folder)] == ["checkpoint-2"]
    assert_resumes_to_the_same_end(command, recipe_file, folder, capsys)


@pytest.mark.parametrize("module", ["torch.save", "safetensors", "run state"])
def test_a_full_disk_is_named_whoever_meets_it(command, monkeypatch, tmp_path, capsys, module):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def full_in_rust(*arguments, **options):
        from safetensors import SafetensorError

        raise SafetensorError(f"Error while serializing: I/O error: No space left on device (os error {errno.ENOSPC})")

    if module == "torch.save":
        monkeypatch.setattr(torch, "save", full)
    elif module == "safetensors":
        monkeypatch.setattr("transformers.modeling_utils.safe_save_file", full_in_rust)
    else:
        monkeypatch.setattr("reluformer.training.trainer.publish_checkpoint", full)
    assert cli.main(command) == 2
    line = last_error(capsys)
    assert "(No space left on device; " in line
    assert line.endswith("there is no checkpoint yet")
    assert checkpoint_folders(tmp_path / "broken") == []


def test_a_folder_that_must_not_be_written_to_is_found_at_the_start(command, monkeypatch, tmp_path, capsys):
    if os.geteuid():
        tmp_path.chmod(0o500)
    else:  # nothing is forbidden to root

        def read_only(self, *arguments, **options):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

        monkeypatch.setattr("pathlib.Path.mkdir", read_only)
    monkeypatch.setattr(
        "reluformer.training.data.preparation.load_split", lambda *_: pytest.fail("the corpus was read")
    )
    try:
        assert cli.main(command) == 2
    finally:
        tmp_path.chmod(0o700)
    assert "cannot be written to (" in last_error(capsys)
