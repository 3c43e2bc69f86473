import json
from pathlib import Path

import pytest


@pytest.fixture
def adaptation(program, monkeypatch, tmp_path):
    module = program("text.adaptation")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(module, "TABLE", tmp_path / "benchmarks" / "ADAPTATION.md")
    (tmp_path / "benchmarks").mkdir()
    return module


def write_result(folder: Path, name: str, curve: dict[int, float]) -> None:
    training = {
        "command": f"reluformer train --name {name}",
        "date": "2026-01-02T00:00:00+00:00",
        "git_commit": "0123456789abcdef",
        "git_dirty": False,
        "seed": 1,
        "target_tokens_per_update": 4096.4,
    }
    history = [{"step": step, "eval_tokenized_lowercase_bleu": bleu} for step, bleu in curve.items()]
    scores = {"evaluations": {"test": {"moses_lowercase_bleu": 35.9}}, "log_history": history}
    result = {"training": training, "recipe": {"evaluation": {"at_most": 100}}, **scores}
    (folder / f"{name}.json").write_text(json.dumps(result))


def test_says_when_each_share_of_the_score_is_reached(adaptation, tmp_path, capsys):
    write_result(tmp_path, "swapped", {0: 14.0, 100: 28.0, 200: 19.0, 300: 29.0, 400: 29.9})
    write_result(tmp_path, "control", {0: 30.0, 100: 31.0, 200: 32.0, 300: 32.5, 400: 33.0})
    assert adaptation.main(["swapped", "control"]) == 0
    text = adaptation.TABLE.read_text()
    assert "| 100 | 28.00 | 31.00 |" in text and "The softmax model itself: 30.00" in text
    assert "- 90% of that (27.00): at update 100;" in text
    assert "- 95% of that (28.50): at update 300;" in text
    assert "- 100% of that (30.00): not within 400 updates." in text
    assert "on the first 100 pairs of the validation split" in text, "what was translated during training"
    assert "the last weights: 35.90 Moses-tokenised" in text and "commit 0123456789ab" in text


def test_a_run_without_a_score_at_the_start_is_refused(adaptation, tmp_path, capsys):
    write_result(tmp_path, "swapped", {100: 28.0})
    write_result(tmp_path, "control", {0: 30.0})
    assert adaptation.main(["swapped", "control"]) == 2
    assert "no score at update 0; train with --training.eval_on_start true" in capsys.readouterr().err
    assert adaptation.main(["missing", "control"]) == 2
