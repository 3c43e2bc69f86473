"""Beam search of the systems of Table 4: all of them, the same work, against the softmax model."""

import json

import pytest


def test_a_quick_run_times_every_system_of_table_4(program, tmp_path):
    pytest.importorskip("entmax", reason="two of the baselines need the optional package entmax")
    output = tmp_path / "generation.json"
    assert program("speed.generation").main(["--quick", "--output", str(output)]) == 0
    (cell,) = json.loads(output.read_text(encoding="utf-8"))["cells"]
    assert set(cell["against_vanilla"]) == {"ReLUFormer", "vanilla", "sparsemax", "entmax15", "rela"}
    assert cell["against_vanilla"]["vanilla"]["median"] == 1.0
    assert cell["batch"]["new_tokens"] == program("speed.end_to_end").GENERATION["quick"][1]


def test_rela_is_built_as_rela(program):
    models = program("speed.translation_models")
    config = models.build("rela", models.SHAPES["quick"], 0.0, 0).config
    assert (config.attention_scaling, config.attention_output_norm) == ("none", "gated_rms")
