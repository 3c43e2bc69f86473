"""A loss that is no number and an attention module without any weight are found, and end a run as the recipe says."""

import json
import logging
import math
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerState

from reluformer.commands.train import train_and_document as train
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import parse_recipe
from reluformer.training.run.divergence import DivergenceWatch
from reluformer.training.run.run_folder import RECORD_FILE

from ..tiny_run import tiny_model, tiny_trainer

UPDATES, LOGGED_EVERY = 20, 10


def watched(folder, on_divergence, model=None, **arguments):
    trainer = tiny_trainer(folder, model, max_steps=UPDATES, logging_steps=LOGGED_EVERY, **arguments)
    trainer.args.logging_nan_inf_filter = False  # as in a recipe
    watch = DivergenceWatch(trainer, on_divergence)
    trainer.add_callback(watch)
    return trainer, watch


def model_with_a_dead_module():
    """Cross-attention whose every score is negative, whatever comes in."""
    model = tiny_model(encoder_layers=2, decoder_layers=2)
    attention = model.model.decoder.layers[0].encoder_attn
    with torch.no_grad():
        for projection, value in ((attention.q_proj, 1.0), (attention.k_proj, -1.0)):
            projection.weight.zero_()
            projection.bias.fill_(value)
    return model


@pytest.mark.parametrize("every", [LOGGED_EVERY, 500])  # the mean at the end tells where nothing was logged
def test_a_loss_that_is_not_finite_stops_the_training_in_one_line(tmp_path, every):
    trainer, _ = watched(tmp_path, "stop", learning_rate=1e30)
    trainer.args.logging_steps = trainer.state.logging_steps = every
    with pytest.raises(
        UserError, match=r"the loss is not finite at update \d+; lower training.learning_rate"
    ) as caught:
        trainer.train()
    assert "\n" not in str(caught.value)


def test_a_loss_that_explodes_stops_the_training_in_one_line(tmp_path):
    """It stays finite: nothing but its size tells."""
    trainer, _ = watched(tmp_path, "stop", learning_rate=3.0)
    with pytest.raises(UserError, match=r"mean cross-entropy is \S+ at update 10, that of guessing is 3\.2; lower"):
        trainer.train()


def test_a_loss_that_explodes_is_recorded_and_training_goes_on(tmp_path):
    trainer, watch = watched(tmp_path, "record", learning_rate=3.0)
    trainer.train()
    assert watch.divergence is None and trainer.state.global_step == UPDATES
    assert (watch.exploded["first"], watch.exploded["last"]) == (LOGGED_EVERY, UPDATES)
    assert watch.exploded["worst"] > 2 * watch.exploded["guessing"]


def test_guessing_is_among_the_targets_and_twice_it_is_the_limit(tmp_path):
    _, watch = watched(tmp_path, "record", tiny_model(decoder_vocab_size=40, share_encoder_decoder_embeddings=False))
    for times in (1.9, 2.1):
        logs = {"loss": 1.0, "cross_entropy": times * math.log(40)}
        watch.on_log(None, TrainerState(), SimpleNamespace(), logs=logs)
        assert (watch.exploded is None) == (times < 2)


def test_only_a_module_without_any_live_row_is_dead(tmp_path):
    _, watch = watched(tmp_path, "stop")  # encoder self, decoder self, decoder cross
    watch._dead_and_rows = torch.tensor([[999.0, 1000.0], [1000 - 1e-5, 1000.0], [0.0, 0.0]], dtype=torch.float64)
    assert watch._names_of_the_dead() == ["decoder.layers.0.self_attn"]


def test_a_module_without_a_live_row_is_named(tmp_path):
    trainer, _ = watched(tmp_path, "stop", model_with_a_dead_module())
    with pytest.raises(
        UserError, match=r"all rows of decoder\.layers\.0\.encoder_attn are dead at update 10"
    ) as caught:
        trainer.train()
    assert "regularization_weight" in str(caught.value) and "\n" not in str(caught.value)


def test_a_dead_module_is_recorded_and_training_goes_on(tmp_path, caplog):
    trainer, watch = watched(tmp_path, "record", model_with_a_dead_module())
    trainer.train()
    assert watch.divergence is None and trainer.state.global_step == UPDATES
    told = [each.message for each in caplog.records if each.levelno == logging.WARNING and "diverges" in each.message]
    assert len(told) == 1 and "all rows of decoder.layers.0.encoder_attn are dead at update 10" in told[0]
    assert not trainer.model.base_model._forward_hooks, "a model that is trained once more is counted once"
    assert watch.dead_modules == {"decoder.layers.0.encoder_attn": {"first": LOGGED_EVERY, "last": UPDATES}}


def test_a_run_that_diverged_ends_with_a_record_and_without_a_model(recipe_file, capsys):
    options = {"on_divergence": "record", "training.learning_rate": 1e30, "training.max_steps": 100}
    options |= {"training.save_steps": 30, "training.eval_strategy": "no"}
    words = [f"--{name}={value}" for name, value in options.items()]
    folder = train(parse_recipe(["--config", str(recipe_file), *words]))
    assert "training diverged: the loss is not finite at update" in capsys.readouterr().out.splitlines()[-1]
    record = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
    assert record["diverged"]["step"] == record["updates"] == 2  # of the first log
    assert not (folder / "model.safetensors").exists() and not list(folder.glob("evaluation.*"))
