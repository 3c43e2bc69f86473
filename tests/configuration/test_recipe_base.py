"""`base:` in a recipe: a variant holds what differs, and stands on the rest."""

from pathlib import Path

import pytest
import yaml

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import load_recipe, parse_recipe, recipe_layers, recipe_to_dict

BASE = {
    "name": "below",
    "description": "Number words.",
    "data": {"source_language": "de", "target_language": "en", "demo": {"train": 100, "seed": 4}},
    "model": {"d_model": 16, "encoder_attention_heads": 2},
    "training": {"max_steps": 10, "learning_rate": "1e-3"},
}
LENGTHS = (128, 256, 512, 1024, 2048)


@pytest.fixture
def write(tmp_path):
    def write_recipe(name, text):
        path = tmp_path / f"{name}.yaml"
        path.write_text(text if isinstance(text, str) else yaml.safe_dump(text), encoding="utf-8")
        return str(path)

    write_recipe("below", BASE)
    return write_recipe


def test_a_recipe_is_laid_over_its_base(write):
    write("middle", "# a comment\nbase: below\nname: middle\nmodel: {preset: vanilla, d_model: 32}\n")
    top = write("top", "name: top\nbase: middle.yaml\ndata: {demo: {train: 50}}\ntraining: {max_steps: 20}\n")
    recipe = load_recipe(top)
    assert recipe.name == "top"
    assert recipe.model == {**BASE["model"], "preset": "vanilla", "d_model": 32}
    assert (recipe.data.source_language, recipe.data.demo.train, recipe.data.demo.seed) == ("de", 50, 4)
    assert (recipe.training.max_steps, recipe.training.learning_rate) == (20, 1e-3)
    assert "base" not in recipe_to_dict(recipe)
    over = parse_recipe(["--config", top, "--model.d_model", "64"])
    assert over.model["d_model"] == 64


def test_a_description_is_of_the_recipe_that_holds_it(write):
    below = str(Path(write("top", "base: below\nname: top\n")).with_name("below.yaml"))
    own = write("own", "base: below\nname: own\ndescription: My own.\n")
    assert [load_recipe(path).description for path in (below, own)] == ["Number words.", "My own."]
    assert load_recipe(own.replace("own.yaml", "top.yaml")).description == ""
    named = ["--config", below, "--name", "twin"]
    assert parse_recipe(named).description == ""
    assert parse_recipe([*named, "--description", "A twin."]).description == "A twin."


def test_the_layers_of_a_file_are_listed_lowest_first(write):
    top = write("top", "base: below\nname: top\n")
    (below, below_text), (path, text) = recipe_layers(top)
    assert below.endswith("below.yaml") and below_text is None
    assert path == top and yaml.safe_load(text) == {"name": "top"}


def test_a_base_may_be_a_recipe_of_the_package(write):
    assert load_recipe(write("mine", "base: demo\nname: mine\n")).model == load_recipe("demo").model


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("base: nowhere\nname: top\n", "base: no recipe 'nowhere'; give a path"),
        ("base: [below]\nname: top\n", r"base: no recipe \['below'\]"),
        ("base: top\nname: top\n", "stands on itself"),
        ("base: below\nname: top\nmodell: {d_model: 8}\n", r"modell\.d_model"),
    ],
)
def test_a_base_that_cannot_be_used_is_refused(write, text, named):
    with pytest.raises(UserError, match=named) as caught:
        load_recipe(write("top", text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", LENGTHS)
def test_the_recipes_of_documents_differ_in_what_follows_the_length(length):
    recipe, middle = (recipe_to_dict(load_recipe(f"europarl_it_en_L{limit}")) for limit in (length, 512))
    assert recipe["data"].pop("max_length") == length
    gamma, positions = (recipe["model"].pop(name) for name in ("attention_gamma", "max_position_embeddings"))
    assert gamma == pytest.approx((2 * length) ** 0.5, rel=0.01)
    assert positions == max(512, length)  # sentences longer than L are kept in evaluation
    for plain in (recipe, middle):
        for name in ("name", "description"):
            plain.pop(name)
        plain["training"].pop("output_dir")
        for name in ("attention_gamma", "max_position_embeddings"):
            plain["model"].pop(name, None)
        plain["data"].pop("max_length", None)
    assert recipe == middle


@pytest.mark.parametrize("length", LENGTHS)
def test_the_softmax_twins_of_documents_differ_in_the_preset_alone(length):
    relu, softmax = (recipe_to_dict(load_recipe(f"europarl_it_en_L{length}{end}")) for end in ("", "_softmax"))
    assert (relu["model"].pop("preset"), softmax["model"].pop("preset")) == ("reluformer", "vanilla")
    del relu["model"]["attention_gamma"]
    for plain in (relu, softmax):
        for name in ("name", "description"):
            plain.pop(name)
        plain["training"].pop("output_dir")
    assert relu == softmax
