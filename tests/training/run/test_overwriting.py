"""What `--overwrite` takes away, and what neither it nor a new run ever touches."""

import os

import pytest

from reluformer.commands.train import train_and_document as train
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import DatasetConfig, ParallelFiles, TablesConfig
from reluformer.configuration.recipe_parser import parse_recipe, recipe_parser
from reluformer.training import training as training_module
from reluformer.training.run.checkpoints import MANIFEST_FILE
from reluformer.training.run.overwriting import removed_unless_it_fails
from reluformer.training.run.run_folder import RECIPE_FILE, checkpoint_to_resume, write_recipe
from reluformer.training.run.run_lock import only_training_in


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


@pytest.mark.parametrize(
    "key", ["initialize_from", "tokenizer.path", "data.train.target", "data.tables.train", "data.dataset.path"]
)
def test_overwriting_refuses_a_run_that_begins_with_what_is_in_its_own_folder(folder_of, key):
    recipe, folder = folder_of(6, finished=True)
    before, path = contents(folder), str(folder / "checkpoint-6" / "model.safetensors")
    if key == "initialize_from":
        recipe.initialize_from = path = str(folder)
    elif key == "tokenizer.path":
        recipe.tokenizer.path = path = str(folder / "checkpoint-6")
    else:
        recipe.data.train = ParallelFiles(source="elsewhere", target=path) if "target" in key else None
        recipe.data.tables = TablesConfig(train=["elsewhere", path]) if "tables" in key else None
        recipe.data.dataset = DatasetConfig(path=path) if "dataset" in key else None
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


def test_a_folder_that_is_not_a_run_is_never_touched(recipe_file, tmp_path):
    recipe = parse_recipe(["--config", str(recipe_file), "--training.output_dir", str(tmp_path)])
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"no recipe\.yaml"):
            checkpoint_to_resume(recipe, overwrite=overwrite)
    assert recipe_file.is_file()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_second_training_in_the_folder_is_refused_with_the_name_of_the_first(folder_of, overwrite):
    recipe, folder = folder_of(2)
    before = contents(folder)
    refused = rf"tiny: another training is writing into it \(process {os.getpid()} on \S+, since 20\d\d-.* UTC\)"
    with only_training_in(folder), pytest.raises(UserError, match=refused):
        train(recipe, overwrite=overwrite)
    assert contents(folder) == before
