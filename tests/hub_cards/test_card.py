"""Cards: every figure comes from a file of the run, and the metadata can be read back."""

import json
import re

import pytest
import yaml
from huggingface_hub import ModelCard, metadata_load
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

from reluformer import ReLUFormerConfig
from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError
from reluformer.hub_cards.card import render_card, write_card
from reluformer.hub_cards.formula import attention_formula, regularization_formula
from reluformer.modeling_reluformer.attention_reluformer import POINTWISE
from reluformer.training.run.records import write_json

from .documented_run import TINY, change, change_recipe, entropy_analysis, write_documented_run

MARKDOWN_LEFTOVERS = re.compile(r"\bNone\b|\{\{|\{%|Undefined")


@pytest.fixture
def run(tmp_path):
    return write_documented_run(tmp_path / "little_run")


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
    change(run / "training_record.json", command="reluformer train --config /home/somebody/little.yaml")
    change_recipe(run, tokenizer={"path": "/home/somebody/tokenizer"})
    text = render_card(run)
    assert "reluformer train --config …/little.yaml" in text and "| tokenizer taken from | `tokenizer` |" in text
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


# Its parts


def test_it_says_how_to_load_with_and_without_the_package(run):
    text = render_card(run, repo_id="me/little")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 3 and all('"me/little"' in example for example in examples)
    without = [example for example in examples if "reluformer" not in example]
    assert len(without) == 1 and without[0].count("trust_remote_code=True") == 2
    for example in examples:
        compile(example, "card", "exec")


def test_speeds_stand_with_the_machine_they_were_measured_on(run):
    text = render_card(run)
    assert re.search(r"\| training, all processes \| 9,87\d target tokens a second \| \S.* \|", text)
    assert "| translating `test`, beams 5 | 12.34 sentences a second | slow processor, 2 threads |" in text


def test_the_analysis_is_shown_by_kind_of_attention(run):
    text = render_card(run)
    assert "on 1,200 pairs of new.de, new.no, targets: given, teacher-forced, 2024-05-06:" in text
    assert "| all | 1.111 | 2.222 | 3.33% | 55.5% | 0.444 |" in text
    assert "| decoder to encoder | 0.667 | 2.222 | 3.33% | 77.7% | 0.444 |" in text
    assert "9.99" not in text


def test_an_analysis_of_another_attention_is_left_out(run):
    analysis = entropy_analysis(run)
    analysis["model"]["config"]["attention_gamma"] = 99.0
    write_json(run / "analysis" / "entropy.json", analysis)
    assert "1.111" not in render_card(run)


def test_limits_say_lengths_gamma_exchange_and_what_was_not_tested(run):
    limits = render_card(run).split("## Limits")[1].split("## Licence")[0]
    for words in ("77 tokens", "at most 99 tokens", "`γ` = 5.5", "softmax for ReLU", "seed 17", "nothing else"):
        assert words in limits, words
    (run / "evaluation.test.json").unlink()
    change_recipe(run, data={"packing": {"too_long": "skip"}})
    limits = render_card(run).split("## Limits")[1]
    assert "Not evaluated" in limits and "packed to documents of at most 99 tokens" in limits


def test_the_card_tells_adams_betas_where_the_recipe_leaves_the_librarys_defaults_out(run):
    assert "| Adam β1, β2 | 0.9, 0.999 |" in render_card(run)
    change_recipe(run, training={"adam_beta2": 0.98})
    assert "| Adam β1, β2 | 0.9, 0.98 |" in render_card(run)


FIGURES = {
    "updates": ("training_record.json", "| updates |"),
    "parameters": ("training_record.json", "| parameters |"),
    "seconds": ("training_record.json", "| wall time |"),
    "target_tokens_per_update": ("training_record.json", "| target tokens an update, mean |"),
    "target_tokens_per_second": ("training_record.json", "| training, all processes |"),
    "averaged_checkpoints": ("training_record.json", "| averaged checkpoints |"),
    "seed": ("training_record.json", "| seed |"),
    "command": ("training_record.json", "Command:"),
    "bleu": ("evaluation.test.json", "| BLEU (sacreBLEU) |"),
    "chrf": ("evaluation.test.json", "| chrF |"),
    "exact_match": ("evaluation.test.json", "| Exact match (%) |"),
    "sentences_per_second": ("evaluation.test.json", "| translating `test`"),
    "decoding": ("evaluation.test.json", "; decoding:"),
}


@pytest.mark.parametrize("figure", FIGURES)
def test_each_missing_figure_leaves_its_part_out(run, figure):
    file, part = FIGURES[figure]
    assert part in render_card(run)
    change(run / file, **{figure: None})
    text = render_card(run)
    assert part not in text and not MARKDOWN_LEFTOVERS.search(text)
    ModelCard(text)


@pytest.mark.parametrize("file", ["recipe.yaml", "training_record.json", "evaluation.test.json", "trainer_state.json"])
def test_each_missing_file_leaves_its_part_out(run, file):
    (run / file).unlink()
    text = render_card(run)
    assert not MARKDOWN_LEFTOVERS.search(text)
    test_tables_are_whole(run)
    ModelCard(text)


# Metadata


def test_the_model_index_is_what_huggingface_hub_makes_and_reads(run):
    """`metadata_load` and the two conversions are what the Hub's client checks without a network."""
    metadata = metadata_load(write_card(run))
    name, results = model_index_to_eval_results(metadata["model-index"])
    assert name == "little" and eval_results_to_model_index(name, results) == metadata["model-index"]
    assert {result.task_type for result in results} == {"translation"}
    assert yaml.safe_load(yaml.safe_dump(metadata)) == metadata


def test_the_hubs_own_validation_takes_it(run, loopback_hub, hub_client):
    """The request of `ModelCard.validate`, to the Hub of the tests."""
    ModelCard(render_card(run, license="cc-by-4.0")).validate()
    assert loopback_hub.statuses("POST", "/api/validate-yaml") == [200]


# Licence


def test_the_licence_is_kept_by_later_cards(run):
    assert "`reluformer publish … --license …`" in render_card(run)
    write_card(run, license="cc-by-4.0")
    assert ModelCard(render_card(run)).data.license == "cc-by-4.0"
    assert "The weights: `cc-by-4.0`." in render_card(run)
    assert ModelCard(render_card(run, license="mit")).data.license == "mit"


def test_a_damaged_card_is_named(run):
    (run / "README.md").write_text("---\nlicense: [\n---\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"README\.md: its metadata cannot be read"):
        render_card(run)


# The command


def test_the_command_writes_the_card_of_the_run(run, capsys):
    assert cli.main(["card", "--run", str(run), "--license", "mit", "--repo-id", "me/little"]) == 0
    assert capsys.readouterr().out.strip() == str(run / "README.md")
    text = (run / "README.md").read_text(encoding="utf-8")
    assert text == render_card(run, license="mit", repo_id="me/little")


def test_a_card_elsewhere_has_its_pictures_beside_it(run, tmp_path):
    (run / "attention_map.png").write_bytes(b"map")
    output = tmp_path / "docs" / "example.md"
    assert cli.main(["card", "--run", str(run), "--output", str(output)]) == 0
    assert "](example_files/attention_map.png)" in output.read_text(encoding="utf-8")
    assert (output.parent / "example_files" / "attention_map.png").read_bytes() == b"map"
    assert not (run / "README.md").exists()
    assert cli.main(["card", "--run", str(run), "--output", str(tmp_path)]) == 2


@pytest.mark.parametrize("preset", ["reluformer", "vanilla", "sparsemax", "entmax15", "rela", "relu_vit"])
def test_every_preset_has_a_formula_and_only_one_is_called_a_reluformer(preset, tmp_path):
    config = ReLUFormerConfig.from_preset(preset, **TINY)
    config.save_pretrained(tmp_path)
    text = render_card(tmp_path)
    assert ("A [ReLUFormer](" in text) == (preset == "reluformer")
    assert ("\nAn encoder-decoder Transformer" in text and "It is no ReLUFormer" in text) == (preset != "reluformer")
    assert ("arxiv:2302.06461" in ModelCard(text).data.tags) == (preset != "vanilla")
    formula = attention_formula(config)
    assert formula.count("{") == formula.count("}")
    assert ("gamma" in formula) == (preset == "reluformer")
    assert (regularization_formula(config) is None) == (preset != "reluformer")


@pytest.mark.parametrize("activation", POINTWISE)
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


def test_cased_scores_of_a_model_without_capitals_are_left_out_and_the_headline_comes_first(run):
    change_recipe(run, evaluation={"headline": "tokenized_lowercase_bleu"})
    names = [result.metric_name for result in ModelCard(render_card(run)).data.eval_results]
    assert names[0] == "BLEU, lower-cased" and "BLEU (sacreBLEU)" in names
    write_json(run / "tokenizer.json", {"normalizer": {"type": "Lowercase"}})
    names = {result.metric_name for result in ModelCard(render_card(run)).data.eval_results}
    assert names and all("lower-cased" in name for name in names)
    change_recipe(run, evaluation={"headline": "bleu"})
    assert "BLEU (sacreBLEU)" in render_card(run)
