"""`ModelCardCallback` with the plain `Seq2SeqTrainer`: what it records, and that the Trainer writes our card."""

import json
import shutil
import sys

import pytest
from huggingface_hub import ModelCard
from transformers import BertConfig, BertForMaskedLM, Seq2SeqTrainer, Seq2SeqTrainingArguments

from reluformer import ReLUFormerForConditionalGeneration
from reluformer.configuration.errors import UserError
from reluformer.hub_cards.card import render_card
from reluformer.hub_cards.model_card_callback import ModelCardCallback, evaluation_of

from ..training.tiny_run import collate, tiny_model, tiny_pairs

REPO, TOKEN = "tester/by-callback", "hf_abcdefgh12345"


def plain_trainer(folder, model, **arguments):
    """Its score is the worse the later it is taken: the best checkpoint is the first."""
    scores = iter([9.0, 5.0, 4.0, 3.0])
    settings = {
        "max_steps": 4,
        "eval_steps": 2,
        "save_steps": 2,
        "logging_steps": 2,
        "eval_strategy": "steps",
        "seed": 7,
    }
    settings |= {
        "per_device_train_batch_size": 3,
        "gradient_accumulation_steps": 2,
        "learning_rate": 0.01,
        "warmup_steps": 0.5,
    }
    settings |= {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "hub_token": TOKEN, **arguments}
    return Seq2SeqTrainer(
        model,
        Seq2SeqTrainingArguments(str(folder), **settings),
        data_collator=collate,
        train_dataset=tiny_pairs(),
        eval_dataset=tiny_pairs(4, seed=1),
        compute_metrics=lambda prediction: {"goodness": next(scores)},
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a training with the callback, and the Trainer."""
    place = tmp_path_factory.mktemp("home")
    tiny_model().save_pretrained(place / "base")
    model = ReLUFormerForConditionalGeneration.from_pretrained(place / "base")
    best = {"load_best_model_at_end": True, "metric_for_best_model": "goodness", "greater_is_better": True}
    trainer = plain_trainer(place / "out", model, hub_model_id=REPO, **best)
    trainer.add_callback(ModelCardCallback(trainer, language=["de", "en"], license="cc0-1.0", dataset="me/pairs"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(place / "train.py"), "--pairs", str(place / "pairs.tsv"), "--seed", "7"])
        trainer.train()
    trainer.save_model()
    return place / "out", trainer


@pytest.fixture
def folder(trained, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(trained[0], tmp_path / "out")


def test_the_card_holds_what_a_runs_card_holds(folder):
    text = render_card(folder)
    rows = ("| updates | 4 |", "| examples an update | 6 |", "| learning rate, peak | 0.01 |", "| seed | 7 |")
    rows += ("| schedule | linear, 2 warm-up updates |", "| best checkpoint | update 2, chosen by a metric of 9 |")
    rows += ("| weights of update | 2 |", "`eval`, of these weights:", "| goodness | 9 |", "| examples a second,")
    for row in rows:
        assert row in text, row
    for part in ("Trained with the regulariser", "Measured: ", "(training_curve.png)", "which is not on the Hub"):
        assert part in text, part
    assert "Not recorded" not in text and "goodness | 5" not in text
    data = ModelCard(text).data
    assert (data.license, data.language, data.datasets) == ("cc0-1.0", ["de", "en"], ["me/pairs"])
    assert data.eval_results[0].metric_value == 9.0
    assert (folder / "training_curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_record_holds_no_secret_and_no_path(trained):
    text = (trained[0] / "training_record.json").read_text(encoding="utf-8")
    assert TOKEN not in text and str(trained[0].parent) not in text
    record = json.loads(text)
    assert record["settings"]["initialize_from"] == "…/base"
    assert record["command"] == "python train.py --pairs …/pairs.tsv --seed 7"


def test_label_smoothing_of_the_trainer_is_told(folder):
    """It leaves out the regulariser, which the card must not claim then."""
    record = json.loads((folder / "training_record.json").read_text())
    record["settings"]["training"]["label_smoothing_factor"] = 0.2
    (folder / "training_record.json").write_text(json.dumps(record))
    text = render_card(folder)
    assert "trains without the model's regulariser" in text and "| label smoothing by the Trainer | 0.2 |" in text


def test_the_trainer_writes_this_card(trained):
    folder, trainer = trained
    trainer.hub_model_id = REPO  # as `push_to_hub` does
    trainer.create_model_card(model_name="by-callback", language="nl")
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert f'from_pretrained("{REPO}")' in text and "\n# by-callback\n" in text
    assert ModelCard(text).data.language == ["nl"] and ModelCard(text).data.license == "cc0-1.0"


def test_evaluations_after_the_training_are_added(trained):
    folder, trainer = trained
    trainer.predict(tiny_pairs(3, seed=2), metric_key_prefix="test")
    evaluations = json.loads((folder / "training_record.json").read_text())["evaluations"]
    assert evaluations["test"]["goodness"] < 9 and evaluations["eval"]["goodness"] == 9
    assert not any("runtime" in name or "per_second" in name for name in evaluations["test"])
    assert "`test`, of these weights:" in render_card(folder)


def test_a_metric_that_is_called_runtime_is_no_other_evaluation():
    logged = {"eval_decoder_runtime": 3.0, "eval_bleu": 20.0, "eval_runtime": 1.0, "epoch": 1.0}
    assert evaluation_of(logged) == {"eval": {"decoder_runtime": 3.0, "bleu": 20.0}}
    assert evaluation_of({"train_runtime": 1.0, "train_loss": 2.0}) == {}


def test_other_models_are_refused(tmp_path):
    small = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    with pytest.raises(UserError, match="ModelCardCallback: the Trainer: holds a model of type 'bert'"):
        ModelCardCallback(plain_trainer(tmp_path, BertForMaskedLM(small)))
