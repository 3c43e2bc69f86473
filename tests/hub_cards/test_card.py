"""Cards: every number comes from a file of the folder, what nobody has recorded is named, and the metadata can be read
back."""

import json
import re

import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results
from transformers import ViTImageProcessor

from reluformer import ReLUFormerConfig
from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError
from reluformer.hub_cards.card import attention_formula, regularization_formula, render_card, write_card
from reluformer.records.records import write_json

from ..modeling_reluformer.cases import VOCABULARY, decoder_model, vision_model
from .model_folders import TINY, change, change_recipe, write_documented_run

MARKDOWN_LEFTOVERS = re.compile(r"\bNone\b|\{\{|\{%|Undefined")


@pytest.fixture
def run(tmp_path):
    return write_documented_run(tmp_path / "little_run")


def assert_whole(text):
    """No trace of the template, metadata that can be read, and in each row of a table the cells of its head."""
    assert not MARKDOWN_LEFTOVERS.search(text)
    ModelCard(text)
    table = []
    for line in [*text.split("---\n", 2)[2].splitlines(), ""]:
        if line.startswith("|"):
            table.append(len(re.findall(r"(?<!\\)\|", line)))
        elif table:
            assert len(set(table)) == 1 and len(table) > 2, line
            table = []


def test_metadata_can_be_read_back(run):
    path = write_card(run)
    data = ModelCard.load(path).data
    assert data.language == ["de", "no"]  # "no" is a boolean to careless YAML
    assert data.library_name == "transformers" and data.pipeline_tag == "translation" and data.license is None
    results = {result.metric_name: result for result in data.eval_results}
    evaluation = json.loads((run / "evaluation.test.json").read_text())
    bleu = results["BLEU (sacreBLEU)"]
    assert bleu.metric_value == round(evaluation["bleu"], 2)
    assert bleu.metric_args == {"signature": evaluation["bleu_signature"]}
    assert (bleu.dataset_name, bleu.dataset_split, bleu.task_type) == ("little test", "test", "translation")
    assert results["BLEU, lower-cased"].metric_value == 100.0 and results["Exact match (%)"].metric_value == 0.0
    assert "BLEU, lower-cased, Moses-tokenised" not in results
    metadata = yaml.safe_load(path.read_text(encoding="utf-8").split("---")[1])
    name, read = model_index_to_eval_results(metadata["model-index"])
    assert name == "little" and eval_results_to_model_index(name, read) == metadata["model-index"]


SHOWN = (
    "A small one: for a test.",
    "3 encoder and 2 decoder layers",
    "`γ` is 5.5",
    r"\sqrt{n_i / 2}",
    r"0.03 \, \mathcal{L}_{reg}",
    "Trained with the regulariser",
    "reluformer train --config little.yaml",
    "| wall time in minutes | 1.5 |",
    "| target tokens an update, mean | 4,096 |",
    "| averaged checkpoints | 2: checkpoint-2300, checkpoint-2400 |",
    "| learning rate, peak | 0.005 |",
    "| schedule | inverse_sqrt, 2000 warm-up updates |",
    "| Adam β1, β2 | 0.9, 0.999 |",
    "| train files | 1,010 | 1,000 | 10 empty line |",
    "files `train.de.gz`, `train.no.gz`",
    # the last logged ones, of the validation split where there are some
    "| mean row entropy H (nats) | 1.234 | training, with dropout, update 2,400 |",
    "| dead rows (no positive weight) | 1.23% | validation, update 2,400 |",
    # of `reluformer analyze`, by kind of attention
    "on 1,200 pairs, targets: given, teacher-forced, 2024-05-06:",
    "| all | 1.111 | 2.222 | 3.33% | 55.5% | 0.444 |",
    "| decoder to encoder | 0.667 | 2.222 | 3.33% | 77.7% | 0.444 |",
    "`test` of little test, 1 sentences, 12.34 a second; decoding: num_beams 5.",
    "Measured: slow processor, 2 threads.",
    "- At most 77 tokens a side",
    "at most 99 tokens a side",
    "`γ` = 5.5 fit",
    "softmax for ReLU",
    "with seed 17",
    "What was measured stands above. Nothing else was",
)


def test_text_holds_what_was_measured_and_no_path(run):
    change_recipe(run, tokenizer={"path": "/home/somebody/tokenizer"})
    text = render_card(run)
    for part in SHOWN:
        assert part in text, part
    assert "mean row sum" not in text and "9.99" not in text
    assert "| tokenizer taken from | `…/tokenizer` |" in text and "somebody" not in text and str(run) not in text
    assert_whole(text)


@pytest.mark.parametrize(
    ("device", "shown"), [("cpu", "slow processor, 2 threads"), ("cuda:0", "a GPU, a GPU"), (None, "a GPU, a GPU")]
)
def test_a_figure_tells_of_what_computed_it(run, device, shown):
    machine = {"cpu": "slow processor", "torch_threads": 2, "accelerators": ["a GPU", "a GPU"]}
    change(run / "evaluation.test.json", device=device, machine=machine)
    assert f"\nMeasured: {shown}.\n" in render_card(run)


@pytest.mark.parametrize(("is_dirty", "shown"), [(True, ", with local changes"), (False, "")])
def test_a_figure_tells_of_the_code_that_computed_it(run, is_dirty, shown):
    change(run / "evaluation.test.json", git_commit="0123456789abcdef", git_dirty=is_dirty)
    assert f"commit 0123456789ab{shown}.\n" in render_card(run)


MEASURED = {
    "training_record.json": {
        "updates": "| updates |",
        "seconds": "| wall time",
        "averaged_checkpoints": "| averaged checkpoints |",
        "seed": "| seed |",
        "command": "Command:",
    },
    "evaluation.test.json": {"bleu": "| BLEU (sacreBLEU) |", "decoding": "; decoding:"},
}


def test_each_missing_value_leaves_its_part_out(run):
    whole = render_card(run)
    for file, parts in MEASURED.items():
        change(run / file, **dict.fromkeys(parts))
    text = render_card(run)
    for part in (part for parts in MEASURED.values() for part in parts.values()):
        assert part in whole and part not in text, part
    for file in ("recipe.yaml", "training_record.json", "evaluation.test.json", "trainer_state.json"):
        (run / file).unlink()
        assert_whole(render_card(run))


def test_scores_that_are_not_numbers_and_analyses_of_another_attention_are_left_out(run):
    change(run / "evaluation.test.json", bleu=float("nan"))
    change(run / "config.json", attention_gamma=99.0)
    text = render_card(run)
    assert "BLEU (sacreBLEU)" not in text and "1.111" not in text


def test_moses_lower_casing_pictures_licence_and_place_are_named(run):
    write_json(run / "tokenizer_config.json", {"moses": {"source_language": "de", "target_language": "nb"}})
    normalizer = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}
    write_json(run / "tokenizer.json", {"normalizer": normalizer})
    (run / "training_curve.png").write_bytes(b"")
    change_recipe(run, data={"packing": {"too_long": "skip"}, "text": "moses"})
    text = render_card(run, license="cc-by-2.0", repo_id="somebody/little")
    packed = "packed to documents of at most 99"
    for part in ("tokenised by Moses", "`nb`", "lower-cases", packed, "Moses had tokenised", "(training_curve.png)"):
        assert part in text, part
    assert "(attention_map.png)" not in text
    assert ModelCard(text).data.license == "cc-by-2.0"


def test_it_says_how_to_load_with_and_without_the_package(run):
    examples = re.findall(r"```python\n(.*?)```", render_card(run, repo_id="me/little"), re.DOTALL)
    assert len(examples) == 3 and all('"me/little"' in example for example in examples)
    (without,) = (example for example in examples if "reluformer" not in example)
    assert without.count("trust_remote_code=True") == 2
    for example in examples:
        compile(example, "card", "exec")


def test_cased_scores_of_a_model_without_capitals_are_left_out_and_the_headline_comes_first(run):
    def names():
        return [result.metric_name for result in ModelCard(render_card(run)).data.eval_results]

    change_recipe(run, evaluation={"headline": "tokenized_lowercase_bleu"})
    assert names()[0] == "BLEU, lower-cased" and "BLEU (sacreBLEU)" in names()
    write_json(run / "tokenizer.json", {"normalizer": {"type": "Lowercase"}})
    assert all("lower-cased" in name for name in names())
    change_recipe(run, evaluation={"headline": "bleu"})
    assert "BLEU (sacreBLEU)" in names()


# Where text and weights come from


def test_a_data_set_of_the_hub_is_linked_and_files_are_named_without_their_path(run):
    files = {"source": "/home/somebody/new.de.gz", "target": "/home/somebody/new.no.gz", "only": ["d1"]}
    change_recipe(run, data={"test": files})
    change(run / "evaluation.test.json", dataset="test")  # which only repeats the split
    text = render_card(run)
    assert ModelCard(text).data.eval_results[0].dataset_name == "document d1, new.de.gz, new.no.gz"
    assert "`test` of document d1, new.de.gz, new.no.gz" in text and "somebody" not in text
    dataset = {"path": "wmt14", "name": "de-en", "revision": "abc"}
    change_recipe(run, data={"train": None, "test": None, "dataset": dataset})
    data = ModelCard(render_card(run)).data
    assert data.datasets == ["wmt14"]
    assert (data.eval_results[0].dataset_type, data.eval_results[0].dataset_config) == ("wmt14", "de-en")
    dataset = {"path": "csv", "files": {"train": "/home/somebody/a.csv", "test": "b.csv"}}
    change_recipe(run, data={"dataset": dataset}, training={"lr_scheduler_type": "linear", "warmup_steps": 0.5})
    text = render_card(run)
    assert ModelCard(text).data.datasets is None and "Training text: files `a.csv`." in text
    assert "50% of the updates as warm-up" in text and "update 2,400" in text
    change(run / "training_record.json", weights_of_update=100)
    assert "| 90.00% | training, with dropout, update 100 |" in render_card(run)


def test_a_base_model_of_the_hub_is_linked_and_in_the_metadata(run):
    assert "Started from" not in render_card(run)
    change_recipe(run, initialize_from="somebody/softmax-base")
    text = render_card(run)
    data = ModelCard(text).data
    assert data.base_model == "somebody/softmax-base" and data.to_dict()["base_model_relation"] == "finetune"
    assert "[somebody/softmax-base](https://huggingface.co/somebody/softmax-base)" in text
    # A path, or in form an id, but the tokenizer came from a folder.
    for name, is_local in (("runs/softmax_base", False), ("/home/somebody/mine", False), ("models/mine", True)):
        change_recipe(run, initialize_from=name)
        write_json(run / "tokenizer_config.json", {"is_local": is_local})
        text = render_card(run)
        assert "which is not on the Hub." in text and ModelCard(text).data.base_model is None
        assert "somebody" not in text


def test_no_secret_and_no_folder_of_this_machine_is_in_a_card(run):
    """Each place that a person fills in holds both."""
    hidden = "s3://key:pass/word@bucket/pairs"
    change_recipe(
        run,
        description="From /home/alice/notes.txt, with token=geheim.",
        data={"train": None, "dataset": {"path": hidden, "name": "/home/alice/c", "revision": "file:///home/alice/r"}},
        tokenizer={"path": "file:///home/alice/tokenizer"},
        initialize_from="file:///home/alice",
    )
    change(run / "evaluation.test.json", dataset=f"{hidden} big test")
    write_json(run / "corpus_report.json", [{"name": f"{hidden} big train", "read": 2, "kept": 2, "skipped": {}}])
    command = f"reluformer train --training.hub_token geheim --data.dataset.path {hidden} --config /home/alice/a.yaml"
    change(run / "training_record.json", command=f'{command} --training.fsdp_config \'{{"x": "/home/alice/y"}}\'')
    text = render_card(run)
    for hidden_part in ("alice", "geheim", "pass/word", "key:"):
        assert hidden_part not in text
    assert "From …/notes.txt, with token=…" in text
    assert "--training.hub_token … --data.dataset.path s3://…@bucket/pairs --config …/a.yaml" in text


# The command, and other configurations


def test_the_command_writes_the_card(run, capsys):
    assert cli.main(["card", "--run", str(run), "--license", "mit", "--repo-id", "me/little"]) == 0
    assert capsys.readouterr().out.strip() == str(run / "README.md")
    assert (run / "README.md").read_text(encoding="utf-8") == render_card(run, license="mit", repo_id="me/little")


def test_an_evaluation_that_names_no_text_is_of_the_model(run):
    change(run / "evaluation.test.json", dataset=None)
    assert {each.dataset_name for each in ModelCard(render_card(run)).data.eval_results} == {"little"}


def test_the_command_does_not_drop_scores_that_only_the_card_has(run, bare, capsys):
    scores = render_card(run)
    (bare / "README.md").write_text(scores, encoding="utf-8")
    assert cli.main(["card", "--model", str(bare)]) == 2
    assert "has scores that no other file of the folder records" in capsys.readouterr().err
    assert (bare / "README.md").read_text(encoding="utf-8") == scores


@pytest.mark.parametrize("preset", ["reluformer", "vanilla", "entmax15", "rela", "relu_vit"])
def test_every_preset_has_a_formula_and_only_one_is_called_a_reluformer(preset, tmp_path):
    config = ReLUFormerConfig.from_preset(preset, **TINY)
    config.save_pretrained(tmp_path)
    text = render_card(tmp_path)
    assert_whole(text)
    assert ("A [ReLUFormer](" in text) == (preset == "reluformer")
    assert ("\nAn encoder-decoder Transformer" in text and "It is no ReLUFormer" in text) == (preset != "reluformer")
    assert ("arxiv:2302.06461" in ModelCard(text).data.tags) == (preset != "vanilla")
    formula = attention_formula(config)
    assert formula.count("{") == formula.count("}") and ("gamma" in formula) == (preset == "reluformer")
    assert (regularization_formula(config) is None) == (preset != "reluformer")


def test_folders_without_such_a_model_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"holds no config\.json"):
        render_card(tmp_path)
    write_json(tmp_path / "config.json", {"model_type": "marian"})
    with pytest.raises(UserError, match="'marian', expected 'reluformer'"):
        render_card(tmp_path)


# Models without a recipe, and other kinds of model


@pytest.fixture
def bare(tmp_path):
    ReLUFormerConfig(**TINY).save_pretrained(tmp_path / "bare")
    return tmp_path / "bare"


def test_a_folder_of_save_pretrained_says_that_nothing_is_recorded(bare):
    text = render_card(bare)
    missing = next(line for line in text.splitlines() if line.startswith("Not recorded in the model's folder"))
    assert "arguments and updates of the training" in missing and "# bare" in text
    assert "the data that it was trained on, the weights that it started from" in text
    assert "The model's loss in training holds the regulariser" in text and "Not evaluated" in text
    for absent in ("## Scores", "model-index", "Trained with", "| updates", "Measured:", "Command"):
        assert absent not in text, absent
    assert_whole(text)


def test_what_a_person_says_is_kept_by_later_cards(bare):
    write_card(bare, license="cc0-1.0", language=["de", "no"], dataset="me/number-words")
    text = render_card(bare)
    data = ModelCard(text).data
    assert (data.license, data.language, data.datasets) == ("cc0-1.0", ["de", "no"], ["me/number-words"])
    assert "The weights: `cc0-1.0`." in text and "data set `me/number-words`" in text
    assert "from `en` to `fr`" in render_card(bare, language=["en", "fr"])
    assert ModelCard(render_card(bare, license="mit")).data.license == "mit"


DECODERS = {
    "llama_relu": (
        "4 heads on 2 key-value heads",
        "gated FFN 40 with `relu`",
        "RMSNorm before each block and at the end, rotary positions",
        "Made for contexts of 40 tokens: longer ones are not refused",
    ),
    "normalization_free": (
        "FFN 40 with `relu`",
        "no norm but one LayerNorm at the end, learned positions",
        "attention activation `softmax`",
        "At most 40 tokens of prompt and continuation together; more are refused",
    ),
    "gpt2": ("4 heads,", "LayerNorm before each block and at the end", "divided by √(2 · layers)"),
}


@pytest.mark.parametrize("preset", DECODERS)
def test_the_card_of_a_language_model(preset, tmp_path):
    fields = {"num_key_value_heads": 2} if preset == "llama_relu" else {}
    decoder_model(preset=preset, **fields).config.save_pretrained(tmp_path)
    text = render_card(tmp_path, repo_id="someone/tiny")
    assert ModelCard(text).data.pipeline_tag == "text-generation"
    expected = ("AutoModelForCausalLM, AutoTokenizer", "max_new_tokens=50", f"| vocabulary | {VOCABULARY} pieces |")
    for part in (*expected, *DECODERS[preset]):
        assert part in text, part
    assert "translat" not in text.lower() and "encoder-decoder" not in text
    assert_whole(text)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_programs_of_the_card_of_a_classifier_run(channels, tmp_path):
    model = vision_model(num_channels=channels)
    model.save_pretrained(tmp_path)
    ViTImageProcessor().save_pretrained(tmp_path)
    text = render_card(tmp_path, repo_id="me/tiny")
    assert_whole(text)
    data = ModelCard(text).data
    assert data.pipeline_tag == "image-classification" and "arxiv:2309.08586" in data.tags
    assert f"for {model.config.num_labels} classes" in text and "tokenizer" not in text.lower()
    loading, alone = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "trust_remote_code=True" in alone and f'convert("{"L" if channels == 1 else "RGB"}")' in alone
    compile(alone, "card", "exec")
    assert "AutoImageProcessor, AutoModelForImageClassification" in loading
