"""Publishing of models without a recipe: the same files and the same refusals as of a run, through the Hub of the tests."""

import re
import shutil

import pytest
from huggingface_hub import ModelCard

from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError
from reluformer.hub_cards.publishing import publish
from reluformer.training.run.records import write_json

from . import test_publishing as of_runs
from .finished_run import write_finished_run
from .saved_model import evaluation, trainer_state

REPO = "tester/saved"
# What `reluformer train` writes beside the model.
OF_A_RUN = ("recipe.yaml", "training_record.json", "evaluation.test.json", "README.md", "attention_map.png")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A folder as a plain Trainer leaves it, with weights and the leftovers of a training."""
    folder = write_finished_run(tmp_path_factory.mktemp("models") / "plain")
    for name in OF_A_RUN:
        (folder / name).unlink()
    write_json(folder / "trainer_state.json", trainer_state())
    return folder


@pytest.fixture
def model(plain, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(plain, tmp_path / "plain")


def test_the_model_is_published_with_its_code_and_card_and_nothing_else(model, loopback_hub, hub_client):
    told = []
    publish(model, REPO, license="cc0-1.0", language=["de", "en"], dataset="me/pairs", api=hub_client, tell=told.append)
    assert loopback_hub.commits(REPO) == ["initial commit", "Publish saved"]
    files = loopback_hub.repository(REPO).files()
    assert {"model.safetensors", "config.json", "tokenizer.json", "modeling_reluformer.py", "README.md"} <= files.keys()
    assert not files.keys() & {"training_args.bin", "trainer_state.json", "notes_of_mine.py", "optimizer.pt", ".env"}
    for module in re.findall(r"^from \.(\w+) import", files["modeling_reluformer.py"].decode(), re.MULTILINE):
        assert f"{module}.py" in files
    card = ModelCard(files["README.md"].decode())
    assert (card.data.license, card.data.language, card.data.datasets) == ("cc0-1.0", ["de", "en"], ["me/pairs"])
    assert f'from_pretrained("{REPO}"' in card.text and "\n# saved\n" in card.text
    assert not (model / "README.md").exists() and told[-1].startswith("published: ")


def dry_run(folder, *options):
    return cli.main(["publish", "--model", str(folder), "--repo-id", REPO, "--dry-run", *options])


def test_a_model_without_a_score_is_published_when_that_is_said(model, capsys):
    only_loss = {"global_step": 9, "log_history": [evaluation(9, loss=1.5)]}
    for state in (only_loss, None):
        if state is None:
            (model / "trainer_state.json").unlink()
        else:
            write_json(model / "trainer_state.json", state)
        assert dry_run(model) == 2
        assert "no score of the model is known" in capsys.readouterr().err
        assert dry_run(model, "--without-evaluation") == 0


DAMAGES = (
    "put_nan",
    "drop_a_tensor",
    "pickle_the_weights",
    "drop_code",
    "code_from_elsewhere",
    "leak_a_path",
    "leak_a_token",
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_refused_of_a_run_is_refused_of_a_model(model, damage, capsys):
    change = getattr(of_runs, damage)
    change(model)
    assert dry_run(model) == 2
    assert of_runs.REFUSALS[change] in capsys.readouterr().err


def test_a_model_without_a_tokenizer_is_refused(model, capsys):
    for path in model.glob("tokenizer*"):
        path.unlink()
    assert dry_run(model) == 2
    assert "holds no tokenizer" in capsys.readouterr().err


def test_run_wants_a_run_and_model_takes_one(model, tmp_path, capsys):
    assert cli.main(["publish", "--run", str(model), "--repo-id", REPO, "--dry-run"]) == 2
    assert "or any saved model with --model" in capsys.readouterr().err
    run = write_finished_run(tmp_path / "little")
    assert dry_run(run) == 0
    (run / "training_record.json").unlink()
    with pytest.raises(UserError, match="the run is not finished"):
        publish(run, REPO, dry_run=True)
