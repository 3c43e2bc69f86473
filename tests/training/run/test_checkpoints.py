"""A checkpoint appears whole, and the right ones stay."""

import json
import os
import resource
import shutil

import pytest

from reluformer.configuration.errors import UserError
from reluformer.training.run.checkpoints import (
    RUN_STATE_FILE,
    checkpoint_folders,
    publish_checkpoint,
    read_run_state,
    require_whole,
    saved_processes,
)

from ..tiny_run import tiny_pairs, tiny_trainer


def names(folder):
    return [path.name for path in checkpoint_folders(folder)]


def test_a_checkpoint_gets_its_name_when_all_of_it_is_on_the_disk(tmp_path, monkeypatch):
    synced, sync = [], os.fsync

    def record(descriptor):
        (path,) = (
            path for path in (tmp_path, *tmp_path.rglob("*")) if os.path.samestat(path.stat(), os.fstat(descriptor))
        )
        synced.append((path, (tmp_path / "checkpoint-2" / "new").exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    partial = tmp_path / "partial"
    (partial / "shards").mkdir(parents=True)
    (tmp_path / "checkpoint-2").mkdir()  # of an attempt before
    for name in ("new", "shards/0"):
        (partial / name).write_text(name)
    publish_checkpoint(partial, tmp_path / "checkpoint-2", {"seconds": 2.5})
    *before, last = synced
    assert {path for path, _ in before} == {
        partial, *(partial / name for name in ("new", "shards", "shards/0", RUN_STATE_FILE))
    }  # fmt: skip
    assert not any(named for _, named in before) and last == (tmp_path, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2"]
    assert read_run_state(tmp_path / "checkpoint-2") == {"seconds": 2.5, "files": {"new": 3, "shards/0": 8}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A checkpoint after two updates of four, and what trains them."""
    folder = tmp_path_factory.mktemp("trained")
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    tiny_trainer(folder, **options).train()
    return folder / "checkpoint-2", options


def test_a_checkpoint_of_which_a_file_is_missing_or_cut_off_is_refused_with_its_name(trained, tmp_path):
    whole, options = trained
    files = read_run_state(whole)["files"]
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"} <= files.keys()
    require_whole(whole)
    for name, size in files.items():
        checkpoint = shutil.copytree(whole, tmp_path / name / "checkpoint-2")
        (checkpoint / name).write_bytes((whole / name).read_bytes()[:-1])
        with pytest.raises(UserError, match=rf"checkpoint-2: its file {name} has {size - 1:,} bytes, and had {size:,}"):
            require_whole(checkpoint)
        (checkpoint / name).unlink()
        with pytest.raises(
            UserError, match=rf"checkpoint-2: its file {name} is missing, .*; copy the checkpoint again"
        ):
            tiny_trainer(tmp_path / name, **options).train(resume_from_checkpoint=True)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"])
def test_a_checkpoint_without_a_list_of_its_files_has_those_that_every_trainer_writes(trained, tmp_path, name):
    checkpoint = shutil.copytree(trained[0], tmp_path / "checkpoint-2")
    (checkpoint / RUN_STATE_FILE).unlink()
    require_whole(checkpoint)
    (checkpoint / name).unlink()
    with pytest.raises(UserError, match=f"its file {name} is missing"):
        require_whole(checkpoint)
    (checkpoint / "global_step2").mkdir()  # DeepSpeed's
    if name != "trainer_state.json":
        require_whole(checkpoint)


def test_the_random_numbers_of_each_process_are_needed(tmp_path):
    partial, checkpoint = tmp_path / "partial", tmp_path / "checkpoint-2"
    (partial / "optimizer_0").mkdir(parents=True)  # FSDP's
    for name in ("rng_state_0.pth", "rng_state_1.pth", "optimizer_0/__0_0.distcp", "trainer_state.json"):
        (partial / name).write_text("{}")
    publish_checkpoint(partial, checkpoint, {})
    require_whole(checkpoint)
    (checkpoint / "trainer_state.json").write_text("{]")  # of the same size
    with pytest.raises(UserError, match=r"trainer_state\.json: is damaged .*; copy the checkpoint again"):
        require_whole(checkpoint)
    (checkpoint / "trainer_state.json").write_text("{}")
    for name in ("rng_state_1.pth", "optimizer_0/__0_0.distcp"):
        (checkpoint / name).unlink()
        with pytest.raises(UserError, match=f"its file {name} is missing"):
            require_whole(checkpoint)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_file_of_zeros_is_refused_in_one_line(trained, tmp_path, name):
    """As long as it was: the disk has lost what it held."""
    whole, options = trained
    checkpoint = shutil.copytree(whole, tmp_path / "checkpoint-2")
    (checkpoint / name).write_bytes(bytes((whole / name).stat().st_size))
    with pytest.raises(
        UserError, match=r"checkpoint-2: cannot be loaded \(\w+: .*\); copy the checkpoint again"
    ) as caught:
        tiny_trainer(tmp_path, **options).train(resume_from_checkpoint=str(checkpoint))
    assert "\n" not in str(caught.value)


def test_only_numbered_folders_are_checkpoints(tmp_path):
    for name in ("checkpoint-10", "checkpoint-9", "checkpoint-x", "checkpoint-9-old", "my-checkpoint-3"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-11").touch()
    assert names(tmp_path) == ["checkpoint-9", "checkpoint-10"]
    assert names(tmp_path / "none") == []


def test_processes_are_counted_by_their_random_numbers(tmp_path):
    assert saved_processes(tmp_path) == 1
    for rank in range(3):
        (tmp_path / f"rng_state_{rank}.pth").touch()
    assert saved_processes(tmp_path) == 3


def test_the_limit_counts_whole_checkpoints_and_the_best_one_stays(tmp_path):
    scores = iter([1.0, 9.0, 2.0, 3.0, 4.0])
    trainer = tiny_trainer(
        tmp_path,
        scorer=lambda *_: {"bleu": next(scores)},
        **{"max_steps": 5, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 2, "eval_strategy": "steps"},
        **{"eval_steps": 1, "metric_for_best_model": "bleu", "greater_is_better": True},
    )
    trainer.train()
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-5"]
    state = json.loads((tmp_path / "checkpoint-5" / "trainer_state.json").read_text(encoding="utf-8"))
    assert state["best_model_checkpoint"] == str(tmp_path / "checkpoint-2")
    assert not list(tmp_path.glob(".*"))


def test_what_a_signal_asked_for_is_neither_counted_nor_kept(tmp_path):
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
    options |= {"eval_strategy": "steps", "eval_steps": 1}
    options |= {"metric_for_best_model": "bleu", "load_best_model_at_end": True}
    scores = iter([1.0, 2.0, 3.0, 4.0, 9.0, 0.0])
    options["scorer"] = lambda *_: {"bleu": next(scores)}
    trainer = tiny_trainer(tmp_path, **options)
    original = trainer.log

    def log_and_signal(logs, start_time=None):
        original(logs, start_time)
        trainer.stop_on_sigterm._received = trainer.state.global_step == 4

    trainer.log = log_and_signal
    trainer.train()
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-4", "checkpoint-5"]
    assert read_run_state(tmp_path / "checkpoint-5")["off_schedule"]
    again = tiny_trainer(tmp_path, **options)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert names(tmp_path) == ["checkpoint-4", "checkpoint-6"]
    assert again.state.best_model_checkpoint == str(tmp_path / "checkpoint-4"), "the best of those that stay"


def test_a_run_that_resumes_after_its_last_update_makes_no_further_one(tmp_path):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    tiny_trainer(tmp_path, **options).train()
    again = tiny_trainer(tmp_path, **options)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert again.state.global_step == 4 and names(tmp_path) == ["checkpoint-2", "checkpoint-4"]


def test_other_training_data_are_refused(tmp_path):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    tiny_trainer(tmp_path, **options).train()
    with pytest.raises(UserError, match="checkpoint-2: was trained with other training data"):
        tiny_trainer(tmp_path, pairs=tiny_pairs(seed=7), **options).train(str(tmp_path / "checkpoint-2"))


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt"])
def test_a_disk_that_takes_no_more_is_one_line_and_the_checkpoints_that_are_whole_stay(trained, tmp_path, file):
    """A limit on the size of files stands for the disk: it lets all files of a checkpoint pass but this one."""
    trainer = tiny_trainer(tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    save = trainer._save_checkpoint
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_a_full_disk(*args):
        if trainer.state.global_step == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, ((trained[0] / file).stat().st_size - 100, hard))
        save(*args)

    trainer._save_checkpoint = on_a_full_disk
    try:
        with pytest.raises(
            UserError, match=rf"{tmp_path}/checkpoint-2: cannot be written: .*resumes at {tmp_path}/checkp"
        ):
            trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["checkpoint-1"] and not list(tmp_path.glob(".*"))


def test_a_checkpoint_whose_writing_fails_leaves_nothing(tmp_path, monkeypatch):
    trainer = tiny_trainer(tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    monkeypatch.setattr(trainer, "_save_rng_state", lambda folder: shutil.copy("/none", folder))
    with pytest.raises(FileNotFoundError):
        trainer.train()
    assert list(tmp_path.glob("*checkpoint*")) == []
