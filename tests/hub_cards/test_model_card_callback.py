"""`ModelCardCallback` with the plain `Seq2SeqTrainer`: what it records, and that the Trainer writes our card."""

import json
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
TIMES = {"max_steps": 4, "eval_steps": 2, "save_steps": 2, "logging_steps": 2, "eval_strategy": "steps"}
UPDATES = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "learning_rate": 0.01}
OTHERS = {"warmup_steps": 0.5, "seed": 7, "use_cpu": True, "report_to": "none", "disable_tqdm": True}


def plain_trainer(folder, model, **arguments):
    """Its score is the worse the later it is taken: the best checkpoint is the first."""
    scores = iter([9.0, 5.0, 4.0, 3.0])
    return Seq2SeqTrainer(
        model,
        Seq2SeqTrainingArguments(str(folder), **TIMES, **UPDATES, **OTHERS, hub_token=TOKEN, **arguments),
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


SHOWN = (
    *("| updates | 4 |", "| examples an update | 6 |", "| learning rate, peak | 0.01 |", "| seed | 7 |"),
    *("| schedule | linear, 2 warm-up updates |", "| best checkpoint | update 2, chosen by a metric of 9 |"),
    *("| weights of update | 2 |", "`eval`, of these weights:", "| goodness | 9 |", "| examples a second,"),
    *("Trained with the regulariser", "Measured: ", "(training_curve.png)", "which is not on the Hub"),
    "python train.py --pairs …/pairs.tsv --seed 7",
)


def test_the_card_holds_what_a_runs_card_holds(trained):
    text = render_card(trained[0])
    for part in SHOWN:
        assert part in text, part
    assert "Not recorded" not in text and "goodness | 5" not in text
    data = ModelCard(text).data
    assert (data.license, data.language, data.datasets) == ("cc0-1.0", ["de", "en"], ["me/pairs"])
    assert data.eval_results[0].metric_value == 9.0


def test_the_record_holds_no_secret_and_no_path(trained):
    text = (trained[0] / "training_record.json").read_text(encoding="utf-8")
    assert TOKEN not in text and str(trained[0].parent) not in text
    assert json.loads(text)["settings"]["initialize_from"] == "…/base"


def test_the_trainer_writes_this_card_and_tells_of_its_own_label_smoothing(trained):
    """Which leaves out the regulariser: the card must not claim it then."""
    folder, trainer = trained
    path = folder / "training_record.json"
    before = path.read_text()
    record = json.loads(before)
    record["settings"]["training"]["label_smoothing_factor"] = 0.2
    path.write_text(json.dumps(record))
    trainer.hub_model_id = REPO  # as `push_to_hub` does
    trainer.create_model_card("nl", model_name="by-callback", tags=["translation"], finetuned_from="a/b")
    path.write_text(before)
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "trains without the model's regulariser" in text and "| label smoothing by the Trainer | 0.2 |" in text
    assert f'from_pretrained("{REPO}")' in text and "\n# by-callback\n" in text
    assert ModelCard(text).data.language == ["nl"] and ModelCard(text).data.license == "cc0-1.0"


def test_evaluations_after_the_training_are_added(trained):
    folder, trainer = trained
    trainer.predict(tiny_pairs(3, seed=2), metric_key_prefix="test")
    evaluations = json.loads((folder / "training_record.json").read_text())["evaluations"]
    assert evaluations["test"]["goodness"] < 9 and evaluations["eval"]["goodness"] == 9
    assert "`test`, of these weights:" in render_card(folder)


def test_evaluations_during_another_training_are_not_those_of_the_one_before(trained, monkeypatch):
    folder, trainer = trained
    (callback,) = (each for each in trainer.callback_handler.callbacks if isinstance(each, ModelCardCallback))
    monkeypatch.setattr(callback, "_record", callback._record)
    before = (folder / "training_record.json").read_text()
    callback.on_train_begin(trainer.args, trainer.state, trainer.control)
    callback.on_evaluate(trainer.args, metrics={"other_runtime": 1.0, "other_goodness": 0.5})
    assert (folder / "training_record.json").read_text() == before


def test_the_prefix_of_an_evaluation_is_told_from_its_metrics():
    logged = {"eval_decoder_runtime": 3.0, "eval_bleu": 20.0, "eval_runtime": 1.0, "eval_samples_per_second": 2.0}
    assert evaluation_of(logged) == {"eval": {"decoder_runtime": 3.0, "bleu": 20.0}}
    assert evaluation_of({"train_runtime": 1.0, "train_loss": 2.0}) == {}


def test_other_models_are_refused(tmp_path):
    small = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    with pytest.raises(UserError, match="ModelCardCallback: the Trainer: holds a model of type 'bert'"):
        ModelCardCallback(plain_trainer(tmp_path, BertForMaskedLM(small)))
