"""Cards: every figure comes from a file of the run, and the metadata can be read back."""

import json
import re

import pytest
import yaml
from huggingface_hub import ModelCard

from reluformer import ReLUFormerConfig
from reluformer.hub_cards.card import render_card, write_card
from reluformer.hub_cards.formula import attention_formula, regularization_formula
from reluformer.training.errors import UserError
from reluformer.training.metrics import score_translations
from reluformer.training.records import run_record, write_json

TINY = {"vocab_size": 1234, "d_model": 16, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 2}
TINY |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 77}
MARKDOWN_LEFTOVERS = re.compile(r"\bNone\b|\{\{|\{%|Undefined")


@pytest.fixture
def run(tmp_path):
    """A run folder as training writes it."""
    folder = tmp_path / "little_run"
    ReLUFormerConfig(attention_gamma=5.5, regularization_weight=0.03, **TINY).save_pretrained(folder)
    recipe = {
        "name": "little",
        "description": "A small one: for a test.",
        "data": {
            "source_language": "de",
            "target_language": "no",
            "max_length": 99,
            "train": {"source": "/home/somebody/corpus/train.de.gz", "target": "/home/somebody/corpus/train.no.gz"},
            "dataset": None,
            "demo": None,
        },
        "training": {"learning_rate": 0.005, "lr_scheduler_type": "inverse_sqrt", "warmup_steps": 2000},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    record = run_record("reluformer train --config little.yaml", "little", 17)
    record |= {"updates": 2400, "seconds": 90, "target_tokens_per_update": 4096.4, "target_tokens_per_second": 9876.5}
    record |= {"parameters": 54321, "averaged_checkpoints": ["checkpoint-2300", "checkpoint-2400"]}
    write_json(folder / "training_record.json", record)
    reports = [{"name": "train files", "read": 1010, "kept": 1000, "skipped": {"empty line": 10}, "first": {}}]
    write_json(folder / "corpus_report.json", reports)
    scores = score_translations(["the cat sat on a mat"], ["The cat sat on a mat"])
    evaluation = {"split": "test", "dataset": "little test", **scores, "decoding": {"num_beams": 5}}
    write_json(folder / "evaluation.test.json", evaluation)
    history = [
        {"step": 100, "attention_entropy": 9.9, "dead_row_fraction": 0.9},
        {"step": 2400, "attention_entropy": 1.234, "dead_row_fraction": 0.05},
        {"step": 2400, "eval_dead_row_fraction": 0.0123},
    ]
    write_json(folder / "trainer_state.json", {"log_history": history})
    return folder


def test_metadata_can_be_read_back(run):
    data = ModelCard.load(write_card(run)).data
    assert data.language == ["de", "no"]  # "no" is a boolean to careless YAML
    assert data.library_name == "transformers" and data.pipeline_tag == "translation"
    assert data.license is None
    results = {result.metric_name: result for result in data.eval_results}
    evaluation = json.loads((run / "evaluation.test.json").read_text())
    bleu = results["BLEU (sacreBLEU)"]
    assert bleu.metric_value == round(evaluation["bleu"], 2)
    assert bleu.metric_args == {"signature": evaluation["bleu_signature"]}
    assert (bleu.dataset_name, bleu.dataset_split) == ("little test", "test")
    assert results["BLEU, lower-cased"].metric_value == 100.0
    assert results["Exact match (%)"].metric_value == 0.0
    assert "BLEU, lower-cased, Moses-tokenised" not in results


def test_text_holds_what_was_measured(run):
    text = render_card(run)
    for figure in ("2,400", "4,096", "9,876", "1.5 min", "54,321", "checkpoint-2300", "1,010", "10 empty line", "17"):
        assert figure in text, figure
    assert "`γ` is 5.5" in text and r"\sqrt{n_i / 2}" in text and r"0.03 \, \mathcal{L}_{reg}" in text
    assert "reluformer train --config little.yaml" in text
    assert "A small one: for a test." in text
    assert "3 encoder and 2 decoder layers" in text and "At most 77 tokens" in text
    assert not MARKDOWN_LEFTOVERS.search(text)


def test_attention_figures_are_the_last_ones_and_validation_goes_first(run):
    text = render_card(run)
    assert "| mean row entropy H (nats) | 1.234 | training, with dropout, update 2,400 |" in text
    assert "| dead rows (no positive weight) | 1.23% | validation, update 2,400 |" in text
    assert "mean row sum" not in text


def test_paths_of_the_machine_are_left_out(run):
    text = render_card(run)
    assert "/home/somebody" not in text and str(run) not in text
    assert "`train.de.gz`" in text


def test_tables_are_whole(run):
    """Each row of a table has the cells of its head; a signature's own bars are escaped."""
    table = []
    for line in [*render_card(run).split("---\n", 2)[2].splitlines(), ""]:
        if line.startswith("|"):
            table.append(len(re.findall(r"(?<!\\)\|", line)))
        elif table:
            assert len(set(table)) == 1 and len(table) > 2
            table = []


def test_what_was_not_measured_is_left_out(tmp_path):
    ReLUFormerConfig.from_preset("vanilla", **TINY).save_pretrained(tmp_path)
    text = render_card(tmp_path)
    assert not MARKDOWN_LEFTOVERS.search(text)
    for absent in (
        "## Scores",
        "model-index",
        "dead rows",
        "Command",
        "Measured:",
        "Moses",
        "L}_{reg}",
        "language:",
        ".png",
    ):
        assert absent not in text, absent
    assert "softmax" in text
    ModelCard(text)


def test_scores_that_are_not_numbers_are_left_out(run):
    evaluation = json.loads((run / "evaluation.test.json").read_text())
    write_json(run / "evaluation.test.json", {**evaluation, "bleu": float("nan")})
    assert "BLEU (sacreBLEU)" not in render_card(run)


def test_moses_lower_casing_pictures_licence_and_place_are_named(run):
    write_json(run / "tokenizer_config.json", {"moses": {"source_language": "de", "target_language": "nb"}})
    normalizer = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}
    write_json(run / "tokenizer.json", {"normalizer": normalizer})
    (run / "training_curve.png").write_bytes(b"")
    text = render_card(run, license="cc-by-2.0", repo_id="somebody/little")
    assert "tokenised by Moses" in text and "`nb`" in text
    assert "lower-cases" in text
    assert "(training_curve.png)" in text and "(attention_map.png)" not in text
    assert 'from_pretrained("somebody/little")' in text
    assert ModelCard(text).data.license == "cc-by-2.0"


def test_a_data_set_of_the_hub_is_linked(run):
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["data"] |= {"train": None, "dataset": {"path": "wmt14", "name": "de-en", "revision": "abc"}}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    data = ModelCard(render_card(run)).data
    assert data.datasets == ["wmt14"]
    assert (data.eval_results[0].dataset_type, data.eval_results[0].dataset_config) == ("wmt14", "de-en")


@pytest.mark.parametrize("preset", ["reluformer", "vanilla", "sparsemax", "entmax15", "rela", "relu_vit"])
def test_every_preset_has_a_formula(preset):
    config = ReLUFormerConfig.from_preset(preset, **TINY)
    formula = attention_formula(config)
    assert formula.count("{") == formula.count("}")
    assert ("gamma" in formula) == (preset == "reluformer")
    assert (regularization_formula(config) is None) == (preset != "reluformer")


@pytest.mark.parametrize("activation", ["relu2", "relu6", "gelu", "softplus", "identity", "sigmoid"])
def test_every_activation_has_a_formula(activation):
    config = ReLUFormerConfig(attention_activation=activation, attention_scaling="length", attention_alpha=0.5, **TINY)
    assert "n_i^{-0.5}" in attention_formula(config)


def test_folders_without_such_a_model_are_refused(tmp_path, run):
    with pytest.raises(UserError, match=r"holds no config\.json"):
        render_card(tmp_path)
    write_json(tmp_path / "config.json", {"model_type": "marian"})
    with pytest.raises(UserError, match="'marian'"):
        render_card(tmp_path)
    (run / "trainer_state.json").write_text("{")
    with pytest.raises(UserError, match=r"trainer_state\.json: is damaged"):
        render_card(run)
