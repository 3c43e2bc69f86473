"""A loss that is no number and an attention module without any weight are found, and end a run as the recipe says."""

import json
import math

import pytest
import torch
import yaml
from transformers import TrainerState

from benchmarks.studies.collection import collect
from reluformer.commands.train import train_and_document as train
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.training.run.divergence import CHECK_EVERY, DivergenceWatch
from reluformer.training.run.run_folder import RECORD_FILE

from ..tiny_run import tiny_model, tiny_trainer

UPDATES = 2 * CHECK_EVERY


def watched(folder, on_divergence, model=None, **arguments):
    trainer = tiny_trainer(folder, model, max_steps=UPDATES, logging_steps=UPDATES, **arguments)
    watch = DivergenceWatch(trainer, on_divergence)
    trainer.add_callback(watch)
    return trainer, watch


def model_with_a_dead_module(**fields):
    """Cross-attention whose every score is negative, whatever comes in."""
    model = tiny_model(encoder_layers=2, **fields)
    attention = model.model.decoder.layers[0].encoder_attn
    with torch.no_grad():
        for projection, value in ((attention.q_proj, 1.0), (attention.k_proj, -1.0)):
            projection.weight.zero_()
            projection.bias.fill_(value)
    return model


def test_a_training_that_goes_well_is_left_alone(tmp_path):
    trainer, watch = watched(tmp_path, "stop")
    trainer.train()
    assert (trainer.state.global_step, watch.divergence, watch.dead_modules) == (UPDATES, None, {})


@pytest.mark.parametrize("fields", [{}, {"attention_activation": "softmax"}])
def test_a_loss_that_is_not_finite_stops_the_training_in_one_line(tmp_path, fields):
    trainer, _ = watched(tmp_path, "stop", tiny_model(**fields), learning_rate=1e30)
    with pytest.raises(UserError, match=r"not finite since update \d+; lower training.learning_rate") as caught:
        trainer.train()
    assert "\n" not in str(caught.value)
    assert trainer.state.global_step <= 50


def test_a_loss_that_is_not_finite_is_recorded_with_its_update(tmp_path):
    trainer, watch = watched(tmp_path, "record", learning_rate=1e30)
    trainer.train()
    assert 2 <= watch.divergence.step <= trainer.state.global_step == CHECK_EVERY


@pytest.mark.parametrize("steps", [1, 2])
def test_a_loss_that_explodes_stops_the_training_in_one_line(tmp_path, steps):
    """It stays finite: nothing but its size tells."""
    trainer, _ = watched(tmp_path, "stop", learning_rate=3.0, gradient_accumulation_steps=steps)
    with pytest.raises(
        UserError, match=r"updates 1 to 25 is \S+, where guessing, all tokens alike, has 3\.2; lower training"
    ):
        trainer.train()


def test_a_loss_that_explodes_is_recorded_and_training_goes_on(tmp_path):
    trainer, watch = watched(tmp_path, "record", learning_rate=3.0)
    trainer.train()
    assert watch.divergence is None and trainer.state.global_step == UPDATES
    assert (watch.exploded["first"], watch.exploded["last"] % CHECK_EVERY) == (1, 0)
    assert watch.exploded["worst"] > 2 * watch.exploded["guessing"]


@pytest.mark.parametrize("steps", [1, 2])
def test_the_watched_cross_entropy_is_that_of_the_log(tmp_path, steps, monkeypatch):
    seen = []
    trainer, watch = watched(tmp_path, "stop", gradient_accumulation_steps=steps)
    mean = watch._mean_cross_entropy
    monkeypatch.setattr(watch, "_mean_cross_entropy", lambda update: seen.append(mean(update)) or seen[-1])
    trainer.train()
    logged = next(entry["cross_entropy"] for entry in trainer.state.log_history if "cross_entropy" in entry)
    # the log weighs tokens, the watch updates
    assert sum(seen) / len(seen) == pytest.approx(logged, rel=0.05)


def test_the_last_span_may_be_short_and_guessing_is_among_the_targets(tmp_path):
    model = tiny_model(decoder_vocab_size=40, share_encoder_decoder_embeddings=False)
    _, watch = watched(tmp_path, "record", model)
    watch.on_train_begin(None, TrainerState(global_step=25), None)
    assert watch._guessing == math.log(40)
    watch._cross_entropy = torch.tensor(30.0)  # of ten updates
    assert watch._mean_cross_entropy(35) == 3.0
    for times, update in ((1.9, 50), (2.1, 75)):
        watch._cross_entropy = torch.tensor(times * watch._guessing * CHECK_EVERY)
        watch.on_step_end(None, TrainerState(global_step=update, max_steps=100), None)
        assert (watch.exploded is None) == (times < 2)


def test_only_a_module_without_any_live_row_is_dead(tmp_path):
    _, watch = watched(tmp_path, "stop")
    watch._names = ["one row lives", "dead", "no rows"]
    watch._dead_and_rows = torch.tensor([[999.0, 1000.0], [1000 - 1e-5, 1000.0], [0.0, 0.0]], dtype=torch.float64)
    assert watch._dead_names() == ["dead"]


@pytest.mark.parametrize("weight", [0.01, 0.0])
def test_a_module_without_a_live_row_is_named(tmp_path, weight):
    trainer, _ = watched(tmp_path, "stop", model_with_a_dead_module(regularization_weight=weight))
    with pytest.raises(
        UserError, match=r"all rows of decoder\.layers\.0\.encoder_attn are dead .* since update 1 "
    ) as caught:
        trainer.train()
    assert "regularization_weight" in str(caught.value) and "\n" not in str(caught.value)
    assert trainer.state.global_step <= 50


def test_a_dead_module_is_recorded_and_training_goes_on(tmp_path):
    trainer, watch = watched(tmp_path, "record", model_with_a_dead_module())
    trainer.train()
    assert watch.divergence is None and trainer.state.global_step == UPDATES
    assert watch.dead_modules == {"decoder.layers.0.encoder_attn": {"first": 1, "last": UPDATES}}


def test_a_run_that_diverged_ends_with_a_record_and_without_a_model(tmp_path, capsys):
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    recipe = {
        "name": "tiny",
        "on_divergence": "record",
        "data": {"source_language": "de", "target_language": "en", "max_length": 64, "demo": {"train": 100, "test": 4}},
        "tokenizer": {"vocab_size": 330},
        "model": {**sizes, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 160},
        "batching": {"tokens_per_batch": 200},
        "averaging": {"last_checkpoints": 2},
        "training": {"output_dir": str(tmp_path / "tiny"), "max_steps": 100, "learning_rate": 1e30, "use_cpu": True},
    }
    recipe["training"] |= {"save_strategy": "steps", "save_steps": 30, "disable_tqdm": True, "logging_steps": 10}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    folder = train(load_recipe(tmp_path / "tiny.yaml"))
    assert "training diverged: the loss is not finite since update" in capsys.readouterr().out.splitlines()[-1]
    record = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
    assert record["diverged"]["step"] >= 2 and record["updates"] <= 50
    assert not (folder / "model.safetensors").exists() and not list(folder.glob("evaluation.*"))
    assert collect(folder)["evaluations"] == {}
