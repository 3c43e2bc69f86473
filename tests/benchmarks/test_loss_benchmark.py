"""The program that times the loss without logits."""

import json

import pytest


def test_it_writes_and_prints_what_the_loss_gains(program, tmp_path, capsys):
    output = tmp_path / "loss.json"
    assert program("speed.loss").main(["--quick", "--output", str(output)]) == 0
    cells = json.loads(output.read_text())["cells"]
    assert [(cell["dtype"], cell["vocabulary"]) for cell in cells] == [("float32", 50), ("bfloat16", 50)]
    printed = capsys.readouterr().out
    for cell in cells:
        assert f"{cell['dtype']}, width 8, 50 pieces: {cell['speedup']['median']:.2f} times as fast" in printed


def test_a_loss_that_differs_is_not_timed(program, monkeypatch, tmp_path):
    loss = program("speed.loss")
    right = loss.vocabulary_loss
    monkeypatch.setattr(loss, "vocabulary_loss", lambda *inputs, **options: 2 * right(*inputs, **options))
    with pytest.raises(RuntimeError, match="the two losses differ in loss"):
        loss.main(["--quick", "--output", str(tmp_path / "loss.json")])
