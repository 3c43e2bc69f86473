"""One recipe → one run folder: what is in it, that an interrupted run ends as a whole one, that averaging is what it
says."""

import json
import re
from collections import Counter
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from reluformer.commands import main as cli
from reluformer.commands.train import train_and_document as train
from reluformer.configuration import recipe_parser
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import load_recipe, parse_recipe
from reluformer.training.run import model_building, preparation
from reluformer.training.run.checkpoints import RUN_STATE_FILE
from reluformer.training.run.model_building import run_tokenizer
from reluformer.training.run.run_folder import CARD_FILE, RECIPE_FILE, RECORD_FILE
from reluformer.training.scoring import evaluation
from reluformer.training.train import _mean_target_tokens
from reluformer.training.train import train as train_recipe
from reluformer.translating.translation import Translator

from ..conftest import demo_tokenizer

ALL_FILES = {
    "recipe.yaml",
    "config.json",
    "model.safetensors",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "trainer_state.json",
    "corpus_report.json",
    "training_record.json",
    "evaluation.test.json",
    "translations.test.tsv",
    "training_curve.png",
    "attention_map.png",
    "README.md",
}


def test_the_speed_of_a_run_is_its_tokens_over_its_seconds():
    logs = [
        {"step": 10, "target_tokens_per_update": 100.0, "target_tokens_per_second": 1000.0},
        {"step": 10, "eval_loss": 2.0},
        {"step": 30, "target_tokens_per_update": 200.0, "target_tokens_per_second": 100.0},
    ]
    found = _mean_target_tokens(logs)
    assert found["target_tokens_per_update"] == pytest.approx(5000 / 30)
    assert found["target_tokens_per_second"] == pytest.approx(5000 / 41)
    assert _mean_target_tokens([{"eval_loss": 2.0}]) == dict.fromkeys(found)


def test_a_run_leaves_everything_in_its_folder(recipe_file, capsys):
    folder = train(load_recipe(recipe_file))
    assert {path.name for path in folder.iterdir()} >= ALL_FILES
    printed = capsys.readouterr().out
    assert "demo train: 120 of 120 pairs kept" in printed
    assert f"tokenizer: {len(AutoTokenizer.from_pretrained(folder)):,} pieces" in printed
    assert re.search(r"\nexact match: \d+\.\d\d % on 5 held-out sentences \(test\)\n\Z", printed)

    record = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
    assert (record["updates"], record["recipe"], record["seed"]) == (6, "tiny", 42)
    assert record["averaged_checkpoints"] == ["checkpoint-4", "checkpoint-6"]
    assert 0 < record["target_tokens_per_update"] < 400 and record["target_tokens_per_second"] > 0
    assert record["peak_memory_bytes"] > 2**26, "torch alone needs it"
    assert record["versions"]["torch"]
    logs = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    assert {"cross_entropy", "regularization", "attention_entropy", "dead_row_fraction"} <= logs[0].keys()
    assert {"eval_bleu", "eval_exact_match"} <= next(entry for entry in logs if "eval_loss" in entry).keys()
    reports = json.loads((folder / "corpus_report.json").read_text(encoding="utf-8"))
    assert [report["name"] for report in reports] == [
        "demo train", "demo validation", "demo test", "train tokens", "validation tokens",
    ]  # fmt: skip
    assert load_recipe(folder / RECIPE_FILE).training.max_steps == 6

    averaged = load_file(folder / "model.safetensors")
    parts = [load_file(folder / f"checkpoint-{step}" / "model.safetensors") for step in (4, 6)]
    name = "model.encoder.layers.0.fc1.weight" if "model.encoder.layers.0.fc1.weight" in averaged else min(averaged)
    assert torch.allclose(averaged[name], (parts[0][name] + parts[1][name]) / 2)
    assert not torch.equal(averaged[name], parts[1][name])
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer)
    assert (model.config.pad_token_id, model.config.decoder_start_token_id, model.config.eos_token_id) == (0, 1, 2)
    assert torch.equal(model.get_input_embeddings().weight, model.lm_head.weight)


def test_on_its_way_a_recipe_is_checked_and_each_split_read_once(recipe_file, monkeypatch):
    """The model's configuration is built twice: before the corpus is read, to find mistakes, and for the tokenizer."""
    counts = Counter()
    for module, name in (
        (recipe_parser, "check_recipe"),
        (model_building, "build_config"),
        (preparation, "build_config"),
        (preparation, "load_split"),
        (evaluation, "load_split"),
    ):
        counted = partial(count_calls, counts, name, getattr(module, name))
        monkeypatch.setattr(module, name, counted)
    train(load_recipe(recipe_file))
    assert counts == {"check_recipe": 1, "build_config": 2, "load_split": 3}


def count_calls(counts, name, function, *arguments):
    counts[name] += 1
    return function(*arguments)


def test_a_run_that_was_interrupted_goes_on_and_ends_as_if_it_had_not_been(recipe_file, tmp_path, at_log, capsys):
    whole = train(load_recipe(recipe_file))
    options = ["--config", str(recipe_file), "--training.output_dir", str(tmp_path / "broken")]
    remove = at_log(5, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(parse_recipe([*options, "--training.logging_steps", "5"]))
    remove()
    assert not (tmp_path / "broken" / RECORD_FILE).exists()
    state_file = tmp_path / "broken" / "checkpoint-4" / RUN_STATE_FILE
    state = json.loads(state_file.read_text(encoding="utf-8"))
    state_file.write_text(json.dumps({**state, "seconds": state["seconds"] + 1000}), encoding="utf-8")
    for name in ("evaluation.validation.json", "translations.validation.tsv", "analysis/entropy.json"):
        (tmp_path / "broken" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "broken" / name).write_text("{}")
    capsys.readouterr()
    folder = train(parse_recipe(options))
    record = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
    assert 1000 < state["seconds"] + 1000 < record["seconds"] < 1060  # that of both parts
    assert record["resumed_from"].endswith("checkpoint-4")
    assert f"resuming at {tmp_path / 'broken' / 'checkpoint-4'}" in capsys.readouterr().out
    final, expected = (load_file(each / "model.safetensors") for each in (folder, whole))
    assert all(torch.equal(final[name], expected[name]) for name in expected)
    assert not [*folder.glob("*.validation.*"), *folder.glob("analysis*")], "what was measured of other weights is gone"


@pytest.mark.parametrize(
    ("options", "watched", "told", "signed"),
    [
        (
            ["--tokenizer.lowercase", "true", "--evaluation.headline", "tokenized_lowercase_bleu"],
            {"eval_tokenized_lowercase_bleu"},
            "lower-cased BLEU",
            "version:[^|]*$",
        ),
        (
            ["--data.text", "moses", "--evaluation.headline", "tokenized_bleu"],
            {"eval_bleu", "eval_tokenized_lowercase_bleu", "eval_tokenized_bleu", "eval_chrf"},
            "BLEU 0.0 · tokenised BLEU",
            "detokenized:moses:en",
        ),
    ],
)
def test_a_training_is_watched_by_the_scores_that_suit_its_text(recipe_file, capsys, options, watched, told, signed):
    evaluation = ["--evaluation.splits", "[validation,test]", "--evaluation.length_penalty", "0.7"]
    evaluation += ["--evaluation.long_sources", "split", "--evaluation.batch_tokens", "300"]
    folder = train(parse_recipe(["--config", str(recipe_file), *options, *evaluation, "--training.max_steps", "3"]))
    logs = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    scores = {
        name for entry in logs for name in entry if (name.startswith("eval_") and "bleu" in name) or "chrf" in name
    }
    assert scores == watched
    assert re.search(rf"^3/3 .* · {told} \d", capsys.readouterr().out, re.MULTILINE)
    for split in ("validation", "test"):
        evaluation = json.loads((folder / f"evaluation.{split}.json").read_text(encoding="utf-8"))
        assert re.search(signed, evaluation["bleu_signature"])
        asked = {"num_beams": 2, "length_penalty": 0.7, "batch_tokens": 300, "long_sources": "split"}
        assert asked.items() <= evaluation["decoding"].items()


def test_a_run_in_bfloat16_is_evaluated_as_its_saved_model_would_be(recipe_file):
    found = []

    def document(run):
        saved = AutoModelForSeq2SeqLM.from_pretrained(run.recipe.run_folder).to(run.model.device)
        batch = {"input_ids": torch.tensor([[5, 6, 7]]), "labels": torch.tensor([[8, 9]])}
        batch = {name: tensor.to(run.model.device) for name, tensor in batch.items()}
        found.extend(model.eval()(**batch).logits for model in (run.model, saved))

    bf16 = ["--training.bf16", "true", "--training.max_steps", "1", "--averaging.last_checkpoints", "0"]
    train_recipe(parse_recipe(["--config", str(recipe_file), *bf16]), document=document)
    torch.testing.assert_close(*found)


def test_a_line_of_the_corpus_is_scored_as_a_whole_and_a_text_is_translated_by_sentences(recipe_file, monkeypatch):
    with monkeypatch.context() as patch:
        patch.delattr("reluformer.translating.source_encoding.split_sentences")
        folder = train(load_recipe(recipe_file))
        assert cli.main(["evaluate", "--run", str(folder), "--device", "cpu"]) == 0
    evaluation = json.loads((folder / "evaluation.test.json").read_text(encoding="utf-8"))
    assert "split" not in evaluation["decoding"]
    translator = Translator.from_pretrained(folder, device="cpu")
    assert translator("eins.\nzwei.") == "\n".join(translator(["eins.", "zwei."]))
    assert "- `Translator` gives the model a text sentence by sentence" in (folder / CARD_FILE).read_text(
        encoding="utf-8"
    )


def test_a_tokenizer_of_another_run_says_what_this_one_is_trained_on(recipe_file, tmp_path):
    other = demo_tokenizer(50)
    other.init_kwargs |= {"text_unit": "document", "source_language": "en", "target_language": "de"}
    other.save_pretrained(tmp_path / "other")
    recipe = load_recipe(recipe_file)
    recipe.tokenizer.path = str(tmp_path / "other")
    run_tokenizer(recipe, None, None).save_pretrained(tmp_path / "saved")
    settings = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text(encoding="utf-8"))
    says = {"text_unit": "sentence", "source_language": "de", "target_language": "en"}
    assert says.items() <= settings.items()


def test_a_split_that_is_missing_is_found_before_the_corpus_is_read(recipe_file):
    """The files are not there, either."""
    files = ["--data.demo", "null", "--data.train.source", "a", "--data.train.target", "b"]
    with pytest.raises(UserError, match="no test split"):
        train(parse_recipe(["--config", str(recipe_file), *files]))


def test_a_run_shorter_than_logging_steps_ends(recipe_file, capsys):
    recipe = parse_recipe(
        ["--config", str(recipe_file), "--training.logging_steps", "500", "--training.eval_strategy", "no"]
    )
    folder = train(recipe)
    assert "no training curve: nothing was logged in 6 updates (logging: steps 500)" in capsys.readouterr().out
    assert (folder / CARD_FILE).is_file() and not (folder / "training_curve.png").exists()
