"""When a run goes on at a checkpoint, and what it refuses to go on with."""

import dataclasses
import shutil
from pathlib import Path

import datasets
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import Seq2SeqTrainingArguments

from reluformer.commands.train import train_and_document as train
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import ParallelFiles
from reluformer.configuration.recipe_parser import parse_recipe, save_recipe
from reluformer.training.run.checkpoints import seal_checkpoint
from reluformer.training.run.resumption import require_same_recipe, write_training_files
from reluformer.training.run.run_folder import CARD_FILE, RECIPE_FILE, RECORD_FILE, checkpoint_to_resume, write_recipe
from reluformer.training.tokenization import train_tokenizer


def test_an_unfinished_run_resumes_at_its_last_complete_checkpoint(folder_of):
    recipe, folder = folder_of(2, 4, 10)
    (folder / "checkpoint-12").mkdir()  # killed while it was being written
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-10"


def test_comments_in_the_recipe_of_a_run_stay_as_long_as_it_says_the_same(folder_of):
    recipe, folder = folder_of(2)
    commented = "# mine\n" + (folder / RECIPE_FILE).read_text(encoding="utf-8")
    (folder / RECIPE_FILE).write_text(commented, encoding="utf-8")
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-2"
    write_recipe(recipe)
    assert (folder / RECIPE_FILE).read_text(encoding="utf-8") == commented


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["--model.d_model", "32"], "model.d_model 16, the recipe says 32"),
        (["--tokenizer.vocab_size", "340"], "tokenizer.vocab_size"),
        (["--data.demo.seed", "5"], "data.demo.seed"),
        (["--batching.tokens_per_batch", "500"], "batching.tokens_per_batch"),
        (["--training.seed", "5"], "training.seed"),
        (["--training.learning_rate", "0.5"], "training.learning_rate 0.01, the recipe says 0.5; give another name"),
        (["--training.adam_beta1", "0.5"], "training.adam_beta1 0.9, the recipe says 0.5"),
        (["--training.adam_beta2", "0.5"], "training.adam_beta2"),
        (["--training.weight_decay", "0.1"], "training.weight_decay 0.0, the recipe says 0.1"),
        (["--training.warmup_steps", "3"], "training.warmup_steps"),
        (["--training.lr_scheduler_type", "constant"], "training.lr_scheduler_type"),
        (["--training.max_grad_norm", "0"], "training.max_grad_norm"),
        (["--training.optim", "sgd"], "training.optim"),
        (["--training.bf16", "true"], "training.bf16"),
        (
            ["--training.max_steps", "9"],
            r"training.max_steps 6, the recipe says 9 \(the schedule linear depends on it\)",
        ),
    ],
)
def test_a_changed_recipe_does_not_resume(folder_of, change, named):
    recipe, _ = folder_of(2, arguments=change)
    with pytest.raises(UserError, match=named):
        checkpoint_to_resume(recipe)


def test_every_training_argument_but_a_short_list_is_refused(folder_of):
    """The list is written out here a second time, so that nothing joins it unseen."""
    recipe, folder = folder_of(2)
    text = (folder / RECIPE_FILE).read_text(encoding="utf-8")
    changed = set()
    for field in dataclasses.fields(Seq2SeqTrainingArguments):
        saved = yaml.safe_load(text)
        other = 0.5 if field.name == "warmup_steps" else "something else"
        saved["training"][field.name] = other
        (folder / RECIPE_FILE).write_text(yaml.safe_dump(saved, sort_keys=False), encoding="utf-8")
        try:
            require_same_recipe(recipe, folder / RECIPE_FILE, remedy="train anew")
        except UserError as error:
            assert f"training.{field.name} {other!r}" in str(error)
        else:
            changed.add(field.name)
    kinds = ("logging_", "log_", "eval_", "save_", "hub_", "trackio_", "dataloader_", "ddp_")
    several = {name for name in changed if name.startswith(kinds)}
    assert several.isdisjoint({"save_only_model", "save_on_each_node", "dataloader_drop_last", "dataloader_in_order",
        "eval_do_concat_batches", "eval_use_gather_object", "ddp_broadcast_buffers"})  # fmt: skip
    assert changed - several == {
        "output_dir", "disable_tqdm", "report_to", "run_name", "project", "push_to_hub", "use_cpu", "local_rank",
        "gradient_accumulation_steps", "torch_empty_cache_steps", "per_device_eval_batch_size", "resume_from_checkpoint",
        "do_train", "do_eval", "do_predict",
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        ["--evaluation.num_beams", "1"],
        ["--training.logging_steps", "1", "--training.eval_steps", "2", "--training.save_steps", "3"],
        ["--training.eval_strategy", "no"],
        ["--training.report_to", "none", "--training.dataloader_num_workers", "1"],
    ],
)
def test_what_is_not_learned_from_may_change(folder_of, change):
    recipe, folder = folder_of(2, arguments=change)
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-2"


def test_evaluations_that_a_schedule_follows_may_not_change(folder_of):
    recipe, folder = folder_of(2)
    recipe.training.lr_scheduler_type = "reduce_lr_on_plateau"
    save_recipe(recipe, folder / RECIPE_FILE)
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-2"
    recipe.training.eval_steps = 2
    with pytest.raises(UserError, match=r"training\.eval_steps 3, the recipe says 2"):
        checkpoint_to_resume(recipe)


@pytest.mark.parametrize(
    ("schedule", "warmup", "goes_on"),
    [("constant", 0, True), ("inverse_sqrt", 3, True), ("inverse_sqrt", 0.1, False), ("cosine", 3, False)],
)
def test_a_run_is_lengthened_where_its_schedule_does_not_depend_on_it(folder_of, schedule, warmup, goes_on):
    recipe, folder = folder_of(2)
    for steps in (6, 9):
        recipe.training.lr_scheduler_type, recipe.training.warmup_steps = schedule, warmup
        recipe.training.max_steps = steps
        if steps == 6:
            save_recipe(recipe, folder / RECIPE_FILE)
    if goes_on:
        assert checkpoint_to_resume(recipe) == folder / "checkpoint-2"
    else:
        with pytest.raises(
            UserError, match=rf"max_steps 6, the recipe says 9 \(the schedule {schedule} depends on it\)"
        ):
            checkpoint_to_resume(recipe)


def test_a_run_whose_tokenizer_has_become_another_one_does_not_go_on(recipe_file, tmp_path):
    pairs = datasets.Dataset.from_dict({"source": ["eins Zwei", "drei"] * 9, "target": ["one Two", "three"] * 9})

    def write(lowercase):
        options = {"source_language": "de", "target_language": "en", "moses": False, "max_length": 64}
        tokenizer = train_tokenizer(pairs, vocab_size=276, lowercase=lowercase, **options)
        tokenizer.save_pretrained(tmp_path / "tok")

    write(lowercase=False)
    arguments = [
        "--config",
        str(recipe_file),
        "--tokenizer.vocab_size",
        "8000",
        "--tokenizer.path",
        str(tmp_path / "tok"),
    ]
    arguments += ["--data.max_length", "140"]
    folder = train(parse_recipe(arguments))
    (folder / CARD_FILE).unlink()  # the run was interrupted in its evaluation
    train(parse_recipe(arguments))
    (folder / CARD_FILE).unlink()
    write(lowercase=True)
    with pytest.raises(
        UserError, match=r"checkpoint-6: was trained with another tokenizer than the one in \S+tok is now"
    ):
        train(parse_recipe(arguments))


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize(
    ("steps", "epochs", "refused"),
    [
        (4, 9, "6 updates, the recipe ends at training.max_steps 4; raise it"),
        (6, 0.1, None),
        (-1, 1.5, "2 epochs, the recipe ends at training.num_train_epochs 1.5; raise it"),
        (-1, 1.6, "2 epochs"),
        (-1, 1.7, None),  # rounded up to six updates
        (-1, 2, None),
    ],
)
def test_a_run_that_would_have_ended_before_its_checkpoint_is_refused(folder_of, steps, epochs, refused, explicit):
    recipe, folder = folder_of()
    recipe.training.lr_scheduler_type = "constant"
    recipe.training.max_steps = -1
    checkpoint = folder / "checkpoint-6"
    checkpoint.mkdir()
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (checkpoint / name).touch()
    (checkpoint / "trainer_state.json").write_text('{"global_step": 6, "epoch": 2.0}', encoding="utf-8")
    seal_checkpoint(checkpoint, processes=1)
    save_recipe(recipe, folder / RECIPE_FILE)
    recipe.training.max_steps, recipe.training.num_train_epochs = steps, epochs
    recipe.training.resume_from_checkpoint = str(checkpoint) if explicit else None
    if refused is None:
        assert checkpoint_to_resume(recipe) == checkpoint
    else:
        with pytest.raises(UserError, match=rf"checkpoint-6: was written after {refused}"):
            checkpoint_to_resume(recipe)


def test_an_explicit_checkpoint_of_another_training_is_refused(folder_of, tmp_path):
    recipe, folder = folder_of(2)
    recipe.name, recipe.training.output_dir = "branch", str(tmp_path / "branch")
    recipe.training.resume_from_checkpoint = str(folder / "checkpoint-2")
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-2"
    (tmp_path / "branch" / "checkpoint-4").mkdir(parents=True)
    with pytest.raises(UserError, match=r"branch: holds checkpoints of another training than '\S+checkpoint-2'"):
        checkpoint_to_resume(recipe)
    write_recipe(recipe)
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-2"  # the same command, after an interruption
    recipe.training.learning_rate = 0.5
    with pytest.raises(UserError, match=r"learning_rate 0\.01, the recipe says 0\.5; leave training\.resume_from"):
        checkpoint_to_resume(recipe)


@pytest.mark.parametrize(("number", "side"), [(0, "source"), (1, "target"), (2, "documents")])
def test_a_run_whose_training_file_has_become_another_one_does_not_go_on(folder_of, tmp_path, caplog, number, side):
    files = [tmp_path / f"train.{ending}" for ending in ("de", "en", "documents")]
    for path in files:
        path.write_text("eins\nzwei\n", encoding="utf-8")
    recipe, folder = folder_of(2)
    recipe.data.demo, recipe.data.train = (
        None,
        ParallelFiles(**dict(zip(("source", "target", "documents"), map(str, files), strict=True))),
    )
    save_recipe(recipe, folder / RECIPE_FILE)
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-2"
    assert "has no training_files.json" in caplog.text  # a run of an earlier version
    write_training_files(recipe.data, folder, anew=False)
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-2"
    files[number].write_text("eins\nzwo\n", encoding="utf-8")
    with pytest.raises(
        UserError, match=rf"another content of \S+{files[number].name} \(data\.train\.{side}\); restore the file"
    ):
        checkpoint_to_resume(recipe)


def test_a_run_of_a_version_without_a_section_goes_on(folder_of):
    recipe, folder = folder_of(2)
    saved = yaml.safe_load((folder / RECIPE_FILE).read_text(encoding="utf-8"))
    assert saved["data"].pop("packing") is None
    text = yaml.safe_dump(saved, sort_keys=False, allow_unicode=True, width=120)
    (folder / RECIPE_FILE).write_text(text, encoding="utf-8")
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-2"


def test_a_copy_of_a_run_folder_goes_on_on_another_machine(recipe_file, tmp_path, monkeypatch):
    """Another working directory, in which the run folder lies at the same relative place."""
    arguments = ["--config", str(recipe_file), "--training.output_dir", "runs/tiny", "--training.eval_strategy", "no"]
    weights = []
    for machine in ("first", "second"):
        (tmp_path / machine).mkdir()
        monkeypatch.chdir(tmp_path / machine)
        if machine == "second":
            finished = shutil.ignore_patterns("checkpoint-6", "model.safetensors", RECORD_FILE, CARD_FILE)
            shutil.copytree(tmp_path / "first/runs/tiny", "runs/tiny", ignore=finished)
            for number in (2, 4):
                weights_file = f"runs/tiny/checkpoint-{number}/model.safetensors"
                shutil.copy(tmp_path / "first" / weights_file, weights_file)
            shutil.rmtree(tmp_path / "first")
            assert checkpoint_to_resume(parse_recipe(arguments)) == Path("runs/tiny/checkpoint-4")
        train(parse_recipe(arguments))
        weights.append(load_file("runs/tiny/model.safetensors"))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_an_explicit_checkpoint_is_followed_or_refused(folder_of):
    recipe, folder = folder_of(2, 4, 10, finished=True)
    recipe.training.resume_from_checkpoint = str(folder / "checkpoint-2")
    with pytest.raises(UserError, match=r"not the last one of its run; remove checkpoint-4 and checkpoint-10, or give"):
        checkpoint_to_resume(recipe)
    recipe.training.output_dir = str(folder.parent / "branch")
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-2"
    recipe.training.output_dir = str(folder)
    shutil.copytree(folder / "checkpoint-2", folder / "kept")
    recipe.training.resume_from_checkpoint = str(folder / "kept")
    with pytest.raises(UserError, match=r"kept' is not the last one of its run; remove .*checkpoint-10, or give"):
        checkpoint_to_resume(recipe)
    recipe.training.resume_from_checkpoint = str(folder / "checkpoint-2")
    for number in (4, 10):
        shutil.rmtree(folder / f"checkpoint-{number}")
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-2"
    recipe.training.resume_from_checkpoint = str(folder / "checkpoint-3")
    with pytest.raises(UserError, match="checkpoint-3"):
        checkpoint_to_resume(recipe)
