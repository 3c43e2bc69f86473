"""Cards of models without a recipe: what their folder says is told, what it does not say is named as not known."""

import shutil

import pytest
from huggingface_hub import ModelCard
from transformers.modelcard import TrainingSummary

from reluformer import ReLUFormerConfig
from reluformer.commands import main as cli
from reluformer.export.names import GRAPHS
from reluformer.hub_cards.card import render_card, write_card
from reluformer.hub_cards.model_kinds import MODEL_KINDS
from reluformer.hub_cards.trainer_log import evaluation_of
from reluformer.training.run.records import write_json

from .documented_run import TINY, change_recipe, write_documented_run
from .saved_model import evaluation, trainer_state, write_plain_output
from .test_card import MARKDOWN_LEFTOVERS


@pytest.fixture
def plain(tmp_path):
    return write_plain_output(tmp_path / "plain")


def one_line_error(capsys, *arguments):
    assert cli.main([str(argument) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("reluformer: error: ") and error.count("\n") == 1
    return error


def test_the_state_of_the_trainer_is_told_and_the_rest_is_named(plain):
    text = render_card(plain / "checkpoint-600")
    for row in ("| updates | 600 |", "| loss, last logged | 2.5 |", "| learning rate, highest logged | 0.00025 |"):
        assert row in text, row
    assert "`eval`, after update 600:" in text and "| exact_match | 0.5 |" in text and "0.75" not in text
    missing = next(line for line in text.splitlines() if line.startswith("Not recorded in the model's folder"))
    for what in ("data", "weights that it started from", "arguments", "`training_args.bin`, a pickle", "machine"):
        assert what in missing, what
    assert "the updates" not in missing and "Trained with the regulariser" not in text
    assert not MARKDOWN_LEFTOVERS.search(text) and "built-in" not in text
    assert text.startswith("---") and text.count("\n# plain\n") == 1  # not "checkpoint-600"


def test_the_pickled_arguments_are_never_opened(plain):
    for folder in (plain, plain / "checkpoint-200"):
        write_card(folder)
    assert not (plain.parent / "opened").exists()


def test_an_output_folder_without_a_state_takes_that_of_its_last_checkpoint(plain):
    text = render_card(plain)
    assert "those of `checkpoint-600`, the last checkpoint" in text and "| updates | 600 |" in text
    write_json(plain / "trainer_state.json", trainer_state(600, epoch=6.5))  # trainer.save_state()
    text = render_card(plain)
    assert "the last checkpoint" not in text and "| epochs | 6.50 |" in text


def test_it_says_that_the_weights_may_be_those_of_the_best_checkpoint(tmp_path):
    folder = write_plain_output(tmp_path / "plain", best_metric=0.75, best_global_step=200)
    assert "Nor is it recorded whether the weights" in render_card(folder)
    assert "| best checkpoint | update 200, chosen by a metric of 0.75 |" in render_card(folder)
    assert "Nor is it recorded" not in render_card(folder / "checkpoint-600")


def test_an_evaluation_of_earlier_weights_is_called_one(plain):
    state = trainer_state()
    state["log_history"].pop()
    write_json(plain / "checkpoint-600" / "trainer_state.json", state)
    assert "`eval`, after update 200: not of the weights here" in render_card(plain / "checkpoint-600")
    assert "not of the weights" not in render_card(plain / "checkpoint-200")


def test_each_data_set_of_an_evaluation_is_told(plain):
    state = trainer_state()
    state["log_history"] += [
        evaluation(600, prefix="eval_web", bleu=31.25),
        evaluation(600, prefix="eval_news", bleu=29.5),
    ]
    write_json(plain / "trainer_state.json", state)
    text = render_card(plain, dataset="me/pairs")
    assert "`eval_web`, after update 600:\n\n| metric | value |\n|---|---:|\n| bleu | 31.25 |" in text
    assert "runtime" not in text and "per_second" not in text
    results = {result.dataset_split: result for result in ModelCard(text).data.eval_results}
    assert (results["news"].metric_type, results["news"].metric_value) == ("bleu", 29.5)


def test_a_folder_of_save_pretrained_says_that_nothing_is_recorded(tmp_path):
    ReLUFormerConfig(**TINY).save_pretrained(tmp_path / "bare")
    text = render_card(tmp_path / "bare")
    assert "the updates of the training" in text and "## Scores" not in text and "generated_from_trainer" not in text
    assert "The model's loss in training holds the regulariser" in text and "Not evaluated" in text


def test_what_a_person_says_is_kept_by_later_cards(plain):
    write_card(plain, license="cc0-1.0", language=["de", "no"], dataset="me/number-words")
    data = ModelCard(render_card(plain)).data
    assert (data.license, data.language, data.datasets) == ("cc0-1.0", ["de", "no"], ["me/number-words"])
    assert "translates from `de` to `no`" in render_card(plain)
    result = data.eval_results[0]
    assert (result.dataset_name, result.metric_type, result.metric_value) == ("me/number-words", "exact_match", 0.5)
    assert "from `en` to `fr`" in render_card(plain, language=["en", "fr"])


def test_scores_of_an_unknown_text_are_in_the_table_alone(plain):
    text = render_card(plain)
    assert "| exact_match | 0.5 |" in text and ModelCard(text).data.eval_results is None


def test_the_card_of_the_trainer_is_a_source(plain):
    summary = TrainingSummary(
        "plain", language="de", finetuned_from="me/base", dataset="Pairs", dataset_tags="me/pairs"
    )
    (plain / "README.md").write_text(summary.to_model_card(), encoding="utf-8")
    for _ in range(2):  # and that which was made of it
        text = write_card(plain).read_text(encoding="utf-8")
        data = ModelCard(text).data
        assert (data.base_model, data.language, data.datasets) == ("me/base", ["de"], ["me/pairs"])
        assert "[me/base](https://huggingface.co/me/base)" in text


def test_a_recipe_is_not_contradicted(tmp_path, capsys):
    run = write_documented_run(tmp_path / "run")
    error = one_line_error(capsys, "card", "--run", run, "--language", "de", "en")
    assert "'de en' was given, but the recipe of" in error and "says 'de no'" in error
    assert "from `de` to `no`" in render_card(run, language=["de", "no"])
    change_recipe(run, data={"train": None, "dataset": {"path": "wmt14"}})
    assert "--dataset: 'wmt16' was given" in one_line_error(capsys, "card", "--run", run, "--dataset", "wmt16")


def test_model_and_run_give_the_same_card_of_a_run(tmp_path, capsys):
    run = write_documented_run(tmp_path / "run")
    cards = {}
    for option in ("--run", "--model"):
        assert cli.main(["card", option, str(run), "--output", str(tmp_path / "card.md")]) == 0
        cards[option] = (tmp_path / "card.md").read_text(encoding="utf-8")
    assert cards["--run"] == cards["--model"]


def test_a_checkpoint_of_a_run_has_the_settings_of_the_run(tmp_path):
    run = write_documented_run(tmp_path / "run")
    shutil.copytree(write_plain_output(tmp_path / "plain") / "checkpoint-200", run / "checkpoint-200")
    text = render_card(run / "checkpoint-200")
    assert "| learning rate, peak | 0.005 |" in text and "| updates | 200 |" in text and "2,400" not in text
    assert "from `de` to `no`" in text and "# little" in text


def test_one_folder_is_named(capsys):
    assert "not allowed with argument" in one_line_error(capsys, "card", "--run", "a", "--model", "b")
    for verb in (["card"], ["publish", "--repo-id", "me/little"]):
        assert "--run --model is required" in one_line_error(capsys, *verb)


def test_folders_without_a_model_say_where_one_is(plain, capsys):
    assert "no such folder" in one_line_error(capsys, "card", "--model", plain / "nowhere")
    (plain / "config.json").unlink()
    error = one_line_error(capsys, "card", "--model", plain)
    assert f"holds no config.json; give {plain}/checkpoint-600" in error


@pytest.mark.parametrize("verb", [["card"], ["publish", "--repo-id", "me/little", "--dry-run"]])
def test_an_exported_model_is_refused_and_its_place_on_the_hub_is_told(plain, verb, capsys):
    """The card would say that AutoModel loads what has no weights; graphs beside the weights do not disturb."""
    for name in GRAPHS:
        (plain / name).touch()
    assert f"hf upload OWNER/NAME {plain} onnx" in one_line_error(capsys, *verb, "--model", plain)
    (plain / "model.safetensors").touch()
    assert "ONNX" not in render_card(plain)


def test_another_kind_of_model_is_refused_and_the_kinds_are_named(plain, capsys):
    write_json(plain / "config.json", {"model_type": "bert", "attn_implementation": "reluformer"})
    error = one_line_error(capsys, "card", "--model", plain)
    assert "'bert', expected 'reluformer'" in error and "create_model_card" in error
    assert all(kind.config_class.model_type == name for name, kind in MODEL_KINDS.items())


@pytest.mark.parametrize("damage", ["{", "[]", '{"log_history": 3}', '{"log_history": [3]}', "\xff"])
def test_a_damaged_state_is_named(plain, damage, capsys):
    (plain / "trainer_state.json").write_bytes(damage.encode("latin-1"))
    error = one_line_error(capsys, "card", "--model", plain)
    assert f"{plain}/trainer_state.json: is damaged" in error


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"settings": "x", "evaluations": [1]}, "its settings is no mapping"),
        ({"settings": {"training": [1]}}, "its settings.training is no mapping"),
        ({"evaluations": [1]}, "its evaluations is no mapping"),
        ({"machine": "a big one"}, "its machine is no mapping"),
        ({"evaluations": {"eval": 3}}, "an entry of its evaluations holds no metrics that are numbers"),
        ({"evaluations": {"eval": {"metrics": {"bleu": "high"}}}}, "an entry of its evaluations"),
    ],
)
def test_a_damaged_record_is_named(plain, record, says, capsys):
    write_json(plain / "training_record.json", record)
    error = one_line_error(capsys, "card", "--model", plain)
    assert f"{plain}/training_record.json: is damaged ({says}" in error and "); remove or rewrite it" in error


@pytest.mark.parametrize("field", ["name", "base_model", "initialize_from"])
@pytest.mark.parametrize("text", ["runs/one\n# Another heading", 'runs/a")\nimport os', "runs/`a`", ["a"]])
def test_what_would_break_headings_and_code_is_refused(plain, field, text, capsys):
    """It stands in a heading, a link or an example that is copied and run."""
    write_json(plain / "training_record.json", {"settings": {field: text}})
    assert f"{plain}: its {field} is {text!r}" in one_line_error(capsys, "card", "--model", plain)
    assert not (plain / "README.md").exists()


def test_a_base_model_of_an_older_card_must_be_an_id(plain, capsys):
    (plain / "README.md").write_text("---\nbase_model: |\n  me/base\n  # Another heading\n---\n")
    assert f"{plain}: its base_model is 'me/base\\n# A" in one_line_error(capsys, "card", "--model", plain)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--license", ["MIT License"]),
        ("--language", ["German"]),
        ("--language", ["de", "../en"]),
        ("--dataset", ["my corpus"]),
    ],
)
def test_statements_of_another_form_are_refused(plain, option, values, capsys):
    assert f"{option}: {values[-1]!r}" in one_line_error(capsys, "card", "--model", plain, option, *values)


def test_a_metric_that_is_called_runtime_is_no_other_evaluation():
    logged = {"eval_decoder_runtime": 3.0, "eval_bleu": 20.0, "eval_runtime": 1.0, "epoch": 1.0}
    assert evaluation_of(logged) == ("eval", {"decoder_runtime": 3.0, "bleu": 20.0})
    assert evaluation_of({"train_runtime": 1.0, "train_loss": 2.0}) is None
