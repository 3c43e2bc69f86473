"""One recipe → one run folder: what is in it, when it resumes, when it refuses, that averaging is what it says."""

import dataclasses
import json

import datasets
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Seq2SeqTrainingArguments

from reluformer.commands.train import train_and_document as train
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import DatasetConfig, ParallelFiles
from reluformer.configuration.recipe_parser import load_recipe, parse_recipe, recipe_parser, save_recipe
from reluformer.training import training as training_module
from reluformer.training.run.checkpoints import MANIFEST_FILE, seal_checkpoint
from reluformer.training.run.overwriting import removed_unless_it_fails
from reluformer.training.run.own_files import own_files_of_run
from reluformer.training.run.resumption import require_same_recipe, write_training_files
from reluformer.training.run.run_folder import CARD_FILE, RECIPE_FILE, RECORD_FILE, checkpoint_to_resume, write_recipe
from reluformer.training.tokenization import train_tokenizer
from reluformer.training.training import headline

ALL_FILES = {
    "recipe.yaml",
    "config.json",
    "model.safetensors",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "trainer_state.json",
    "corpus_report.json",
    "training_record.json",
    "evaluation.test.json",
    "translations.test.tsv",
    "training_curve.png",
    "attention_map.png",
    "README.md",
}


@pytest.fixture
def recipe_file(tmp_path):
    """Path of a recipe that trains in a second or two, on the generated corpus."""
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    recipe = {
        "name": "tiny",
        "data": {
            "source_language": "de",
            "target_language": "en",
            "max_length": 64,
            "demo": {"train": 120, "validation": 6, "test": 5},
        },
        "tokenizer": {"vocab_size": 330},
        "model": {**sizes, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 160},
        "batching": {"tokens_per_batch": 400},
        "evaluation": {"num_beams": 2, "at_most": 3, "samples": 2, "headline": "exact_match"},
        "averaging": {"last_checkpoints": 2},
        "training": {
            "output_dir": str(tmp_path / "runs" / "tiny"),
            "max_steps": 6,
            "logging_steps": 2,
            "eval_strategy": "steps",
            "eval_steps": 3,
            "save_strategy": "steps",
            "save_steps": 2,
            "use_cpu": True,
            "disable_tqdm": True,
            "learning_rate": 0.01,
        },
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def test_a_run_leaves_everything_in_its_folder(recipe_file, capsys):
    folder = train(load_recipe(recipe_file))
    assert {path.name for path in folder.iterdir()} >= ALL_FILES
    assert set(own_files_of_run(folder)) == {path for path in folder.rglob("*") if path.is_file()}
    printed = capsys.readouterr().out
    assert "demo train: 120 of 120 pairs kept" in printed
    assert printed.strip().splitlines()[-1].endswith(" % on 5 held-out sentences (test)")

    record = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
    assert (record["updates"], record["recipe"], record["seed"]) == (6, "tiny", 42)
    assert record["averaged_checkpoints"] == ["checkpoint-4", "checkpoint-6"]
    assert 0 < record["target_tokens_per_update"] < 400
    assert record["target_tokens_per_second"] > 0
    assert "+cpu" in record["versions"]["torch"] or record["versions"]["torch"]
    logs = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    assert {"cross_entropy", "regularization", "attention_entropy", "dead_row_fraction"} <= logs[0].keys()
    assert {"eval_bleu", "eval_exact_match"} <= next(entry for entry in logs if "eval_loss" in entry).keys()
    reports = json.loads((folder / "corpus_report.json").read_text(encoding="utf-8"))
    assert [report["name"] for report in reports] == [
        "demo train", "demo validation", "demo test", "train tokens", "validation tokens",
    ]  # fmt: skip
    assert load_recipe(folder / RECIPE_FILE).training.max_steps == 6

    averaged = load_file(folder / "model.safetensors")
    parts = [load_file(folder / f"checkpoint-{step}" / "model.safetensors") for step in (4, 6)]
    name = "model.encoder.layers.0.fc1.weight" if "model.encoder.layers.0.fc1.weight" in averaged else min(averaged)
    assert torch.allclose(averaged[name], (parts[0][name] + parts[1][name]) / 2)
    assert not torch.equal(averaged[name], parts[1][name])
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer)
    assert (model.config.pad_token_id, model.config.decoder_start_token_id, model.config.eos_token_id) == (0, 1, 2)
    assert torch.equal(model.get_input_embeddings().weight, model.lm_head.weight)


def test_a_run_that_was_interrupted_goes_on_and_ends_as_if_it_had_not_been(recipe_file, tmp_path, monkeypatch, capsys):
    whole = train(load_recipe(recipe_file))
    options = ["--config", str(recipe_file), "--training.output_dir", str(tmp_path / "broken")]

    class Killed(Exception):
        pass

    original = training_module.ReLUFormerTrainer.log

    def log_until_killed(self, logs, start_time=None):
        original(self, logs, start_time)
        if self.state.global_step == 5:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(training_module.ReLUFormerTrainer, "log", log_until_killed)
        with pytest.raises(Killed):
            train(parse_recipe([*options, "--training.logging_steps", "5"]))
    assert not (tmp_path / "broken" / RECORD_FILE).exists()
    capsys.readouterr()
    folder = train(parse_recipe(options))
    assert f"going on at {tmp_path / 'broken' / 'checkpoint-4'}" in capsys.readouterr().out
    final, expected = load_file(folder / "model.safetensors"), load_file(whole / "model.safetensors")
    assert all(torch.equal(final[name], expected[name]) for name in expected)
    assert json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))["resumed_from"].endswith("checkpoint-4")


@pytest.fixture
def folder_of(recipe_file):
    """The recipe, and its run folder with given checkpoints in it."""

    def prepare(*checkpoints, finished=False, arguments=()):
        recipe = parse_recipe(["--config", str(recipe_file), *arguments])
        folder = recipe.run_folder
        for step in checkpoints:
            (folder / f"checkpoint-{step}").mkdir(parents=True)
            for name in ("trainer_state.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
                (folder / f"checkpoint-{step}" / name).write_text("{}", encoding="utf-8")
            seal_checkpoint(folder / f"checkpoint-{step}", processes=1)
        save_recipe(load_recipe(recipe_file), folder / RECIPE_FILE)
        if finished:
            for name in (RECORD_FILE, CARD_FILE):
                (folder / name).write_text("{}", encoding="utf-8")
        return recipe, folder

    return prepare


def test_an_unfinished_run_resumes_at_its_last_complete_checkpoint(folder_of):
    recipe, folder = folder_of(2, 4, 10)
    (folder / "checkpoint-12").mkdir()  # killed while it was being written
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-10"


def test_a_finished_run_is_refused_and_replaced_only_on_demand(folder_of):
    recipe, folder = folder_of(6, finished=True)
    with pytest.raises(UserError, match=r"finished run.*--overwrite"):
        checkpoint_to_resume(recipe)
    assert checkpoint_to_resume(recipe, overwrite=True) is None
    with removed_unless_it_fails(folder):
        pass
    assert [path.name for path in folder.iterdir()] == [RECIPE_FILE]


@pytest.mark.parametrize(
    "other",
    [
        *("notes.txt", "data/train.de", "checkpoint-6/notes.txt", "analysis/mine.csv", "utils.py"),
        "analysis/attention-maps/1/mine.x.layer0.png",
    ],
)
def test_overwriting_removes_nothing_that_no_run_has_written(folder_of, other):
    recipe, folder = folder_of(6, finished=True)
    (folder / other).parent.mkdir(parents=True, exist_ok=True)
    (folder / other).write_text("years of work", encoding="utf-8")
    before = sorted(folder.rglob("*"))
    named = "data/" if other.startswith("data/") else other
    with pytest.raises(UserError, match=rf"holds {named}, which the program has not written"):
        checkpoint_to_resume(recipe, overwrite=True)
    assert sorted(folder.rglob("*")) == before


def test_overwriting_follows_no_link_and_knows_the_files_of_a_checkpoint_without_a_manifest(folder_of, tmp_path):
    recipe, folder = folder_of(6, finished=True)
    (folder / "checkpoint-6" / MANIFEST_FILE).unlink()
    (folder / "checkpoint-6" / "notes.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(UserError, match=r"holds checkpoint-6/notes\.txt, which the program has not written"):
        checkpoint_to_resume(recipe, overwrite=True)
    (folder / "checkpoint-6" / "notes.txt").unlink()
    (tmp_path / "elsewhere.md").write_text("of somebody else", encoding="utf-8")
    (folder / "README.md").unlink(missing_ok=True)
    (folder / "README.md").symlink_to(tmp_path / "elsewhere.md")
    with pytest.raises(UserError, match=r"holds README\.md, which the program has not written"):
        checkpoint_to_resume(recipe, overwrite=True)


def test_overwriting_removes_what_interruptions_and_earlier_versions_have_left(folder_of):
    recipe, folder = folder_of(2, 4)
    (folder / "checkpoint-2" / MANIFEST_FILE).unlink()  # of a version that wrote none
    (folder / "checkpoint-6").mkdir()
    for name in (
        ".model.partial/config.json",
        ".removed-checkpoint-0/optimizer.pt",
        "old_module.py",
        "analysis/top-p.csv",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("", encoding="utf-8")
    (folder / "config.json").write_text('{"auto_map": {"AutoConfig": "code.Config"}}', encoding="utf-8")
    (folder / "code.py").write_text("from .old_module import Config\n", encoding="utf-8")
    assert checkpoint_to_resume(recipe, overwrite=True) is None
    with removed_unless_it_fails(folder):
        pass
    assert [path.name for path in folder.iterdir()] == [RECIPE_FILE]


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("failure", ["no file", "no memory for the model", "killed"])
def test_overwriting_leaves_an_earlier_run_as_it_is_if_the_new_one_cannot_begin(
    folder_of, tmp_path, failure, monkeypatch
):
    recipe, folder = folder_of(2, 6, finished=True)
    before = contents(folder)
    recipe.training.learning_rate = 0.5  # so that the new recipe is another one
    if failure == "no file":
        recipe.data.demo, missing = None, str(tmp_path / "missing")
        recipe.data.train = recipe.data.validation = recipe.data.test = ParallelFiles(source=missing, target=missing)
        with pytest.raises(UserError, match="missing"):
            train(recipe, overwrite=True)
    elif failure == "killed":
        assert checkpoint_to_resume(recipe, overwrite=True) is None
        write_recipe(recipe)
        (folder / "tokenizer.json").write_text("new", encoding="utf-8")
        with pytest.raises(UserError, match="holds a finished run"):
            checkpoint_to_resume(recipe)
    else:
        monkeypatch.setattr(training_module, "build_model", lambda *_: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            train(recipe, overwrite=True)
    assert contents(folder) == before


@pytest.mark.parametrize("key", ["initialize_from", "tokenizer.path", "data.train.target", "data.dataset.path"])
def test_overwriting_refuses_a_run_that_begins_with_what_is_in_its_own_folder(folder_of, key):
    recipe, folder = folder_of(6, finished=True)
    before, path = contents(folder), str(folder / "checkpoint-6" / "model.safetensors")
    if key == "initialize_from":
        recipe.initialize_from = path = str(folder)
    elif key == "tokenizer.path":
        recipe.tokenizer.path = path = str(folder / "checkpoint-6")
    else:
        recipe.data.train = ParallelFiles(source="elsewhere", target=path) if "train" in key else None
        recipe.data.dataset = None if "train" in key else DatasetConfig(path=path)
    with pytest.raises(UserError, match=rf"^{key}: '{path}' lies in \S+, which --overwrite would take away"):
        checkpoint_to_resume(recipe, overwrite=True)
    assert contents(folder) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_recipe_in_its_own_output_folder_is_never_rewritten(recipe_file, tmp_path, overwrite):
    folder = tmp_path / "exp1"
    folder.mkdir()
    mine = folder / RECIPE_FILE
    printed = recipe_parser().dump(recipe_parser().parse_args(["--config", str(recipe_file)]))
    for text in (
        recipe_file.read_text(encoding="utf-8"),
        f"# mine\n{recipe_file.read_text(encoding='utf-8')}",
        printed,
    ):
        mine.write_text(text, encoding="utf-8")
        with pytest.raises(
            UserError, match=r"exp1/recipe\.yaml: was not written by a run.*another training\.output_dir"
        ):
            train(parse_recipe(["--config", str(mine), "--training.output_dir", str(folder)]), overwrite=overwrite)
        assert mine.read_text(encoding="utf-8") == text


def test_comments_in_the_recipe_of_a_run_stay_as_long_as_it_says_the_same(folder_of):
    recipe, folder = folder_of(2)
    commented = "# mine\n" + (folder / RECIPE_FILE).read_text(encoding="utf-8")
    (folder / RECIPE_FILE).write_text(commented, encoding="utf-8")
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-2"
    write_recipe(recipe)
    assert (folder / RECIPE_FILE).read_text(encoding="utf-8") == commented


def test_a_folder_that_is_not_a_run_is_never_touched(recipe_file, tmp_path):
    recipe = parse_recipe(["--config", str(recipe_file), "--training.output_dir", str(tmp_path)])
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"no recipe\.yaml"):
            checkpoint_to_resume(recipe, overwrite=overwrite)
    assert recipe_file.is_file()


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


def test_an_explicit_checkpoint_is_followed_or_refused(folder_of):
    recipe, folder = folder_of(2, 4, finished=True)
    recipe.training.resume_from_checkpoint = str(folder / "checkpoint-2")
    assert checkpoint_to_resume(recipe) == folder / "checkpoint-2"
    recipe.training.resume_from_checkpoint = str(folder / "checkpoint-3")
    with pytest.raises(UserError, match="checkpoint-3"):
        checkpoint_to_resume(recipe)


def test_mistakes_are_found_before_the_corpus_is_read(recipe_file, monkeypatch):
    monkeypatch.setattr(training_module, "load_split", lambda *_: pytest.fail("the corpus was read"))
    for arguments, named in (
        (["--model.attention_activation", "tanh"], "tanh"),
        (["--model.d_modell", "8"], "d_modell"),
        (["--data.demo", "null", "--data.train.source", "a", "--data.train.target", "b"], "no test split"),
    ):
        with pytest.raises(UserError, match=named):
            train(parse_recipe(["--config", str(recipe_file), *arguments]))


def test_pairs_come_from_files_and_from_datasets_alike(recipe_file, tmp_path):
    from reluformer.training.data.splits import has_split, load_split

    pairs = [("ein hund", "a dog"), ("zwei", "two")]
    for side, language in ((0, "de"), (1, "en")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (tmp_path / f"train.{language}").write_text(text, encoding="utf-8")
    rows = [{"translation": dict(zip(("de", "en"), pair, strict=True))} for pair in pairs]
    datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(tmp_path / "set")
    common = ["--config", str(recipe_file), "--data.demo", "null"]
    files = ["--data.train.source", str(tmp_path / "train.de"), "--data.train.target", str(tmp_path / "train.en")]
    loaded = [
        load_split(parse_recipe([*common, *origin]).data, "train")[0].to_list()
        for origin in (files, ["--data.dataset.path", str(tmp_path / "set")])
    ]
    assert loaded[0] == loaded[1] == [{"source": source, "target": target} for source, target in pairs]
    data = parse_recipe([*common, *files]).data
    assert not has_split(data, "test")
    with pytest.raises(UserError, match="splits it has: train"):
        load_split(data, "test")


def test_a_run_shorter_than_logging_steps_ends(recipe_file, capsys):
    recipe = parse_recipe(
        ["--config", str(recipe_file), "--training.logging_steps", "500", "--training.eval_strategy", "no"]
    )
    folder = train(recipe)
    assert "no training curve: nothing was logged in 6 updates (logging: steps 500)" in capsys.readouterr().out
    assert (folder / CARD_FILE).is_file() and not (folder / "training_curve.png").exists()


def test_half_precision_that_a_cpu_would_ignore_is_refused(recipe_file):
    with pytest.raises(UserError, match=r"training\.fp16: true, but the device is a CPU.*leave it out"):
        parse_recipe(["--config", str(recipe_file), "--training.fp16", "true"])


def test_the_headline_says_what_was_measured_on_what(recipe_file):
    recipe = load_recipe(recipe_file)
    scores = {"exact_match": 98.8, "sentences": 1000}
    assert headline(recipe, "test", scores) == "exact match: 98.80 % on 1,000 held-out sentences (test)"
