"""A run goes on with another number of processes if an update holds the same batches, and is refused otherwise."""

import json
import shutil

import pytest
import torch
import yaml

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import load_recipe, save_recipe
from reluformer.training.run.checkpoints import MANIFEST_FILE, begin_checkpoint, saved_processes, seal_checkpoint
from reluformer.training.run.global_batch import GlobalBatch, change_of_processes, global_batch_of
from reluformer.training.run.run_folder import RECIPE_FILE, checkpoint_to_resume

from ..tiny_run import TOKENS_PER_BATCH, tiny_model, tiny_trainer

FILES = ("trainer_state.json", "model.safetensors", "optimizer.pt", "scheduler.pt")


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe; `recipe.started(processes)` is as if a launcher had started so many, `recipe.write(…)` leaves a checkpoint."""
    said = {
        "name": "run",
        "data": {"source_language": "de", "target_language": "en", "demo": {}},
        "batching": {"tokens_per_batch": 400},
        "training": {"output_dir": str(tmp_path / "run"), "use_cpu": True},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(said), encoding="utf-8")
    recipe = load_recipe(tmp_path / "recipe.yaml")

    def start(processes: int, accumulation_steps: int) -> None:
        monkeypatch.setattr(type(recipe.training), "world_size", processes)
        recipe.training.gradient_accumulation_steps = accumulation_steps

    def write(processes: int, accumulation_steps: int):
        start(processes, accumulation_steps)
        save_recipe(recipe, recipe.run_folder / RECIPE_FILE)
        folder = recipe.run_folder / "checkpoint-4"
        begin_checkpoint(folder)
        states = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
        for name in (*FILES, *states):
            (folder / name).write_text("{}", encoding="utf-8")
        seal_checkpoint(folder, processes=processes, accumulation_steps=accumulation_steps, tokens_per_batch=400)
        return folder

    recipe.started, recipe.write = start, write
    return recipe


@pytest.mark.parametrize(("before", "now"), [((1, 4), (2, 2)), ((2, 2), (1, 4)), ((4, 1), (2, 2)), ((2, 3), (2, 3))])
def test_the_same_batches_in_other_processes_are_gone_on_with(recipe, before, now):
    checkpoint = recipe.write(*before)
    recipe.started(*now)
    assert checkpoint_to_resume(recipe) == checkpoint
    change = change_of_processes(recipe, checkpoint)
    assert (change is None) == (before[0] == now[0])
    if change:
        assert change.startswith(f"written by {before[0]} process")


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (
            (1, 4),
            (2, 4),
            r"checkpoint-4: was trained with 4 batches an update \(1 process × 4 accumulation\), this run would make updates "
            r"of 8 \(2 processes × 4 accumulation\); set training\.gradient_accumulation_steps to 2 to go on",
        ),
        ((2, 1), (1, 1), r"updates of 1 \(1 process × 1 accumulation\); set training.gradient_accumulation_steps to 2"),
        ((2, 2), (2, 1), r"set training\.gradient_accumulation_steps to 2"),
        ((4, 1), (3, 1), "start 1 or 2 or 4 processes, with training.gradient_accumulation_steps so that there are 4"),
    ],
)
@pytest.mark.parametrize("explicit", [False, True])
def test_other_updates_are_refused_in_one_line(recipe, before, now, said, explicit):
    checkpoint = recipe.write(*before)
    recipe.started(*now)
    if explicit:
        recipe.training.resume_from_checkpoint = str(checkpoint)
    with pytest.raises(UserError, match=said) as caught:
        checkpoint_to_resume(recipe)
    assert "\n" not in str(caught.value)


def test_batches_of_another_size_are_refused(recipe):
    recipe.training.resume_from_checkpoint = str(recipe.write(2, 2))
    for tokens in (800, 200):
        recipe.batching.tokens_per_batch = tokens
        with pytest.raises(
            UserError, match=rf"of 400 tokens, the recipe says {tokens}; set batching\.tokens_per_batch to 400"
        ):
            checkpoint_to_resume(recipe)


def test_a_checkpoint_of_an_earlier_version_goes_on_as_it_was(recipe, caplog):
    """Its manifest tells the processes alone; the accumulation steps stand in the recipe, which an attempt rewrites."""
    checkpoint = recipe.write(2, 2)
    manifest = json.loads((checkpoint / MANIFEST_FILE).read_text(encoding="utf-8"))
    kept = {name: manifest[name] for name in ("processes", "off_schedule", "files")}
    (checkpoint / MANIFEST_FILE).write_text(json.dumps(kept), encoding="utf-8")
    assert checkpoint_to_resume(recipe) == checkpoint
    recipe.started(1, 4)
    with pytest.raises(
        UserError, match="earlier version with 2 processes × 2 accumulation; go on with the same, not with 1"
    ):
        checkpoint_to_resume(recipe)
    (recipe.run_folder / RECIPE_FILE).unlink()
    recipe.training.resume_from_checkpoint = str(checkpoint)
    assert checkpoint_to_resume(recipe) == checkpoint
    assert "does not tell how many batches an update held" in caplog.text


def test_the_trainer_seals_what_an_update_holds(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=1, gradient_accumulation_steps=2, save_strategy="steps", save_steps=1)
    trainer.train()
    manifest = json.loads((tmp_path / "checkpoint-1" / MANIFEST_FILE).read_text(encoding="utf-8"))
    found = [manifest[name] for name in ("processes", "gradient_accumulation_steps", "tokens_per_batch")]
    assert found == [1, 2, TOKENS_PER_BATCH]
    assert saved_processes(tmp_path / "checkpoint-1") == 1


def test_dropout_begins_anew_where_a_process_has_no_state_of_its_own(tmp_path):
    """Not with the masks of the first updates, which every process drew after the seed of the recipe."""
    trainer = tiny_trainer(tmp_path, tiny_model(dropout=0.5), max_steps=2, save_strategy="steps", save_steps=2)
    trainer.train()
    folder = tmp_path / "checkpoint-2"
    trainer._load_rng_state(str(folder))
    saved = torch.rand(4)
    trainer._load_rng_state(str(folder))
    assert torch.equal(torch.rand(4), saved)
    for rank in (0, 1):
        shutil.copy(folder / "rng_state.pth", folder / f"rng_state_{rank}.pth")
    trainer._load_rng_state(str(folder))  # of two processes, gone on with by one
    first = torch.rand(4)
    torch.manual_seed(trainer.args.seed)
    assert not torch.equal(first, saved)
    assert not torch.equal(first, torch.rand(4))
    trainer._load_rng_state(str(folder))
    assert torch.equal(torch.rand(4), first)


def test_the_batches_of_a_recipe(recipe):
    recipe.started(2, 3)
    assert global_batch_of(recipe) == GlobalBatch(2, 3, 400)
    assert global_batch_of(recipe).batches == 6
