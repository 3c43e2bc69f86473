"""What `import reluformer` offers, loaded when it is asked for: the help of the command waits for none of it."""

import runpy

import pytest

import reluformer

from .modeling_reluformer.test_registration import USE_MODELS, run


def test_every_public_name_can_be_imported():
    for name in reluformer.__all__:
        assert getattr(reluformer, name).__name__ == name
    assert {*reluformer.__all__} <= {*dir(reluformer)}
    with pytest.raises(AttributeError, match="module 'reluformer' has no attribute 'ReLUFormer'"):
        reluformer.ReLUFormer  # noqa: B018


def test_the_package_is_its_own_command(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["reluformer", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("reluformer", run_name="__main__")
    assert not ended.value.code and reluformer.__version__ in capsys.readouterr().out
    assert "main" in runpy.run_module("reluformer.__main__", run_name="imported")  # which runs nothing


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_of_the_command_import_neither_torch_nor_transformers(option):
    program = f"""
import runpy, sys
sys.orig_argv[1:] = ["-m", "reluformer", {option!r}]
sys.argv[1:] = [{option!r}]
try:
    runpy.run_module("reluformer", run_name="__main__")
except SystemExit:
    print(*sys.modules)
"""
    loaded = run(program).split()
    assert "reluformer" in loaded and not {"torch", "transformers", "numpy"} & {*loaded}


def test_a_verb_registers_the_models(tmp_path):
    program = f"""
import sys
sys.argv[0] = "/usr/bin/reluformer"
from reluformer.commands.main import main
assert "transformers" not in sys.modules
main(["card", "--model", {str(tmp_path / "missing")!r}])
{USE_MODELS}
"""
    run(program)
