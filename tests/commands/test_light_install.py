"""The package without its extras: the model and its translations, and one line for every other verb."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from reluformer.commands import main as cli

from ..conftest import demo_tokenizer, tiny_model

ROOT = Path(__file__).parents[2]
# With None in their place, `import` says that they are missing.
WITHOUT = """
import sys
sys.argv = ["reluformer", *{arguments!r}]
sys.modules |= dict.fromkeys({names!r})
from reluformer.commands.main import main
sys.exit(main())
"""
IN_PYTHON = """
import sys
sys.modules |= dict.fromkeys({names!r})
import torch
from reluformer import relu_attention
from transformers import AutoModelForSeq2SeqLM
model = AutoModelForSeq2SeqLM.from_pretrained({folder!r})
print(tuple(model.generate(torch.ones(1, 3, dtype=torch.long), max_new_tokens=3, min_new_tokens=3).shape), end="|")
query = torch.randn(1, 2, 3, 4)
print(tuple(relu_attention(query, query, query, row_scale=torch.ones(1, 1, 3)).shape))
"""
EVERY_VERB = """
import json, sys
sys.modules |= dict.fromkeys({names!r})
from reluformer.commands.main import main
print(json.dumps({{call[0]: main(call) for call in {calls!r}}}))
"""


def names_of_the_extras() -> list[str]:
    """What is imported from the packages that only extras require."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {canonicalize_name(Requirement(line).name) for line in project["dependencies"]}
    extras = {Requirement(line).name for lines in project["optional-dependencies"].values() for line in lines}
    # torch and Transformers themselves require these
    only = (
        {canonicalize_name(name) for name in extras}
        - required
        - {"reluformer", "pyyaml", "filelock", "jinja2", "setuptools"}
    )
    return [name for name, packages in packages_distributions().items() if only & set(map(canonicalize_name, packages))]


def without_extras(*arguments: str) -> subprocess.CompletedProcess:
    program = WITHOUT.format(names=names_of_the_extras(), arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_the_light_install_translates(tmp_path):
    assert {"datasets", "jsonargparse", "matplotlib", "sacrebleu", "onnxruntime"} & {*names_of_the_extras()}
    tokenizer = demo_tokenizer(50)
    tiny_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for options in ((), ("--attn_implementation", "eager")):  # without Transformers, and with it
        done = without_extras("translate", "--model", str(tmp_path), "eins", *options)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\n") == 1
        assert "Loading weights" not in done.stderr  # a pipe is no place for a bar


@pytest.mark.slow
def test_the_light_install_loads_generates_and_attends(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    program = IN_PYTHON.format(names=names_of_the_extras(), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("|") == ["(1, 4)", "(1, 2, 3, 4)\n"]


@pytest.mark.slow
def test_every_other_verb_works_or_is_refused_in_one_line(tmp_path):
    """With arguments that are right as far as they are read before the missing package is needed."""
    tokenizer = demo_tokenizer(50)
    tiny_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    recipe, folder = str(ROOT / "configuration" / "recipes" / "demo.yaml"), str(tmp_path)
    calls = {
        "init": ["--source", "a.de", "--target", "a.en"],
        "train": ["--config", recipe],
        "evaluate": ["--run", folder],
        "analyze": ["--model", folder, "--what", "entropy"],
        "convert": ["--from", folder, "--to", str(tmp_path / "converted"), "--attention", "softmax"],
        "card": ["--run", folder],
        "publish": ["--run", folder, "--repo_id", "someone/model"],
        "space": ["--model", folder],
        "export": ["--model", folder, "--output", str(tmp_path / "exported")],
        "kernel": ["--output", str(tmp_path / "kernel")],
    }
    assert {*calls, "translate"} == {*cli.VERBS}
    program = EVERY_VERB.format(names=names_of_the_extras(), calls=[[verb, *rest] for verb, rest in calls.items()])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    statuses = json.loads(done.stdout.splitlines()[-1])
    assert statuses.pop("kernel") == 0 and (tmp_path / "kernel" / "README.md").is_file()
    assert statuses.pop("convert") == 0 and (tmp_path / "converted" / "config.json").is_file()
    assert set(statuses.values()) == {2}
    lines = [line for line in done.stderr.splitlines() if line.startswith("reluformer: error: ")]
    assert len(lines) == len(statuses), done.stderr
    for verb, line in zip(statuses, lines, strict=True):
        extra = {"space": "space", "export": "onnx"}.get(verb, "train")
        assert line.startswith(f"reluformer: error: {verb}: needs the package '")
        assert f"which is not installed; pip install 'reluformer[{extra}]' brings what the command needs" in line


@pytest.mark.parametrize(
    ("verb", "package", "extra"), [("train", "jsonargparse", "train"), ("space", "matplotlib", "space")]
)
def test_a_verb_says_which_extra_it_needs(verb, package, extra, monkeypatch, capsys):
    def needs(arguments):
        raise ModuleNotFoundError(f"No module named '{package}'", name=f"{package}.inner")

    monkeypatch.setattr(f"reluformer.commands.{verb}.run", needs)
    assert cli.main([verb]) == 2
    assert capsys.readouterr().err == (
        f"reluformer: error: {verb}: needs the package '{package}', which is not installed; pip install 'reluformer[{extra}]' "
        "brings what the command needs\n"
    )


def test_a_module_of_ours_that_is_missing_keeps_its_traceback(monkeypatch):
    def broken(arguments):
        raise ModuleNotFoundError("No module named 'reluformer.gone'", name="reluformer.gone")

    monkeypatch.setattr("reluformer.commands.card.run", broken)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["card"])
