"""The code of docs/exporting.md, in a folder with the models that it names."""

import shutil

import pytest

from ..docs.pages import blocks_of

BLOCKS = [block for block in blocks_of("docs/exporting.md") if block.language == "python"]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_the_code_runs(block, trained, exported, graphs_at_hand, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, "runs/demo")
    if "export(" not in block.code:
        shutil.copytree(exported, "onnx/demo")
    exec(compile(block.code, str(block), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


def test_there_is_code():
    assert len(BLOCKS) == 2
