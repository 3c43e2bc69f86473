"""What `import reluformer` offers, loaded when it is asked for."""

import runpy

import pytest

import reluformer


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
