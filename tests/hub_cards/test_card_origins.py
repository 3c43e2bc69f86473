"""What a card says of where text and weights come from: what is on the Hub by its id, what is local without its path."""

import pytest
from huggingface_hub import ModelCard

from reluformer.hub_cards.card import render_card
from reluformer.hub_cards.public_names import public_name, run_name
from reluformer.training.run.records import write_json

from .documented_run import change, change_recipe, write_documented_run


@pytest.fixture
def run(tmp_path):
    return write_documented_run(tmp_path / "little_run")


def test_a_data_set_of_the_hub_is_linked(run):
    change_recipe(run, data={"train": None, "dataset": {"path": "wmt14", "name": "de-en", "revision": "abc"}})
    data = ModelCard(render_card(run)).data
    assert data.datasets == ["wmt14"]
    assert (data.eval_results[0].dataset_type, data.eval_results[0].dataset_config) == ("wmt14", "de-en")


def test_a_data_set_of_this_machine_is_named_without_its_path(run):
    change_recipe(run, data={"train": None, "dataset": {"path": "/home/somebody/pairs", "name": "big"}})
    change(run / "evaluation.test.json", dataset="/home/somebody/pairs big test")
    reports = [{"name": "/home/somebody/pairs big train", "read": 2, "kept": 2, "skipped": {}, "first": {}}]
    write_json(run / "corpus_report.json", reports)
    text = render_card(run)
    data = ModelCard(text).data
    assert "somebody" not in text and data.datasets is None
    assert (data.eval_results[0].dataset_name, data.eval_results[0].dataset_type) == (
        "pairs big test",
        "pairs-big-test",
    )
    assert "data set `pairs` (big)" in text and "| pairs big train | 2 |" in text


def test_files_name_what_was_evaluated_where_the_record_only_repeats_the_split(run):
    change_recipe(
        run, data={"test": {"source": "/home/somebody/test2016.de.gz", "target": "/home/somebody/test2016.no.gz"}}
    )
    change(run / "evaluation.test.json", dataset="test")
    text = render_card(run)
    assert ModelCard(text).data.eval_results[0].dataset_name == "test2016.de.gz, test2016.no.gz"
    assert "`test` of test2016.de.gz, test2016.no.gz" in text and "somebody" not in text


# Where the weights come from


def test_a_base_model_of_the_hub_is_linked_and_in_the_metadata(run):
    change_recipe(run, initialize_from="somebody/softmax-base")
    write_json(run / "tokenizer_config.json", {"is_local": False})
    text = render_card(run)
    data = ModelCard(text).data
    assert data.base_model == "somebody/softmax-base" and data.to_dict()["base_model_relation"] == "finetune"
    assert "[somebody/softmax-base](https://huggingface.co/somebody/softmax-base)" in text


@pytest.mark.parametrize(
    ("path", "tokenizer", "words"),
    [
        ("runs/softmax_base", {}, "the run `softmax_base`."),
        ("runs/softmax_base/checkpoint-300", {}, "the run `softmax_base`."),
        ("/home/somebody/runs/softmax_base", {}, "the run `softmax_base`."),
        ("/home/somebody/secret/model", {}, "another model, which is not on the Hub."),
        # in form an id, but the tokenizer came from a folder
        ("models/mine", {"is_local": True}, "another model, which is not on the Hub."),
    ],
)
def test_a_local_base_is_named_as_a_run_or_not_at_all(run, path, tokenizer, words):
    change_recipe(run, initialize_from=path)
    write_json(run / "tokenizer_config.json", tokenizer)
    text = render_card(run)
    assert f"Started from the weights of {words}" in text
    assert "somebody" not in text and "models/mine" not in text and ModelCard(text).data.base_model is None


def test_new_weights_have_no_base(run):
    text = render_card(run)
    assert "Started from" not in text and "base_model" not in text


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
    command = (
        f"reluformer train --training.hub_token geheim --data.dataset.path {hidden} --config file:///home/alice/a.yaml"
    )
    change(run / "training_record.json", command=f'{command} --training.fsdp_config \'{{"x": "/home/alice/y"}}\'')
    text = render_card(run)
    for hidden_part in ("alice", "geheim", "pass/word", "key:"):
        assert hidden_part not in text
    assert "From …/notes.txt, with token=…" in text and "| pairs big train | 2 |" in text
    assert "--training.hub_token … --data.dataset.path s3://…@bucket/pairs --config file://…/a.yaml" in text


def test_names_of_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (public_name("Helsinki-NLP/opus-mt-en-de"), public_name("/home/me/model/")) == (
        "Helsinki-NLP/opus-mt-en-de",
        "model",
    )
    (tmp_path / "models" / "mine").mkdir(parents=True)
    assert public_name("models/mine") == "mine" and run_name("models/mine") is None
    (tmp_path / "models" / "mine" / "recipe.yaml").touch()
    assert run_name("models/mine") == run_name("models/mine/checkpoint-9") == "mine"
