"""A run is published by the command and used where the package is not installed, through the loopback Hub."""

from __future__ import annotations

import json
import sysconfig
import textwrap
import venv
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
import yaml
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from reluformer.commands import main as cli
from reluformer.commands.train import train_and_document as train
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.hub_cards.hub_faults import with_retries
from reluformer.hub_cards.publishing import publish as publish_run

from ..training.run.kill_harness import RECIPE
from .conftest import HubOfTest
from .hub_routes import READ_TOKEN, WRITE_TOKEN
from .loopback_hub import COMMIT, CREATE, LARGE_OBJECT, PREUPLOAD, Cut

REPO, TRAINED = "tester/little", "workshop/trained"
SENTENCES = ["zwölf", "neunhundertneun und sieben", "elf elf"]
WEIGHTS = "model.safetensors"

# In an environment of its own: first what the card says, then more.
USE = """
    import json, re, sys

    try:
        import reluformer
    except ModuleNotFoundError:
        pass
    else:
        raise SystemExit(f"the package is there: {reluformer.__file__}")
    import torch
    from huggingface_hub import ModelCard
    from transformers import AutoModelForSeq2SeqLM

    published, trained, *sentences = sys.argv[1:]
    examples = re.findall("```python\\n(.*?)```", ModelCard.load(published).text, re.DOTALL)
    (without_package,) = [example for example in examples if "trust_remote_code=True" in example]
    said = {}
    exec(without_package, said)
    model, tokenizer = said["model"], said["tokenizer"]
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    tokens = model.generate(**batch, num_beams=2, max_new_tokens=12)
    other = AutoModelForSeq2SeqLM.from_pretrained(trained, trust_remote_code=True)
    ids = torch.arange(4, 12).reshape(2, 4)
    print(json.dumps({
        "modules": [type(model).__module__, type(other).__module__],
        "tokens": tokens.tolist(),
        "texts": tokenizer.batch_decode(tokens, skip_special_tokens=True),
        "logits": model(**batch, decoder_input_ids=batch["input_ids"]).logits.flatten()[:500].tolist(),
        "other": other(input_ids=ids, decoder_input_ids=ids).logits.flatten().tolist(),
    }))
"""
TRAIN = """
    import sys

    sys.path.insert(0, sys.argv[1])
    from tiny_run import collate, tiny_model, tiny_pairs
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

    arguments = Seq2SeqTrainingArguments(
        sys.argv[2], push_to_hub=True, hub_model_id=sys.argv[3], hub_private_repo=True, max_steps=2, save_steps=1,
        learning_rate=0.01, per_device_train_batch_size=4, use_cpu=True, report_to="none", disable_tqdm=True,
    )
    trainer = Seq2SeqTrainer(tiny_model(), arguments, data_collator=collate, train_dataset=tiny_pairs())
    trainer.train()
    trainer.push_to_hub(commit_message="all of it")
"""


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as training leaves it, evaluated."""
    folder = tmp_path_factory.mktemp("runs")
    training = {**RECIPE["training"], "max_steps": 4, "eval_strategy": "no", "output_dir": str(folder / "little")}
    recipe = {**RECIPE, "name": "little", "training": training}
    (folder / "little.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return train(load_recipe(folder / "little.yaml"))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubOfTest]:
    with HubOfTest(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture(scope="module")
def published(hub: HubOfTest, run_folder: Path) -> CompletedProcess:
    """What `reluformer publish` said."""
    result = hub.run(*publish_command(run_folder), "--private")
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def trained(hub: HubOfTest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a `Seq2SeqTrainer` that has pushed to the Hub as TRAINED."""
    folder = tmp_path_factory.mktemp("trained")
    helpers = Path(__file__).parents[1] / "training"
    result = hub.run("-c", textwrap.dedent(TRAIN), str(helpers), str(folder), TRAINED)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Python of a fresh virtual environment that sees the installed libraries, but not this package.

    The line of a .pth file adds a folder without reading that folder's own .pth files, so that an editable installation
    is not seen; one that lies there as a folder is kept out by name.
    """
    folder = tmp_path_factory.mktemp("bare") / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(Path(torch.__file__).parents[1])}
    (site / "libraries.pth").write_text("\n".join(sorted(libraries)), encoding="utf-8")
    if any((Path(library) / "reluformer").is_dir() for library in libraries):
        (site / "sitecustomize.py").write_text("import sys\nsys.modules['reluformer'] = None\n", encoding="utf-8")
    return str(Path(sysconfig.get_path("scripts", "venv", vars=paths)) / "python")


def publish_command(run_folder: Path, repo: str = REPO) -> list[str]:
    return ["-m", "reluformer", "publish", "--run", str(run_folder), "--repo-id", repo]


def assert_complete(hub: HubOfTest, run_folder: Path) -> None:
    """One commit, and in it the run's own files, byte for byte."""
    assert len(hub.commits(REPO)) == 2
    files = hub.repository(REPO).files()
    assert {WEIGHTS, "config.json", "tokenizer.json", "README.md", "modeling_reluformer.py"} <= files.keys()
    for name in files.keys() - {"README.md", ".gitattributes"}:
        assert files[name] == (run_folder / name).read_bytes(), name
    assert f'from_pretrained("{REPO}"' in files["README.md"].decode()


def test_the_run_is_there_in_one_commit(hub, published, run_folder):
    assert_complete(hub, run_folder)
    assert hub.repository(REPO).private
    assert f"{hub.endpoint}/{REPO}/commit/{hub.repository(REPO).branches['main']}" in published.stdout
    assert WEIGHTS in published.stdout and "Traceback" not in published.stderr


def test_both_models_are_used_where_the_package_is_not(hub, published, trained, run_folder, bare_python):
    """The translation of the downloaded model is that of the run; and a `Seq2SeqTrainer`'s model loads the same way."""
    arguments = [REPO, TRAINED, *SENTENCES]
    result = hub.run("-c", textwrap.dedent(USE), *arguments, python=bare_python, HF_HOME=str(hub.home / "elsewhere"))
    assert result.returncode == 0, result.stderr[-3000:]
    assert "custom code?" not in result.stdout, "it asks a person before it goes on"
    used = json.loads(result.stdout.splitlines()[-1])
    assert all(module.startswith("transformers_modules.") for module in used["modules"])
    assert hub.count("GET", "/objects/") >= 2, "the weights came from somewhere else"

    tokenizer = AutoTokenizer.from_pretrained(run_folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(run_folder)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    tokens = model.generate(**batch, num_beams=2, max_new_tokens=12)
    assert used["tokens"] == tokens.tolist()
    assert used["texts"] == tokenizer.batch_decode(tokens, skip_special_tokens=True)
    logits = model(**batch, decoder_input_ids=batch["input_ids"]).logits.flatten()[:500]
    torch.testing.assert_close(torch.tensor(used["logits"]), logits.detach())
    ids = torch.arange(4, 12).reshape(2, 4)
    other = AutoModelForSeq2SeqLM.from_pretrained(trained)(input_ids=ids, decoder_input_ids=ids).logits.flatten()
    torch.testing.assert_close(torch.tensor(used["other"]), other.detach())


def test_the_trainer_of_transformers_pushes(hub, trained):
    """During training, and at its end; not its checkpoints."""
    files = hub.repository(TRAINED).files()
    assert hub.commits(TRAINED)[-1] == "all of it" and len(hub.commits(TRAINED)) > 2
    assert hub.repository(TRAINED).private
    assert files[WEIGHTS] == (trained / WEIGHTS).read_bytes() and "modeling_reluformer.py" in files
    assert not any(name.startswith("checkpoint-") for name in files)


def test_a_token_that_may_only_read_is_one_line(hub, run_folder):
    result = hub.run(*publish_command(run_folder, "tester/another"), HF_TOKEN=READ_TOKEN)
    assert result.returncode == 2
    assert ("models", "tester/another") not in hub.repositories
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("reluformer: error: tester/another: ") and "HTTP 403" in result.stderr


# Failures, with the command in this process


@pytest.fixture
def publish(loopback_hub, hub_client, run_folder, monkeypatch, capsys):
    """Runs the command; returns its exit status, the lines of its errors, and the seconds that it would have waited."""
    waits: list[float] = []
    monkeypatch.setitem(with_retries.__kwdefaults__, "sleep", waits.append)
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)

    def run() -> tuple[int, list[str], list[float]]:
        capsys.readouterr()
        status = cli.main(publish_command(run_folder)[2:])
        errors = capsys.readouterr().err.splitlines()
        return status, [line for line in errors if line.startswith("reluformer:")], waits

    return run


def test_publishing_again_makes_no_commit(loopback_hub, publish, run_folder):
    """And sends no file."""
    assert publish() == (0, [], [])
    posted = loopback_hub.count("POST", COMMIT), loopback_hub.count("PUT", LARGE_OBJECT)
    assert publish() == (0, [], [])
    assert (loopback_hub.count("POST", COMMIT), loopback_hub.count("PUT", LARGE_OBJECT)) == posted
    assert_complete(loopback_hub, run_folder)


def test_what_is_not_ours_is_left_alone_and_named(loopback_hub, publish, run_folder, hub_client):
    """The file that the Hub itself puts into every repository is nobody's."""
    assert publish() == (0, [], [])
    hub_client.upload_file(path_or_fileobj=b"mine", path_in_repo="notes.txt", repo_id=REPO)
    told = []
    publish_run(run_folder, REPO, api=hub_client, tell=told.append)
    assert [line for line in told if line.startswith("left alone")] == ["left alone in the repository: notes.txt"]
    assert hub_client.file_exists(REPO, "notes.txt")


@pytest.mark.parametrize(
    ("failure", "pattern", "advice"),
    [
        (401, CREATE, "the token is not valid"),
        (401, PREUPLOAD, "the token is not valid"),
        (403, PREUPLOAD, "the token may not write there"),
        (409, COMMIT, "run the same command again"),
    ],
)
def test_refusals_are_one_line_and_no_commit(loopback_hub, publish, failure, pattern, advice):
    loopback_hub.fail_next("POST", pattern, failure)
    status, errors, waits = publish()
    assert (status, len(errors), waits) == (2, 1, [])
    assert errors[0].startswith(f"reluformer: error: {REPO}: ") and advice in errors[0] and f"{failure}" in errors[0]
    assert all(len(repository.commits) == 1 for repository in loopback_hub.repositories.values())
    assert loopback_hub.count("POST", pattern) == 1


@pytest.mark.parametrize(
    ("method", "pattern", "failure", "times", "expected"),
    [
        ("POST", CREATE, 429, 1, [7]),
        ("POST", COMMIT, 429, 1, [7]),
        ("POST", PREUPLOAD, 429, 1, []),  # mended by huggingface_hub
        ("POST", CREATE, 500, 2, [1, 2]),
        ("POST", COMMIT, 500, 2, [1, 2]),
        ("PUT", LARGE_OBJECT, 500, 2, []),
        ("PUT", LARGE_OBJECT, Cut.UPLOAD, 1, None),  # by whom depends on the release of huggingface_hub
        ("POST", COMMIT, Cut.UPLOAD, 1, [1]),
        ("POST", COMMIT, Cut.ANSWER, 1, [1]),  # the commit was made, which is found out
    ],
)
def test_failures_that_pass_end_in_one_commit(
    loopback_hub, publish, run_folder, method, pattern, failure, times, expected
):
    loopback_hub.fail_next(method, pattern, failure, times, retry_after=7 if failure == 429 else None)
    status, errors, waits = publish()
    assert (status, errors) == (0, []) and expected in (waits, None)
    assert_complete(loopback_hub, run_folder)


def test_a_failure_that_stays_is_one_line(loopback_hub, publish):
    loopback_hub.fail_next("POST", COMMIT, 500, times=6)
    status, errors, waits = publish()
    assert (status, len(errors)) == (2, 1) and "gave up after 6 attempts" in errors[0] and len(waits) == 5
    assert loopback_hub.commits(REPO) == ["initial commit"]
    assert publish()[0] == 0 and len(loopback_hub.commits(REPO)) == 2
