"""`reluformer init`: the recipe suits the text, trains as it is, and mistakes are one line."""

import pytest

from reluformer.commands import main as cli
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.training.data.demo_corpus import demo_pairs
from reluformer.training.run.model_building import build_config


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """The folder with small files, which is the current one; each line is so many number words."""
    monkeypatch.chdir(tmp_path)

    def write(words: int = 1):
        for split, count in {"train": 60, "val": 8, "test": 6}.items():
            pairs = demo_pairs(count * words, split="train", seed=len(split))
            for side, language in {"source": "de", "target": "en"}.items():
                lines = [" ".join(pairs[side][start::count]) for start in range(count)]
                (tmp_path / f"{split}.{language}").write_text("\n".join([*lines, ""]), encoding="utf-8")

    write()
    return write


TRAIN = ["init", "--source", "train.de", "--target", "train.en"]
VALIDATION, TEST = ["--validation", "val.de", "val.en"], ["--test", "test.de", "test.en"]


@pytest.mark.parametrize(
    ("options", "name", "preset", "splits", "watched", "said"),
    [
        ([*VALIDATION, *TEST], "de_en", "reluformer", ["test"], "steps", []),
        ([*VALIDATION, "--softmax"], "de_en_softmax", "vanilla", ["validation"], "steps", ["no --test: the val"]),
        ([], "de_en", "reluformer", [], "no", ["no --validation", "no --test: nothing"]),
    ],
)
def test_the_recipe_trains_as_it_is(corpus, capsys, options, name, preset, splits, watched, said):
    assert cli.main([*TRAIN, *options]) == 0
    out = capsys.readouterr().out
    assert out.count("no --") == len(said) and all(words in out for words in said)
    assert out.endswith(f"wrote {name}.yaml; now: reluformer train --config {name}.yaml\n")
    recipe = load_recipe(f"{name}.yaml")
    assert (recipe.name, recipe.model["preset"], recipe.evaluation.splits) == (name, preset, splits)
    assert recipe.training.eval_strategy == watched
    assert recipe.model.get("attention_gamma") == (16.0 if preset == "reluformer" else None)
    assert recipe.training.max_steps == 200 and 260 < recipe.tokenizer.vocab_size < 4000  # small, but not too small
    build_config(recipe)
    if said == []:
        fast = ["--training.max_steps", "2", "--evaluation.num_beams", "1", "--evaluation.samples", "0"]
        assert cli.main(["train", f"{name}.yaml", *fast]) == 0


def test_long_lines_get_their_length(corpus):
    corpus(words=40)
    assert cli.main(TRAIN) == 0 and load_recipe("de_en.yaml").data.max_length > 128


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--source", "train.de", "--target", "val.en"], "found 60 in train.de and 8 in val.en"),
        (["--source", "train.de", "--target", "val.de"], "'val.de' ends in the language of --source"),
        (["--source", "train.de", "--target", "val.txt"], "'val.txt' does not end in a language"),
        ([*TRAIN[1:], "--output", "test.de"], "'test.de' exists already"),
    ],
)
def test_mistakes_are_refused_in_one_line(corpus, capsys, tmp_path, arguments, named):
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert cli.main(["init", *arguments]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
