"""`training.push_to_hub` in a recipe: the finished run is published once, with its card; nothing else of it is uploaded."""

import json

import pytest
import yaml
from huggingface_hub import ModelCard

from reluformer.commands import main as cli
from reluformer.commands.train import train_and_document as train
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.hub_cards.hub_faults import with_retries

from ..training.run.kill_harness import RECIPE
from .hub_routes import WRITE_TOKEN
from .loopback_hub import COMMIT, CREATE

REPO = "tester/pushed"


@pytest.fixture
def recipe(tmp_path, loopback_hub, hub_client, monkeypatch):
    """Makes a recipe of four updates and three checkpoints that pushes."""
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    monkeypatch.setitem(with_retries.__kwdefaults__, "sleep", lambda seconds: None)

    def make(**arguments):
        training = {**RECIPE["training"], "max_steps": 4, "eval_strategy": "no", "output_dir": str(tmp_path / "run")}
        training |= {"push_to_hub": True, "hub_model_id": REPO, "save_steps": 2, **arguments}
        path = tmp_path / "pushed.yaml"
        path.write_text(yaml.safe_dump({**RECIPE, "name": "pushed", "training": training}), encoding="utf-8")
        return load_recipe(path)

    return make


def test_the_finished_run_is_published_in_one_commit_with_its_own_card(loopback_hub, recipe, tmp_path, capsys):
    folder = train(recipe(hub_private_repo=True))
    assert loopback_hub.commits(REPO) == ["initial commit", "Publish pushed"]
    repository = loopback_hub.repository(REPO)
    files = repository.files()
    assert repository.private
    assert files["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert {"modeling_reluformer.py", "training_curve.png", "attention_map.png", "tokenizer.json"} <= files.keys()
    assert not files.keys() & {"recipe.yaml", "training_args.bin", "translations.test.tsv", "trainer_state.json"}
    card = ModelCard(files["README.md"].decode())
    bleu = json.loads((folder / "evaluation.test.json").read_text())["bleu"]
    assert card.data.eval_results[0].metric_value == round(bleu, 2) and "arxiv:2302.06461" in card.data.tags
    assert "published: " in capsys.readouterr().out
    # The recipe of the run still says what was asked for.
    assert yaml.safe_load((folder / "recipe.yaml").read_text())["training"]["push_to_hub"] is True
    assert all(str(tmp_path).encode() not in content for content in files.values())


def test_a_push_that_fails_leaves_a_finished_run_and_says_how_to_publish_it(loopback_hub, recipe, capsys):
    loopback_hub.fail_next("POST", COMMIT, 403)
    wanted = recipe()
    with pytest.raises(
        UserError, match=r"the run is finished, but not published: .*HTTP 403.*`reluformer publish --run"
    ):
        train(wanted)
    assert cli.main(["publish", "--run", str(wanted.run_folder), "--repo-id", REPO]) == 0
    assert loopback_hub.commits(REPO) == ["initial commit", "Publish pushed"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"hub_model_id": None}, r"training\.hub_model_id: missing"),
        ({"hub_model_id": "only_a_name"}, r"training\.hub_model_id: 'only_a_name' is no repository"),
        ({"hub_strategy": "all_checkpoints"}, r"training\.hub_strategy: 'all_checkpoints' would upload checkpoints"),
        ({"hub_revision": "other"}, r"training\.hub_revision"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_training(loopback_hub, recipe, arguments, words):
    wanted = recipe(**arguments)
    with pytest.raises(UserError, match=words):
        train(wanted)
    assert loopback_hub.count("POST", CREATE) == 0
    assert not (wanted.run_folder / "model.safetensors").exists()


def test_a_missing_token_is_refused_before_training(recipe, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError, match="no token for"):
        train(recipe())
