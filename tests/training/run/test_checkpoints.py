"""Damage to a checkpoint is found before it is used, named, and the last good one is taken instead."""

import json
import os
import shutil
from pathlib import Path

import pytest

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.training.averaging import average_checkpoints
from reluformer.training.run.checkpoints import (
    MANIFEST_FILE,
    UNSEALED_FILE,
    begin_checkpoint,
    checkpoint_folders,
    fault_of,
    is_leftover,
    is_off_schedule,
    move_files,
    read_manifest,
    remove_older,
    removed_if_it_fails,
    saved_processes,
    seal_checkpoint,
)
from reluformer.training.run.run_folder import CARD_FILE, RECORD_FILE, checkpoint_to_resume

from ..tiny_run import TOKENS_PER_BATCH, tiny_trainer


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-len(data) // 3] ^= 1
    path.write_bytes(data)


def remove(path):
    path.unlink()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run folder with two checkpoints; tests work on copies."""
    folder = tmp_path_factory.mktemp("trained")
    tiny_trainer(folder, max_steps=4, save_strategy="steps", save_steps=2).train()
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


FILES = ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "config.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("damage", "said"), [(cut, "bytes, not the"), (flip, "is not what was written"), (remove, "is missing")]
)
def test_any_damage_to_any_file_is_named(run, name, damage, said):
    checkpoint = run / "checkpoint-4"
    assert fault_of(checkpoint) is None
    damage(checkpoint / name)
    fault = fault_of(checkpoint)
    assert name in fault
    assert said in fault


@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_without_manifest_is_read_through(run, name):
    checkpoint = run / "checkpoint-4"
    (checkpoint / MANIFEST_FILE).unlink()
    assert fault_of(checkpoint) is None
    cut(checkpoint / name)
    assert f"{name} is damaged" in fault_of(checkpoint)
    (checkpoint / name).unlink()
    assert (fault_of(checkpoint) or "").startswith("" if name == "config.json" else "it holds no ")


def test_a_checkpoint_that_was_being_written_does_not_count(run):
    checkpoint = run / "checkpoint-4"
    (checkpoint / MANIFEST_FILE).unlink()
    (checkpoint / UNSEALED_FILE).touch()
    assert fault_of(checkpoint) == "it was being written when the run ended"
    cut_manifest = run / "checkpoint-2"
    cut(cut_manifest / MANIFEST_FILE)
    assert fault_of(cut_manifest) == f"{MANIFEST_FILE} is damaged"


def test_weights_alone_do_not_count(run):
    checkpoint = run / "checkpoint-4"
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (checkpoint / name).unlink()
    seal_checkpoint(checkpoint, processes=1)  # as training.save_only_model leaves it
    assert fault_of(checkpoint) == "it holds no state of the optimizer"


@pytest.fixture
def recipe_of_run(run, tmp_path):
    """A recipe whose run folder is `run`."""
    import yaml

    from reluformer.configuration.recipe_parser import save_recipe
    from reluformer.training.run.run_folder import RECIPE_FILE

    said = {
        "name": "run",
        "data": {"source_language": "de", "target_language": "en", "max_length": TOKENS_PER_BATCH, "demo": {}},
        "batching": {"tokens_per_batch": TOKENS_PER_BATCH},
        "training": {"output_dir": str(run), "use_cpu": True},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(said), encoding="utf-8")
    recipe = load_recipe(tmp_path / "recipe.yaml")
    save_recipe(recipe, run / RECIPE_FILE)
    return recipe


def test_a_damaged_checkpoint_is_skipped_in_one_line(recipe_of_run, run, caplog):
    assert checkpoint_to_resume(recipe_of_run) == run / "checkpoint-4"
    assert caplog.messages == []
    flip(run / "checkpoint-4" / "model.safetensors")
    assert checkpoint_to_resume(recipe_of_run) == run / "checkpoint-2"
    (message,) = caplog.messages
    assert message == f"{run / 'checkpoint-4'}: not used: the content of model.safetensors is not what was written"
    remove(run / "checkpoint-2" / "optimizer.pt")
    assert checkpoint_to_resume(recipe_of_run) is None
    assert caplog.messages[-1] == f"{run}: no checkpoint can be used; training starts anew"
    recipe_of_run.training.resume_from_checkpoint = str(run / "checkpoint-4")
    with pytest.raises(UserError, match=r"checkpoint-4' cannot be used: the content of model\.safetensors"):
        checkpoint_to_resume(recipe_of_run)


def test_a_checkpoint_without_manifest_is_used_with_a_note(recipe_of_run, run, caplog):
    (run / "checkpoint-4" / MANIFEST_FILE).unlink()
    assert checkpoint_to_resume(recipe_of_run) == run / "checkpoint-4"
    assert "has no manifest" in caplog.text


def test_leftovers_of_a_killed_process_do_not_stand_in_the_way(recipe_of_run, run):
    (run / ".removed-checkpoint-0").mkdir()
    (run / ".recipe.yaml.17.partial").touch()
    assert checkpoint_to_resume(recipe_of_run) == run / "checkpoint-4"
    assert not (run / ".removed-checkpoint-0").exists()
    for path in run.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (run / ".recipe.yaml.17.partial").touch()  # killed before it was renamed
    assert checkpoint_to_resume(recipe_of_run) is None


def test_a_run_whose_evaluation_was_interrupted_goes_on(recipe_of_run, run):
    (run / RECORD_FILE).write_text("{}", encoding="utf-8")
    assert checkpoint_to_resume(recipe_of_run) == run / "checkpoint-4"
    (run / CARD_FILE).touch()
    with pytest.raises(UserError, match="finished run"):
        checkpoint_to_resume(recipe_of_run)
    (run / CARD_FILE).unlink()
    (run / RECORD_FILE).write_text(json.dumps({"diverged": {"step": 3}}), encoding="utf-8")
    with pytest.raises(UserError, match="finished run"):
        checkpoint_to_resume(recipe_of_run)


def test_what_is_averaged_is_verified(run):
    average_checkpoints(run, 2)
    flip(run / "checkpoint-2" / "model.safetensors")
    with pytest.raises(UserError, match=r"checkpoint-2: the content of model\.safetensors"):
        average_checkpoints(run, 2)


def sealed(run, step, **options):
    folder = run / f"checkpoint-{step}"
    begin_checkpoint(folder)
    (folder / "weights").write_text(str(step), encoding="utf-8")
    seal_checkpoint(folder, processes=1, **options)
    return folder


def test_older_checkpoints_are_removed_after_the_new_one_is_whole(tmp_path):
    for step in (2, 4, 6):
        sealed(tmp_path, step)
    extra = sealed(tmp_path, 7, off_schedule=True)
    last = sealed(tmp_path, 8)
    remove_older(tmp_path, last, keep=6)
    assert len(checkpoint_folders(tmp_path)) == 4
    remove_older(tmp_path, last, keep=3, best=str(tmp_path / "checkpoint-2"))
    assert [path.name for path in checkpoint_folders(tmp_path)] == ["checkpoint-2", "checkpoint-6", "checkpoint-8"]
    assert not extra.exists()
    remove_older(tmp_path, last, keep=None)
    assert len(checkpoint_folders(tmp_path)) == 3
    remove_older(tmp_path, last, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-8"]


def test_a_manifest_of_an_earlier_version_counts(tmp_path):
    folder = sealed(tmp_path, 2)
    manifest = {name: read_manifest(folder)[name] for name in ("processes", "off_schedule", "files")}
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest), encoding="utf-8")
    assert read_manifest(folder) == manifest
    for name in manifest:
        less = {other: value for other, value in manifest.items() if other != name}
        (folder / MANIFEST_FILE).write_text(json.dumps(less), encoding="utf-8")
        assert read_manifest(folder) is None


@pytest.fixture
def on_the_disk(monkeypatch):
    """Paths that the program has waited for to be on the disk, in this order, each with the names then in its folder."""
    synced = []
    sync = os.fsync

    def record(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path, {inner.name for inner in (path if path.is_dir() else path.parent).iterdir()}))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return synced


def test_all_is_on_the_disk_before_the_manifest_is(tmp_path, on_the_disk):
    folder = tmp_path / "checkpoint-2"
    begin_checkpoint(folder)
    assert on_the_disk == [(folder, {UNSEALED_FILE})]
    on_the_disk.clear()
    (folder / "shards").mkdir()
    for name in ("weights", "shards/0"):
        (folder / name).touch()
    seal_checkpoint(folder, processes=3, accumulation_steps=5, tokens_per_batch=7, attention_loop="python", seconds=2.5)
    partial = folder / f".{MANIFEST_FILE}.partial"
    paths = [path for path, _ in on_the_disk]
    assert {*paths[:3]} == {folder / "weights", folder / "shards" / "0", folder / "shards"}
    assert paths[3:] == [partial, folder, tmp_path]
    for _, names in on_the_disk[:4]:
        assert MANIFEST_FILE not in names
    assert on_the_disk[4][1] == {"weights", "shards", MANIFEST_FILE}
    manifest = read_manifest(folder)
    assert manifest.pop("files").keys() == {"weights", "shards/0"}
    assert manifest == {
        "processes": 3,
        "gradient_accumulation_steps": 5,
        "tokens_per_batch": 7,
        "attention_loop": "python",
        "seconds": 2.5,
        "off_schedule": False,
    }


def test_files_are_moved_when_they_are_on_the_disk_and_the_last_one_at_the_end(tmp_path, on_the_disk, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "inner").mkdir(parents=True)
    target.mkdir()
    for name in ("a.json", "inner/b", "model.safetensors", "z"):
        (source / name).write_text(name, encoding="utf-8")
    moved, replace = [], os.replace

    def record(path, goal):
        assert on_the_disk[-1][0] == path
        moved.append(path.relative_to(source).as_posix())
        replace(path, goal)

    monkeypatch.setattr(os, "replace", record)
    move_files(source, target, last="*.safetensors")
    assert moved == ["a.json", "inner/b", "z", "model.safetensors"]
    assert on_the_disk[-1][0] == target
    assert not source.exists()
    assert all((target / name).read_text(encoding="utf-8") == name for name in moved)


def test_what_counts_as_a_leftover():
    assert is_leftover(Path("run/.removed-checkpoint-4"))
    assert is_leftover(Path("run/.recipe.yaml.17.partial"))
    assert not any(
        is_leftover(Path("run") / name) for name in (".hidden", "notes.partial", "removed-1", "checkpoint-4")
    )


def test_a_checkpoint_whose_writing_fails_is_removed(tmp_path):
    folder = tmp_path / "checkpoint-2"
    begin_checkpoint(folder)
    with removed_if_it_fails(folder):
        pass
    assert folder.is_dir()
    with pytest.raises(OSError, match="full"), removed_if_it_fails(folder):
        raise OSError("full")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="full"), removed_if_it_fails(folder):  # nothing there yet
        raise OSError("full")


def test_an_attempt_before_is_removed_even_if_it_was_being_removed(tmp_path):
    for name in ("checkpoint-2", ".removed-checkpoint-2"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "old").touch()
    begin_checkpoint(tmp_path / "checkpoint-2")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]
    assert [path.name for path in (tmp_path / "checkpoint-2").iterdir()] == [UNSEALED_FILE]


def test_processes_are_counted_by_their_random_numbers(tmp_path):
    assert saved_processes(tmp_path) == 1
    for rank in range(3):
        (tmp_path / f"rng_state_{rank}.pth").touch()
    assert saved_processes(tmp_path) == 3
    assert is_off_schedule(tmp_path) is False
    assert is_off_schedule(sealed(tmp_path, 2, off_schedule=True)) is True


def test_only_numbered_folders_are_checkpoints(tmp_path):
    for name in ("checkpoint-10", "checkpoint-9", "checkpoint-x", "checkpoint-9-old", "my-checkpoint-3"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-11").touch()
    assert [path.name for path in checkpoint_folders(tmp_path)] == ["checkpoint-9", "checkpoint-10"]
    with pytest.raises(UserError, match="no such folder"):
        checkpoint_folders(tmp_path / "none")


def test_the_trainer_keeps_the_limit(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=5, save_strategy="steps", save_steps=1, save_total_limit=2)
    trainer.train()
    assert [path.name for path in checkpoint_folders(tmp_path)] == ["checkpoint-4", "checkpoint-5"]
    assert trainer.args.save_total_limit == 2


def test_a_run_that_goes_on_after_its_last_update_makes_no_further_one(tmp_path):
    tiny_trainer(tmp_path, max_steps=4, save_strategy="steps", save_steps=2).train()
    again = tiny_trainer(tmp_path, max_steps=4, save_strategy="steps", save_steps=2)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert again.state.global_step == 4
    assert [path.name for path in checkpoint_folders(tmp_path)] == ["checkpoint-2", "checkpoint-4"]


def test_the_model_appears_in_the_run_folder_whole(tmp_path, monkeypatch):
    trainer = tiny_trainer(tmp_path)
    trainer.save_model()
    before = (tmp_path / "model.safetensors").read_bytes()
    assert not (tmp_path / ".model.partial").exists()

    class Killed(BaseException):
        pass

    def killed(folder, *arguments, **options):
        (type(tmp_path)(folder) / "model.safetensors").write_text("half")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(
            trainer.model,
            "save_pretrained",
            lambda folder, **_: ((type(tmp_path)(folder)).mkdir(exist_ok=True), killed(folder)),
        )
        with pytest.raises(Killed):
            trainer.save_model()
    assert (tmp_path / "model.safetensors").read_bytes() == before
    trainer.save_model()
    assert (tmp_path / "model.safetensors").read_bytes() == before
