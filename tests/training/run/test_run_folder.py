"""When a run resumes in its folder, what it refuses to resume with, and what neither it nor `--overwrite` touches."""

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from reluformer.commands.train import train_and_document as train
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import load_recipe, parse_recipe
from reluformer.hub_cards.card import write_card
from reluformer.training.run.checkpoints import RUN_STATE_FILE, checkpoint_folders, require_whole
from reluformer.training.run.run_folder import (
    CARD_FILE,
    RECIPE_FILE,
    RECORD_FILE,
    checkpoint_to_resume,
    only_training_in,
    write_recipe,
)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_unfinished_run_resumes_at_its_last_checkpoint(folder_of):
    recipe, folder = folder_of(2, 4, 6)
    (folder / ".checkpoint.partial" / "checkpoint-12").mkdir(parents=True)  # killed while it was being written
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-6"
    write_recipe(recipe)
    assert load_recipe(folder / RECIPE_FILE).training.max_steps == 6
    assert checkpoint_to_resume(recipe, overwrite=True) is None
    assert list(folder.iterdir()) == []


def test_a_run_begins_where_nothing_is_or_only_a_file_that_was_being_written(recipe_file):
    recipe = load_recipe(recipe_file)
    assert checkpoint_to_resume(recipe) is None
    recipe.run_folder.mkdir(parents=True)
    (recipe.run_folder / ".recipe.yaml.17.partial").touch()
    assert checkpoint_to_resume(recipe) is None


def test_a_run_whose_evaluation_was_interrupted_resumes_and_a_finished_one_is_refused(folder_of):
    recipe, folder = folder_of(4)
    (folder / RECORD_FILE).write_text("{}", encoding="utf-8")
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-4"
    (folder / CARD_FILE).touch()
    with pytest.raises(UserError, match=r"finished run.*--overwrite"):
        checkpoint_to_resume(recipe)
    (folder / CARD_FILE).unlink()
    (folder / RECORD_FILE).write_text(json.dumps({"diverged": {"step": 3}}), encoding="utf-8")
    with pytest.raises(UserError, match="finished run"):
        checkpoint_to_resume(recipe)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["--model.d_model", "32"], "model.d_model 16, the recipe says 32; give another name"),
        (["--tokenizer.vocab_size", "340"], "tokenizer.vocab_size 330"),
        (["--data.demo.seed", "5"], "data.demo.seed 0"),
        (["--batching.tokens_per_batch", "500"], "batching.tokens_per_batch 400"),
        (["--training.seed", "5"], "training.seed 'the default', the recipe says 5"),
        (["--training.optim", "sgd"], "training.optim"),
        (["--training.warmup_steps", "3"], "training.warmup_steps"),
        (["--training.max_steps", "9"], "training.max_steps 6, the recipe says 9"),
        (
            ["--training.gradient_accumulation_steps", "2"],
            r"batches_per_update \(processes × gradient_accumulation_steps\) 1, the recipe says 2",
        ),
    ],
)
def test_a_changed_recipe_does_not_resume(folder_of, change, named):
    recipe, _ = folder_of(2, arguments=change)
    with pytest.raises(UserError, match=rf"checkpoint-2: was trained with {named}"):
        checkpoint_to_resume(recipe)


def test_a_checkpoint_from_before_a_key_resumes_with_its_default(folder_of):
    recipe, folder = folder_of(2)
    path = folder / "checkpoint-2" / RUN_STATE_FILE
    state = json.loads(path.read_text(encoding="utf-8"))
    del state["settings"]["data.variants"], state["settings"]["tokenizer.lowercase"]
    path.write_text(json.dumps(state), encoding="utf-8")
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-2"
    recipe.tokenizer.lowercase = True
    with pytest.raises(UserError, match=r"was trained with tokenizer\.lowercase False, the recipe says True"):
        checkpoint_to_resume(recipe)


@pytest.mark.parametrize(
    "change",
    [
        ["--evaluation.num_beams", "1", "--name", "other", "--averaging.last_checkpoints", "1"],
        ["--training.logging_steps", "1", "--training.eval_steps", "2", "--training.save_steps", "3"],
        ["--training.hub_model_id", "a/b", "--training.ddp_find_unused_parameters", "true"],
        ["--training.eval_strategy", "no", "--training.report_to", "none", "--training.dataloader_num_workers", "1"],
        ["--description", "other", "--on_divergence", "record", "--data.workers", "2"],
    ],
)
def test_what_changes_no_update_may_change(folder_of, change):
    recipe, folder = folder_of(2, arguments=[*change, "--training.output_dir", "runs/tiny"])
    recipe.training.output_dir = str(folder)
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-2"


def test_a_run_is_lengthened_where_its_schedule_does_not_depend_on_it(folder_of, recipe_file):
    recipe_file.write_text(recipe_file.read_text() + "  lr_scheduler_type: inverse_sqrt\n", encoding="utf-8")
    recipe, folder = folder_of(2, 4, arguments=["--training.max_steps", "9"])
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-4"
    recipe.training.max_steps = 3
    with pytest.raises(UserError, match=r"checkpoint-4: is beyond training\.max_steps 3"):
        checkpoint_to_resume(recipe)


def test_a_warm_up_that_is_a_share_of_the_updates_depends_on_their_number(folder_of, recipe_file):
    schedule = "  lr_scheduler_type: inverse_sqrt\n  warmup_steps: 0.1\n"
    recipe_file.write_text(recipe_file.read_text() + schedule, encoding="utf-8")
    recipe, _ = folder_of(2, arguments=["--training.max_steps", "9"])
    with pytest.raises(UserError, match=r"was trained with training\.max_steps"):
        checkpoint_to_resume(recipe)


def test_an_explicit_checkpoint_is_followed_or_refused(folder_of, tmp_path):
    recipe, folder = folder_of(2, 4)
    recipe.training.resume_from_checkpoint = str(folder / "checkpoint-2")
    recipe.training.output_dir = str(tmp_path / "branch")
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-2"
    recipe.training.learning_rate = 0.5
    with pytest.raises(UserError, match=r"learning_rate 0\.01, the recipe says 0\.5"):
        checkpoint_to_resume(recipe)
    (folder / "checkpoint-2" / "run_state.json").unlink()
    with pytest.raises(UserError, match=r"checkpoint-2: was not written by `reluformer train`; give it as init"):
        checkpoint_to_resume(recipe)
    recipe.training.resume_from_checkpoint = str(folder / "checkpoint-3")
    with pytest.raises(UserError, match="checkpoint-3' is no checkpoint"):
        checkpoint_to_resume(recipe)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["notes.txt", RECIPE_FILE])
def test_a_folder_without_the_recipe_of_a_run_is_never_touched(recipe_file, tmp_path, name, overwrite):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / name).write_bytes(recipe_file.read_bytes())
    recipe = parse_recipe(["--config", str(folder / name), "--training.output_dir", str(folder)])
    before = contents(folder)
    with pytest.raises(UserError, match="mine: holds files that no run wrote"):
        train(recipe, overwrite=overwrite)
    assert contents(folder) == before


@pytest.mark.parametrize("key", ["initialize_from", "tokenizer.path", "training.resume_from_checkpoint"])
def test_overwriting_refuses_a_run_that_begins_with_what_is_in_its_own_folder(folder_of, key):
    recipe, folder = folder_of(6, finished=True)
    before, path = contents(folder), str(folder / "checkpoint-6")
    section, _, name = key.rpartition(".")
    setattr(getattr(recipe, section) if section else recipe, name, path)
    with pytest.raises(UserError, match=rf"^'{path}' lies in \S+, which --overwrite would empty"):
        checkpoint_to_resume(recipe, overwrite=True)
    assert contents(folder) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_second_training_in_the_folder_is_refused(folder_of, overwrite):
    recipe, folder = folder_of(2)
    before = contents(folder)
    with only_training_in(folder), pytest.raises(UserError, match="tiny: another training is writing into it"):
        train(recipe, overwrite=overwrite)
    assert contents(folder) == before
    with only_training_in(folder):
        pass


def test_a_link_to_the_folder_is_the_same_folder(folder_of, tmp_path):
    _, folder = folder_of(2)
    (tmp_path / "link").symlink_to(folder)
    with only_training_in(tmp_path / "link"), pytest.raises(UserError, match="tiny: another training is writing into"):
        only_training_in(folder).__enter__()


def test_nobody_trains_in_the_folder_until_its_card_is_written(recipe_file, monkeypatch):
    refused = []

    def try_to_train_anew(folder):
        if not refused:
            refused.append((folder / RECORD_FILE).is_file())
            with pytest.raises(UserError, match="tiny: another training is writing into it"):
                train(load_recipe(recipe_file), overwrite=True)
        return write_card(folder)

    monkeypatch.setattr("reluformer.hub_cards.card.write_card", try_to_train_anew)
    folder = train(load_recipe(recipe_file))
    assert refused == [True] and (folder / CARD_FILE).is_file()


def test_overwriting_that_is_interrupted_can_be_repeated(folder_of, monkeypatch):
    """After each removal in turn: the folder is known as a run's until it is empty, and no half checkpoint is found in
    it."""
    recipe, folder = folder_of(2, 4, finished=True)
    removed = []

    def once(remove, path, **options):
        if options:  # `set_aside` looks for what an earlier call left
            return
        if removed:
            if path.is_dir():
                os.remove(min(path.iterdir()))
            raise KeyboardInterrupt
        removed.append(path)
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", partial(once, shutil.rmtree))
    unlink = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path: once(unlink, path))
    for _ in range(len(list(folder.iterdir())) - 1):
        removed.clear()
        with pytest.raises(KeyboardInterrupt):
            checkpoint_to_resume(recipe, overwrite=True)
        for checkpoint in checkpoint_folders(folder):
            require_whole(checkpoint)
    removed.clear()
    assert checkpoint_to_resume(recipe, overwrite=True) is None and list(folder.iterdir()) == []


def test_a_checkpoint_that_lacks_a_file_and_a_damaged_record_are_refused(folder_of):
    recipe, folder = folder_of(2, 4)
    (folder / "checkpoint-4" / "optimizer.pt").unlink()
    with pytest.raises(UserError, match=r"checkpoint-4: its file optimizer\.pt is missing"):
        checkpoint_to_resume(recipe)
    shutil.rmtree(folder / "checkpoint-4")
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-2"
    (folder / RECORD_FILE).write_text('{"updates', encoding="utf-8")
    recipe.training.resume_from_checkpoint = str(folder / "checkpoint-2")
    with pytest.raises(
        UserError, match=rf"{RECORD_FILE}: is damaged \(Unterminated string .*; restore it, or remove it"
    ):
        checkpoint_to_resume(recipe)
