"""Cards of models without a recipe: what their folder says is shown, what it does not say is named as not known."""

import re
import shutil

import pytest
from huggingface_hub import ModelCard
from PIL import Image
from transformers import ViTImageProcessor
from transformers.modelcard import TrainingSummary

from reluformer import ReLUFormerConfig
from reluformer.commands import main as cli
from reluformer.hub_cards.card import render_card, write_card
from reluformer.hub_cards.model_folder import evaluation_of
from reluformer.training.run.records import write_json

from ..modeling_reluformer.cases import VOCABULARY, decoder_model, vision_model
from .model_folders import TINY, evaluation, trainer_state, write_documented_run, write_plain_output
from .test_card import assert_whole


@pytest.fixture
def plain(tmp_path):
    return write_plain_output(tmp_path / "plain")


def test_the_state_of_the_trainer_is_shown_and_the_rest_is_named(plain):
    text = render_card(plain / "checkpoint-600")
    for row in ("| updates | 600 |", "| loss, last logged | 2.5 |", "| learning rate, highest logged | 0.00025 |"):
        assert row in text, row
    assert "`eval`, after update 600:" in text and "| exact_match | 0.5 |" in text and "0.75" not in text
    missing = next(line for line in text.splitlines() if line.startswith("Not recorded in the model's folder"))
    for what in ("data", "weights that it started from", "arguments", "`training_args.bin`, a pickle", "machine"):
        assert what in missing, what
    assert "the updates" not in missing and "Trained with the regulariser" not in text
    assert text.startswith("---") and text.count("\n# plain\n") == 1  # not "checkpoint-600"
    assert ModelCard(text).data.eval_results is None, "on what it was measured is not known"
    assert_whole(text)
    assert not (plain.parent / "opened").exists(), "the pickled arguments are never opened"


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


def test_each_data_set_of_an_evaluation_is_shown(plain):
    state = trainer_state()
    state["log_history"] += [
        evaluation(600, prefix=f"eval_{name}", bleu=bleu) for name, bleu in (("web", 31), ("news", 29.5))
    ]
    write_json(plain / "trainer_state.json", state)
    text = render_card(plain, dataset="me/pairs")
    assert "`eval_web`, after update 600:\n\n| metric | value |\n|---|---:|\n| bleu | 31 |" in text
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
    result = data.eval_results[0]
    assert (result.dataset_name, result.metric_type, result.metric_value) == ("me/number-words", "exact_match", 0.5)
    assert "from `en` to `fr`" in render_card(plain, language=["en", "fr"])


def test_the_card_of_the_trainer_is_a_source(plain):
    told = {"language": "de", "finetuned_from": "me/base", "dataset": "Pairs", "dataset_tags": "me/pairs"}
    (plain / "README.md").write_text(TrainingSummary("plain", **told).to_model_card(), encoding="utf-8")
    for _ in range(2):  # and that which was made of it
        text = write_card(plain).read_text(encoding="utf-8")
        data = ModelCard(text).data
        assert (data.base_model, data.language, data.datasets) == ("me/base", ["de"], ["me/pairs"])
        assert "[me/base](https://huggingface.co/me/base)" in text


def test_a_checkpoint_of_a_run_has_the_settings_of_the_run(tmp_path):
    run = write_documented_run(tmp_path / "run")
    shutil.copytree(write_plain_output(tmp_path / "plain") / "checkpoint-200", run / "checkpoint-200")
    text = render_card(run / "checkpoint-200")
    assert "| learning rate, peak | 0.005 |" in text and "| updates | 200 |" in text and "2,400" not in text
    assert "from `de` to `no`" in text and "# little" in text


@pytest.mark.parametrize("verb", [["card"], ["publish", "--repo-id", "me/little", "--dry-run"]])
def test_an_exported_model_is_refused_and_its_place_on_the_hub_is_told(plain, verb, capsys):
    """The card would say that AutoModel loads what has no weights; graphs beside the weights do not disturb."""
    (plain / "encoder_model.onnx").touch()
    assert cli.main([*verb, "--model", str(plain)]) == 2
    assert f"hf upload OWNER/NAME {plain} onnx" in capsys.readouterr().err
    (plain / "model.safetensors").touch()
    assert "ONNX" not in render_card(plain)


def test_a_metric_that_is_called_runtime_is_no_other_evaluation():
    logged = {"eval_decoder_runtime": 3.0, "eval_bleu": 20.0, "eval_runtime": 1.0, "epoch": 1.0}
    assert evaluation_of(logged) == ("eval", {"decoder_runtime": 3.0, "bleu": 20.0})
    assert evaluation_of({"train_runtime": 1.0, "train_loss": 2.0}) is None


# Other kinds of model

DECODERS = {
    "llama_relu": (
        "4 heads that share 2 of keys",
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
def test_the_programs_of_the_card_of_a_classifier_run(channels, tmp_path, monkeypatch, capsys):
    model = vision_model(num_channels=channels)
    model.save_pretrained(tmp_path / "model")
    size = dict(zip(("height", "width"), model.config.patch_grid, strict=True))
    ViTImageProcessor(size={name: 4 * length for name, length in size.items()}).save_pretrained(tmp_path / "model")
    Image.new("RGB", (11, 5), "red").save(tmp_path / "picture.png")
    monkeypatch.chdir(tmp_path)
    text = render_card(tmp_path / "model", repo_id="me/tiny")
    assert_whole(text)
    data = ModelCard(text).data
    assert data.pipeline_tag == "image-classification" and "arxiv:2309.08586" in data.tags
    assert f"for {model.config.num_labels} classes" in text and "tokenizer" not in text.lower()
    loading, alone = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "trust_remote_code=True" in alone and f'convert("{"L" if channels == 1 else "RGB"}")' in alone
    compile(alone, "card", "exec")
    assert "AutoImageProcessor, AutoModelForImageClassification" in loading
