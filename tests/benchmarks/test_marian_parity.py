"""The parity table: what it measures, and that it fails where a model is out of bounds."""

import json

import pytest
import torch

from ..conftest import skip_beams_of_two_vocabularies


@pytest.fixture
def marian_parity(program):
    return program("text.marian_parity")


@pytest.mark.parametrize("random_one", ["one vocabulary, untied", "two vocabularies, untied"])
def test_the_table_and_the_file_hold_every_model(random_one, marian_parity, tmp_path, monkeypatch, capsys):
    if "decoder_vocab_size" in marian_parity.SHAPES[random_one]:
        skip_beams_of_two_vocabularies()
    monkeypatch.setattr(marian_parity, "SEEDS", (0,))
    marian_parity.random_marian(marian_parity.SMALL, 5).save_pretrained(tmp_path / "mine")
    output = tmp_path / "parity.json"
    arguments = ["--only", random_one, str(tmp_path / "mine"), "--output", str(output)]
    assert marian_parity.main(arguments) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    assert [row["model"] for row in result["models"]] == [random_one, str(tmp_path / "mine")]
    assert all(row["largest_logit_difference"] <= 1e-5 and row["beams_identical"] for row in result["models"])
    assert all(row["different_sequences_in_beams"] > 5 for row in result["models"])
    assert "git_commit" in result
    assert capsys.readouterr().out.count("| identical |") == 2


def test_a_model_that_differs_is_status_1(marian_parity, tmp_path, monkeypatch, capsys):
    def convert_badly(source, target):
        conversion = original(source, target)
        with torch.no_grad():
            conversion.model.final_logits_bias[0, 7] += 9.0
        conversion.model.save_pretrained(target)

    original = marian_parity.convert
    monkeypatch.setattr(marian_parity, "convert", convert_badly)
    monkeypatch.setattr(marian_parity, "SEEDS", (0,))
    arguments = ["--only", "one vocabulary, tied", "--output", str(tmp_path / "parity.json")]
    assert marian_parity.main(arguments) == 1
    assert "DIFFERENT" in capsys.readouterr().out
    assert marian_parity.main([*arguments, str(tmp_path / "nowhere")]) == 2
