"""The package without its extras: the model and its translations, and one line for every other verb."""

import gzip
import subprocess
import sys
from functools import cache
from importlib.metadata import distribution, packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from reluformer.commands import main as cli

from ..conftest import demo_tokenizer, tiny_model

# With None in their place, `import` says that they are missing.
WITHOUT = """
import sys
sys.argv = ["reluformer", *{arguments!r}]
sys.modules |= dict.fromkeys({names!r})
from reluformer.commands.main import main
sys.exit(main())
"""


def names_of_the_extras() -> list[str]:
    """What is imported from the packages that the package alone does not bring, directly or through others."""
    brought, left = {"setuptools"}, ["reluformer"]  # setuptools: of a new environment
    while left:
        name = canonicalize_name(left.pop())
        if name not in brought and name in installed():
            brought.add(name)
            required = map(Requirement, distribution(name).requires or ())
            left += [each.name for each in required if each.marker is None or each.marker.evaluate({"extra": ""})]
    return [
        name
        for name, packages in packages_distributions().items()
        if name.isidentifier() and not brought & set(map(canonicalize_name, packages))
    ]


@cache
def installed() -> set[str]:
    return {canonicalize_name(package) for packages in packages_distributions().values() for package in packages}


def without_extras(*arguments: str, **options: str) -> subprocess.CompletedProcess:
    program = WITHOUT.format(names=names_of_the_extras(), arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, **options)


def test_the_light_install_translates(tmp_path):
    assert {"datasets", "jsonargparse", "matplotlib", "sacrebleu", "onnxruntime", "pyarrow"} <= {*names_of_the_extras()}
    tokenizer = demo_tokenizer(50)
    tiny_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for options in ((), ("--attn_implementation", "eager")):  # without Transformers, and with it
        done = without_extras("translate", "--model", str(tmp_path), "eins", *options)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\n") == 1
        assert "Loading weights" not in done.stderr  # a pipe is no place for a bar
    (tmp_path / "two.txt").write_text("eins\nzwei\n", encoding="utf-8")
    (tmp_path / "two.txt.gz").write_bytes(gzip.compress(b"eins\nzwei\n"))
    for given in ("two.txt", "two.txt.gz", "-"):
        file = given if given == "-" else str(tmp_path / given)
        done = without_extras("translate", "--model", str(tmp_path), "--input", file, input="eins\nzwei\n")
        assert (done.returncode, done.stdout.count("\n")) == (0, 2), done.stderr


@pytest.mark.parametrize(
    ("verb", "package", "extra"), [("train", "jsonargparse", "train"), ("space", "matplotlib", "space")]
)
def test_a_verb_says_which_extra_it_needs(verb, package, extra, monkeypatch, capsys):
    def needs(arguments):
        raise ModuleNotFoundError(f"No module named '{package}'", name=f"{package}.inner")

    monkeypatch.setattr(f"reluformer.commands.{verb}.run", needs)
    assert cli.main([verb]) == 2
    assert capsys.readouterr().err == (
        f"reluformer: error: {verb}: needs the package '{package}', which is not installed; pip install "
        f"'reluformer[{extra}]' "
        "brings what the command needs\n"
    )


def test_a_module_of_ours_that_is_missing_keeps_its_traceback(monkeypatch):
    def broken(arguments):
        raise ModuleNotFoundError("No module named 'reluformer.gone'", name="reluformer.gone")

    monkeypatch.setattr("reluformer.commands.card.run", broken)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["card"])
