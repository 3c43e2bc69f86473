"""What is published and what is refused, with a Hub in memory."""

import json
import math
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, ViTImageProcessor

from reluformer import modeling_reluformer
from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError
from reluformer.hub_cards.publishing import copy_with_code, publish
from reluformer.records.records import write_json
from reluformer.translating.shipped import located, shipped_models

from ..modeling_reluformer.cases import decoder_model, run_without_package, vision_model, word_tokenizer
from .model_folders import LEFT_BEHIND, OF_A_RUN, change, write_finished_run

REPO = "me/little"
WEIGHTS = "model.safetensors"


class FakeHub:
    """Stands for `HfApi`: keeps the files of each repository as they were after the last commit."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.commits: list[str] = []
        self.failure: Exception | None = None

    def create_repo(self, repo_id: str, *, private: bool | None = None, exist_ok: bool = False) -> None:
        assert exist_ok
        self.repositories.setdefault(repo_id, {})
        self.private.setdefault(repo_id, bool(private))

    def model_info(self, repo_id: str) -> SimpleNamespace:
        return SimpleNamespace(private=self.private[repo_id])

    def upload_folder(
        self, *, repo_id: str, folder_path: Path, allow_patterns: list[str], commit_message: str, **options: Any
    ) -> SimpleNamespace:
        if self.failure is not None:
            raise self.failure
        paths = (path for path in Path(folder_path).rglob("*") if path.is_file())
        names = (path.relative_to(folder_path).as_posix() for path in paths)
        chosen = filter_repo_objects(names, allow_patterns=allow_patterns)
        self.repositories[repo_id] |= {name: (Path(folder_path) / name).read_bytes() for name in chosen}
        self.commits.append(commit_message)
        return SimpleNamespace(commit_url=f"https://hub.example.org/{repo_id}/commit/1")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """An empty Hub, and a token for it."""
    hub = FakeHub()
    monkeypatch.setattr("reluformer.hub_cards.publishing.HfApi", lambda: hub)
    monkeypatch.setattr("reluformer.hub_cards.publishing.get_token", lambda: "hf_token")
    return hub


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return write_finished_run(tmp_path_factory.mktemp("runs") / "little")


@pytest.fixture
def run(finished, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(finished, tmp_path / "little")


# What is published


def test_what_a_user_of_the_model_needs_and_nothing_else(run, hub, capsys):
    assert cli.main(["publish", "--run", str(run), "--repo-id", REPO, "--license", "cc-by-4.0", "--private"]) == 0
    files = hub.repositories[REPO]
    code = {path.name for path in run.glob("*.py")} - {"notes_of_mine.py"}
    settings = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert files.keys() == {WEIGHTS, "README.md", *settings, *code, "training_curve.png", "attention_map.png"}
    assert "modeling_reluformer.py" in code and not files.keys() & set(LEFT_BEHIND)
    for name in code:
        for module in re.findall(r"^from \.(\w+) import", files[name].decode(), re.MULTILINE):
            assert f"{module}.py" in files, f"{name} imports {module}"
    assert hub.private[REPO] and hub.commits == ["Publish little"]
    for name, content in files.items():
        assert str(run).encode() not in content and b"secret" not in content.replace(b"secrets", b""), name
    card = ModelCard(files["README.md"].decode())
    assert card.data.license == "cc-by-4.0" and f'from_pretrained("{REPO}"' in card.text
    assert f"published: https://hub.example.org/{REPO}/commit/1" in capsys.readouterr().out


def test_shards_are_published_with_their_index(run, hub):
    tensors = load_file(run / WEIGHTS)
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:3], "model-00002-of-00002.safetensors": names[3:]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, run / file, metadata={"format": "pt"})
    (run / WEIGHTS).unlink()
    weight_map = {name: file for file, held in parts.items() for name in held}
    write_json(run / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    publish(run, REPO)
    assert {*parts, "model.safetensors.index.json"} <= hub.repositories[REPO].keys()


def test_the_dry_run_lists_the_files_and_uses_no_hub(run, capsys):
    before = (run / "README.md").read_text()
    assert cli.main(["publish", "--run", str(run), "--repo-id", REPO, "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert WEIGHTS in output and output.rstrip().endswith("dry run: nothing was uploaded")
    assert (run / "README.md").read_text() == before


def test_the_model_of_a_plain_trainer_is_published(run, hub, capsys):
    for name in OF_A_RUN:
        (run / name).unlink()
    arguments = ["publish", "--model", str(run), "--repo-id", REPO]
    assert cli.main(arguments) == 2
    assert "no score of it is known, ModelCardCallback records them" in capsys.readouterr().err
    write_json(run / "training_record.json", {"evaluations": {"eval": {"loss": 3.25, "exact_match": 0.5}}})
    assert cli.main(arguments) == 0
    assert not hub.repositories[REPO].keys() & {"trainer_state.json", "training_record.json"}
    assert b"| exact_match | 0.5 |" in hub.repositories[REPO]["README.md"]


def test_decoders_and_classifiers_are_published_with_their_own_files(tmp_path, hub):
    decoder_model(preset="gpt2").save_pretrained(tmp_path / "decoder")
    word_tokenizer().save_pretrained(tmp_path / "decoder")
    vision_model().save_pretrained(tmp_path / "vision")
    with pytest.raises(UserError, match=r"holds no preprocessor_config\.json"):
        publish(tmp_path / "vision", "me/vision", without_evaluation=True)
    ViTImageProcessor().save_pretrained(tmp_path / "vision")
    for kind, own in (("decoder", "tokenizer.json"), ("vision", "preprocessor_config.json")):
        publish(tmp_path / kind, f"me/{kind}", without_evaluation=True)
        assert {WEIGHTS, own, f"modeling_{kind}.py", "README.md"} <= hub.repositories[f"me/{kind}"].keys()
        assert "modeling_reluformer.py" not in hub.repositories[f"me/{kind}"]


TRANSLATE = """
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer, model = (
        kind.from_pretrained(sys.argv[1], trust_remote_code=True) for kind in (AutoTokenizer, AutoModelForSeq2SeqLM)
    )
    assert type(model).__module__.startswith("transformers_modules.")
    print(json.dumps(model.generate(**tokenizer(sys.argv[2], return_tensors="pt")).tolist()))
"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if at else []) for at, name in enumerate(shipped_models())]
)
def test_a_model_of_the_package_has_no_code_and_its_published_copy_has_the_source(name, tmp_path):
    folder, copy, text = located(name), tmp_path / name, "Tom ist in Berlin 1997."
    assert not [*folder.glob("*.py")] and "auto_map" not in json.loads((folder / "config.json").read_text())
    copy_with_code(folder, copy)
    code = {path.name: path.read_bytes() for path in copy.glob("*.py")}
    source = Path(modeling_reluformer.__file__).parent
    assert code == {file: (source / file).read_bytes() for file in code}
    saved = tmp_path / "saved"
    AutoModelForSeq2SeqLM.from_pretrained(folder).save_pretrained(saved)
    assert code.keys() == {path.name for path in saved.glob("*.py")}
    settings = {each: json.loads((each / "config.json").read_text()) for each in (folder, copy, saved)}
    assert settings[copy] == settings[folder] | {"auto_map": settings[saved]["auto_map"]}
    others = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} - {Path("config.json")}
    assert all((copy / each).read_bytes() == (folder / each).read_bytes() for each in others)

    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    for trusted in (False, True):  # of the package's own code, whatever a caller trusts
        model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=trusted)
        assert type(model).__module__.startswith("reluformer.")
    (tmp_path / "alone").mkdir()
    assert run_without_package(TRANSLATE, str(copy), text, folder=tmp_path / "alone") == model.generate(**ids).tolist()
    with pytest.raises(UserError, match="is in use; give a new folder"):
        copy_with_code(folder, copy)


# What is refused


def put_nan(run):
    tensors = load_file(run / WEIGHTS)
    tensors["model.encoder.layers.0.fc1.weight"].view(-1)[3:4].fill_(math.nan)
    save_file(tensors, run / WEIGHTS, metadata={"format": "pt"})


REFUSALS = {
    "the run is not finished": lambda run: (run / "README.md").unlink(),
    "the training diverged": lambda run: change(run / "training_record.json", diverged={"reason": "loss is NaN"}),
    "no score of it is known": lambda run: write_json(run / "evaluation.test.json", {"bleu": float("nan")}),
    "holds NaN or infinity": put_nan,
    "its weights are pickled": lambda run: (run / WEIGHTS).unlink(),
    "its tokenizer cannot be loaded": lambda run: (run / "tokenizer.json").write_text("{"),
    "lacks the model's code or its auto_map": lambda run: change(run / "config.json", auto_map=None),
    "lacks the model's code": lambda run: (run / "modeling_reluformer.py").unlink(),
    "tokenizer_config.json: holds a path": lambda run: change(run / "tokenizer_config.json", origin=str(run)),
    "generation_config.json: holds a path": lambda run: change(
        run / "generation_config.json", url="https://me:geheim@host/x"
    ),
}


@pytest.mark.parametrize("says", REFUSALS)
def test_what_is_not_to_be_published_is_one_line(run, capsys, says):
    REFUSALS[says](run)
    assert cli.main(["publish", "--run", str(run), "--repo-id", REPO, "--dry-run"]) == 2
    output = capsys.readouterr()
    (line,) = [line for line in output.err.splitlines() if line.startswith("reluformer: error: ")]
    assert says in line and str(run) in line and "geheim" not in line


def test_a_slash_alone_is_no_path_of_this_machine(run):
    change(run / "tokenizer_config.json", word_separator="/")
    publish(run, REPO, dry_run=True)


@pytest.mark.parametrize("repo_id", ["little", "a/b/c", "me/lit tle", ""])
def test_a_bad_repository_is_refused_before_anything_else(repo_id, capsys):
    assert cli.main(["publish", "--run", "nowhere", "--repo-id", repo_id]) == 2
    assert capsys.readouterr().err.startswith("reluformer: error: --repo-id: ")


def test_what_the_hub_refuses_is_one_line(run, hub, monkeypatch):
    response = SimpleNamespace(headers={}, request=None)  # what the error reads of it, whichever client the library has
    hub.failure = HfHubHTTPError("403 Forbidden: no write access", response=response)
    with pytest.raises(UserError, match=r"me/little: 403 Forbidden: no write access; then run the same command again"):
        publish(run, REPO)
    hub.failure = HTTPError("[Errno -2] Name or service not known")  # there is no connection
    with pytest.raises(UserError, match=r"me/little: .* not known; then run the same command again"):
        publish(run, REPO)
    with pytest.raises(UserError, match="exists and is public"):
        publish(run, REPO, private=True)
    assert hub.repositories[REPO] == {}
    monkeypatch.setattr("reluformer.hub_cards.publishing.get_token", lambda: None)
    with pytest.raises(UserError, match=r"no token for the Hub: .*hf auth login"):
        publish(run, REPO)
