"""What is published and what is refused. Nothing here reaches a network."""

import json
import math
import re
import shutil

import pytest
from huggingface_hub import HfApi, ModelCard
from safetensors.torch import load_file, save_file

from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError
from reluformer.hub_cards.bundle import collect_files as collect_files_of
from reluformer.hub_cards.model_folder import ModelFolder
from reluformer.hub_cards.publishing import publish
from reluformer.hub_cards.statements import Statements
from reluformer.training.run.records import write_json

from .finished_run import LEFT_BEHIND, write_finished_run

REPO = "me/little"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return write_finished_run(tmp_path_factory.mktemp("runs") / "little")


@pytest.fixture
def run(finished, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(finished, tmp_path / "little")


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    monkeypatch.setattr("reluformer.hub_cards.publishing.get_token", lambda: None)


def collect_files(folder, *, repo_id=REPO, license=None):
    return collect_files_of(ModelFolder(folder, Statements(license=license)), repo_id=repo_id)


def dry_run(folder, **options):
    lines = []
    publish(folder, REPO, dry_run=True, tell=lines.append, **options)
    return lines


def change_json(path, **fields):
    write_json(path, {**json.loads(path.read_text()), **fields})


def change_weights(folder, change):
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


# What is published


def test_what_a_user_of_the_model_needs_and_nothing_else(run):
    names = {file.name for file in collect_files(run, repo_id=REPO)}
    code = {path.name for path in run.glob("*.py")} - {"notes_of_mine.py"}
    assert {"modeling_reluformer.py", "configuration_reluformer.py", "layers_reluformer.py"} <= code
    expected = {
        WEIGHTS,
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "README.md",
    }
    assert names == expected | code | {"training_curve.png", "attention_map.png"}
    assert not names & {name.split("/")[-1] for name in LEFT_BEHIND if name != "checkpoint-2/model.safetensors"}


def test_no_path_of_the_machine_is_published(run):
    for file in collect_files(run, repo_id=REPO):
        content = file.content if isinstance(file.content, bytes) else file.content.read_bytes()
        assert str(run).encode() not in content, file.name
        assert b"secret" not in content


def test_the_code_that_is_published_is_all_that_it_imports(run):
    code = {file.name: file.content for file in collect_files(run, repo_id=REPO) if file.name.endswith(".py")}
    for path in code.values():
        for module in re.findall(r"^from \.(\w+) import", path.read_text(), re.MULTILINE):
            assert f"{module}.py" in code, f"{path.name} imports {module}"


def test_shards_are_published_with_their_index(run):
    tensors = load_file(run / WEIGHTS)
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:3], "model-00002-of-00002.safetensors": names[3:]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, run / file, metadata={"format": "pt"})
    (run / WEIGHTS).unlink()
    weight_map = {name: file for file, held in parts.items() for name in held}
    write_json(run / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    published = {file.name for file in collect_files(run, repo_id=REPO)}
    assert {*parts, "model.safetensors.index.json"} <= published and WEIGHTS not in published
    (run / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match=r"names 'model-00002-of-00002\.safetensors', which is not in the folder"):
        collect_files(run, repo_id=REPO)


def test_the_chat_template_belongs_to_the_tokenizer(run):
    (run / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    assert "chat_template.jinja" in {file.name for file in collect_files(run, repo_id=REPO)}


def test_pictures_and_generation_config_that_are_not_there_are_left_out(run):
    for name in ("attention_map.png", "generation_config.json"):
        (run / name).unlink()
    names = {file.name for file in collect_files(run, repo_id=REPO)}
    assert "training_curve.png" in names and not names & {"attention_map.png", "generation_config.json"}


def test_the_published_card_knows_its_place_and_the_run_keeps_its_own(run):
    before = (run / "README.md").read_text()
    files = {file.name: file for file in collect_files(run, repo_id=REPO, license="cc-by-4.0")}
    card = ModelCard(files["README.md"].content.decode())
    assert card.data.license == "cc-by-4.0" and f'from_pretrained("{REPO}"' in card.text
    assert (run / "README.md").read_text() == before


def test_the_dry_run_lists_each_file_and_the_sum(run):
    lines = dry_run(run)
    files = collect_files(run, repo_id=REPO)
    assert lines[0].startswith(f"{REPO}: {len(files)} files, ") and lines[-1] == "dry run: nothing was uploaded"
    assert len(lines) == len(files) + 2
    listed = {line.split()[0]: line for line in lines[1:-1]}
    assert listed.keys() == {file.name for file in files}
    assert listed[WEIGHTS].endswith("LFS") and not listed["config.json"].endswith("LFS")
    size = (run / WEIGHTS).stat().st_size
    assert f"{size / 1000:.1f} kB" in listed[WEIGHTS]


def test_the_dry_run_asks_no_token_and_no_hub(run, monkeypatch, capsys):
    def refuse(*args, **kwargs):
        raise AssertionError("a dry run used the network")

    monkeypatch.setattr("huggingface_hub.utils._http.get_session", refuse)
    monkeypatch.setattr("huggingface_hub.hf_api.get_session", refuse)
    assert cli.main(["publish", "--run", str(run), "--repo-id", REPO, "--dry-run"]) == 0
    assert WEIGHTS in capsys.readouterr().out


# What is refused


def remove_record(run):
    (run / "training_record.json").unlink()
    (run / "config.json").unlink()  # as in the middle of training


def remove_card(run):
    (run / "README.md").unlink()


def diverge(run):
    change_json(run / "training_record.json", diverged={"reason": "loss is NaN"})


def remove_evaluation(run):
    (run / "evaluation.test.json").unlink()


def remove_scores(run):
    write_json(run / "evaluation.test.json", {"split": "test", "bleu": float("nan")})


def remove_recipe(run):
    (run / "recipe.yaml").unlink()


def put_nan(run):
    change_weights(run, lambda tensors: tensors["model.encoder.layers.0.fc1.weight"].view(-1)[3:4].fill_(math.nan))


def put_infinity_into_a_buffer(run):
    change_weights(run, lambda tensors: tensors["final_logits_bias"].view(-1)[:1].fill_(math.inf))


def drop_a_tensor(run):
    change_weights(run, lambda tensors: tensors.pop("model.decoder.layers.1.fc2.bias"))


def add_a_tensor(run):
    change_weights(run, lambda tensors: tensors.update(extra=tensors["final_logits_bias"].clone()))


def change_a_shape(run):
    change_json(run / "config.json", encoder_ffn_dim=48)


def cut_the_weights(run):
    (run / WEIGHTS).write_bytes((run / WEIGHTS).read_bytes()[:-20])


def pickle_the_weights(run):
    (run / WEIGHTS).unlink()


def break_the_config(run):
    change_json(run / "config.json", attention_activation="rleu")


def break_the_generation_config(run):
    (run / "generation_config.json").write_text("{")


def drop_the_tokenizer(run):
    (run / "tokenizer.json").write_text("{")


def drop_code(run):
    (run / "layers_reluformer.py").unlink()


def drop_the_main_code(run):
    (run / "modeling_reluformer.py").unlink()


def drop_the_auto_map(run):
    path = run / "config.json"
    config = json.loads(path.read_text())
    del config["auto_map"]
    write_json(path, config)


def code_from_elsewhere(run):
    path = run / "config.json"
    auto_map = {name: f"you/other--{value}" for name, value in json.loads(path.read_text())["auto_map"].items()}
    change_json(path, auto_map=auto_map)


def leak_a_path(run):
    change_json(run / "tokenizer_config.json", name_or_path=str(run))


def leak_a_path_in_a_text(run):
    change_json(run / "generation_config.json", note=f"made of ({run}/model.safetensors), see there")


def leak_a_url(run):
    change_json(run / "tokenizer_config.json", name_or_path="file:///elsewhere/tokenizer")


def leak_a_token(run):
    change_json(run / "config.json", auth_token="geheim")


def leak_a_password(run):
    change_json(run / "generation_config.json", origin={"url": "https://me:geheim@host/x"})


REFUSALS = {
    remove_recipe: "is not a run folder (no recipe.yaml in it)",
    remove_record: "the run is not finished (no training_record.json)",
    remove_card: "the run is not finished (no README.md)",
    diverge: "the training diverged",
    remove_evaluation: "the run has no evaluation",
    remove_scores: "the run has no evaluation",
    put_nan: "the tensor model.encoder.layers.0.fc1.weight holds NaN or infinity",
    put_infinity_into_a_buffer: "the tensor final_logits_bias holds NaN or infinity",
    drop_a_tensor: "the weights lack 1 tensors, first model.decoder.layers.1.fc2.bias",
    add_a_tensor: "the configuration has no place for 1 tensors, first extra",
    change_a_shape: "has shape [24], the configuration asks for [48]",
    cut_the_weights: "model.safetensors: is damaged",
    pickle_the_weights: "its weights are pickled (pytorch_model.bin)",
    break_the_config: "'rleu'",
    break_the_generation_config: "its generation_config.json cannot be loaded",
    drop_the_tokenizer: "its tokenizer cannot be loaded",
    drop_code: "the model's code is incomplete: layers_reluformer.py is missing",
    drop_the_main_code: "the model's code is incomplete: modeling_reluformer.py is missing",
    drop_the_auto_map: "its auto_map does not name the model's code",
    code_from_elsewhere: "takes its code from another repository (you/other--",
    leak_a_path: "tokenizer_config.json: holds a path of this machine",
    leak_a_path_in_a_text: "generation_config.json: holds a path of this machine",
    leak_a_url: "tokenizer_config.json: holds a path of this machine (file:///elsewhere/tokenizer)",
    leak_a_token: "config.json: its field 'auth_token' holds what looks like a secret",
    leak_a_password: "generation_config.json: its field 'url' holds what looks like a secret",
}


@pytest.mark.parametrize("damage", REFUSALS, ids=lambda damage: damage.__name__)
def test_what_is_not_to_be_published_is_one_line(run, capsys, damage):
    damage(run)
    assert cli.main(["publish", "--run", str(run), "--repo-id", REPO, "--dry-run"]) == 2
    output = capsys.readouterr()
    lines = [line for line in output.err.splitlines() if line.startswith("reluformer: error: ")]
    assert len(lines) == 1 and REFUSALS[damage] in lines[0] and "geheim" not in output.err, output.err
    assert str(run) in lines[0]
    assert output.out == ""


def test_a_tokenizer_of_another_model_is_refused(finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "little")
    small = {"vocab_size": 280, "decoder_vocab_size": 280}
    change_json(run / "config.json", **small)
    change_weights(run, lambda tensors: [tensors.update({name: cut(tensor)}) for name, tensor in tensors.items()])
    with pytest.raises(UserError, match="its tokenizer has 300 pieces, its model embeddings for 280"):
        collect_files(run, repo_id=REPO)


def cut(tensor):
    """The first 280 of the 300 pieces."""
    for dimension, size in enumerate(tensor.shape):
        if size == 300:
            return tensor.narrow(dimension, 0, 280).contiguous()
    return tensor


def test_a_run_without_evaluation_is_published_when_that_is_said(run):
    remove_evaluation(run)
    assert dry_run(run, without_evaluation=True)[-1] == "dry run: nothing was uploaded"


@pytest.mark.parametrize("folder", ["nowhere", "checkpoint-2"])
def test_folders_that_are_no_runs_are_refused(run, folder, capsys):
    with pytest.raises(UserError, match=r"no such folder|holds no config\.json"):
        dry_run(run / folder)
    assert cli.main(["publish", "--run", str(run / folder), "--repo-id", REPO, "--dry-run"]) == 2
    assert re.search("no such folder|is not a run folder", capsys.readouterr().err)


@pytest.mark.parametrize("repo_id", ["little", "a/b/c", "me/", "me/lit tle", "me/-little", "me/li..ttle", ""])
def test_a_bad_repository_is_refused_before_anything_else(repo_id, capsys):
    assert cli.main(["publish", "--run", "nowhere", "--repo-id", repo_id]) == 2
    assert capsys.readouterr().err.startswith("reluformer: error: --repo-id: ")


def test_a_missing_token_is_refused_and_says_how_to_get_one(run, capsys):
    assert cli.main(["publish", "--run", str(run), "--repo-id", REPO]) == 2
    output = capsys.readouterr()
    assert output.out == "" and len(output.err.splitlines()) == 1
    assert "/settings/tokens" in output.err and "hf auth login" in output.err and "HF_TOKEN" in output.err


@pytest.mark.parametrize("license", ["CC BY 4.0", "", "mit\nevil: 1"])
def test_a_licence_of_another_form_is_refused(run, license):
    with pytest.raises(UserError, match="--license"):
        dry_run(run, license=license)


def test_a_client_with_a_token_of_its_own_needs_no_other(run):
    """It gets as far as the Hub, which the tests may not reach."""
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        publish(run, REPO, api=HfApi(token="hf_of_its_own"), tell=lambda line: None)
