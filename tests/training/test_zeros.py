"""The schedule of zeros: weights by hand, a resumed run bit for bit, what stays in the model, recipes, and what is refused."""

import json
import math

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from reluformer import (
    ReLUFormerConfig,
    ReLUFormerDecoderConfig,
    ReLUFormerForCausalLM,
    ReLUFormerForConditionalGeneration,
)
from reluformer.commands.train import train_and_document as train
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import load_recipe, parse_recipe
from reluformer.configuration.zeros import ZerosConfig
from reluformer.modeling_reluformer.layers_reluformer import SparseActivation
from reluformer.training.trainer import ReLUFormerTrainer
from reluformer.training.zeros import ZerosCallback

SCHEDULE = {
    "l1_weights": [0.01, 0.05],
    "l1_steps": [3, 9],
    "threshold": 0.05,
    "threshold_step": 7,
    "stochastic_probability": 0.6,
    "relu_share": 0.25,
}
STEPS = 12


def make(**fields):
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return ReLUFormerForCausalLM(
        ReLUFormerDecoderConfig(
            **sizes, max_position_embeddings=16, **{"activation_function": "relu", "dropout": 0.1, **fields}
        )
    )


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        start = torch.arange(8) * (index % 5 + 1) + index
        return {"input_ids": start % 30, "labels": start % 30}


class Seen(TrainerCallback):
    """What held in each update: the weight of L1, the probability and the threshold, in the first layer."""

    def __init__(self):
        self.rows = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        activation = model.model.layers[0].mlp.activation_fn
        probability = getattr(activation, "negative_probability", 0.0)
        self.rows.append((model.ffn_l1_weight, probability, getattr(activation, "threshold", 0.0)))


def trainer(folder, model, *callbacks, **arguments):
    options = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 5e-3,
    }
    run = {"save_steps": 5, "logging_steps": 1, "use_cpu": True, "report_to": [], "disable_tqdm": True}
    training = TrainingArguments(str(folder), **{**options, **run, **arguments})
    return Trainer(model, training, train_dataset=Rows(), callbacks=list(callbacks))


def test_the_weights_of_the_stages_by_hand():
    zeros = ZerosConfig(l1_weights=[0.1, 0.5, 0.3], l1_steps=[10, 20, 40])
    zeros.check()
    assert [zeros.l1_weight(step) for step in (0, 9, 10)] == [0.1, 0.1, 0.1]
    # w_1 + (w_2 - w_1) (1 + sin(-pi/2 + pi (t - T_1) / (T_2 - T_1))) / 2, as the paper writes it
    for step in (12, 15, 19):
        assert zeros.l1_weight(step) == pytest.approx(
            0.1 + 0.2 * (1 + math.sin(-math.pi / 2 + math.pi * (step - 10) / 10))
        )
    assert zeros.l1_weight(15) == pytest.approx(0.3)
    assert zeros.l1_weight(30) == pytest.approx(0.4) and zeros.l1_weight(40) == zeros.l1_weight(99) == 0.3
    assert ZerosConfig().l1_weight(3) is None
    zeros = ZerosConfig(stochastic_probability=0.7, relu_share=0.2)
    assert [zeros.negative_probability(step, 10) for step in (0, 7, 8, 9)] == [0.7, 0.7, 0, 0]
    for share, steps, relu_steps in ((0.7, 10, 7), (0.1, 5, 1), (0.01, 10, 1), (0.5, 1, 1), (1.0, 4, 4)):
        zeros = ZerosConfig(stochastic_probability=0.7, relu_share=share)
        found = [zeros.negative_probability(step, steps) for step in range(steps)]
        assert found == [0.7] * (steps - relu_steps) + [0.0] * relu_steps


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path):
    whole = trainer(tmp_path / "whole", make(), ZerosCallback(**SCHEDULE), seen := Seen())
    whole.train()
    expected = [(0.01, 0.6, 0.0)] * 3
    for step in range(3, STEPS):
        weight = 0.01 + 0.04 * (1 - math.cos(math.pi * (min(step, 9) - 3) / 6)) / 2
        expected.append((weight, 0.6 if step < 9 else 0.0, 0.05 if step >= 7 else 0.0))
    assert [tuple(row) for row in seen.rows] == [pytest.approx(row) for row in expected]
    for start in (5, 10):
        again = trainer(tmp_path / f"again{start}", make(), ZerosCallback(**SCHEDULE), later := Seen())
        again.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{start}"))
        assert later.rows == seen.rows[start:]
        for (name, one), two in zip(whole.model.named_parameters(), again.model.parameters(), strict=True):
            assert torch.equal(one, two), name
        logs = [[entry["loss"] for entry in run.state.log_history if "loss" in entry] for run in (whole, again)]
        assert logs[0] == logs[1]
    other = trainer(tmp_path / "other", make(), ZerosCallback(**{**SCHEDULE, "l1_weights": [0.01, 0.02]}))
    other.train()  # the schedule does something
    assert not all(torch.equal(*pair) for pair in zip(whole.model.parameters(), other.model.parameters(), strict=True))


def test_the_threshold_stays_in_the_model_and_nothing_else(tmp_path):
    callback = ZerosCallback(l1_weights=[0.02], l1_steps=[4], threshold=0.05, stochastic_probability=0.5)
    run = trainer(tmp_path, make(), callback)
    run.train()
    model = run.model
    assert model.ffn_l1_weight == 0 and model.config.ffn_l1_weight == 0
    activation = model.model.layers[1].mlp.activation_fn
    assert isinstance(activation, SparseActivation) and (activation.threshold, activation.negative_probability) == (
        0.05,
        0,
    )
    # ProSparse sets it when training is over: no checkpoint from before has it
    held = json.loads((tmp_path / "checkpoint-10" / "config.json").read_text())
    assert held["ffn_threshold"] == 0 and held["ffn_l1_weight"] == 0
    run.save_model(tmp_path / "saved")
    loaded, ids = ReLUFormerForCausalLM.from_pretrained(tmp_path / "saved").eval(), torch.arange(8)[None]
    assert loaded.config.ffn_threshold == 0.05
    assert torch.equal(loaded(ids).logits, model.eval()(ids).logits)


class StopEarly(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 3


@pytest.mark.parametrize("threshold_step", [None, 9])
def test_a_run_that_ends_early_is_a_relus_without_the_threshold(tmp_path, threshold_step):
    callback = ZerosCallback(stochastic_probability=0.5, threshold=0.05, threshold_step=threshold_step)
    run = trainer(tmp_path, make(), callback, StopEarly(), save_strategy="no")
    run.train()
    activation = run.model.model.layers[0].mlp.activation_fn
    assert run.state.global_step == 3 and run.model.config.ffn_threshold == 0
    assert (activation.threshold, activation.negative_probability) == (0, 0)


def test_the_loss_of_evaluation_is_that_of_the_model_whatever_the_schedule():
    plain, ids = {"dropout": 0.0, "regularization_weight": 0.0}, torch.arange(8)[None]
    model = make(**plain)
    model.scheduled_ffn_l1_weight = 0.5
    found = model.train()(ids, labels=ids)
    assert found.loss.item() == pytest.approx((found.cross_entropy + 0.5 * found.ffn_l1).item())
    found = model.eval()(ids, labels=ids)
    assert found.loss.item() == pytest.approx(found.cross_entropy.item()) and found.ffn_l1 > 0
    model = make(**plain, ffn_l1_weight=0.5).eval()  # what the configuration says is the model's own
    found = model(ids, labels=ids)
    assert found.loss.item() == pytest.approx((found.cross_entropy + 0.5 * found.ffn_l1).item())


@pytest.mark.parametrize(("last", "warned"), [(STEPS, False), (STEPS + 1, True)])
def test_a_stage_that_ends_after_the_training_is_told(tmp_path, caplog, last, warned):
    run = trainer(tmp_path, make(), ZerosCallback(l1_weights=[0.1], l1_steps=[last]), StopEarly(), save_strategy="no")
    run.train()
    assert (f"zeros.l1_steps: update {last} is never reached" in caplog.text) == warned


def test_stochastic_activations_of_some_layers(tmp_path):
    model = make(activation_sparsity_pattern=[0.9, 0.0])
    run = trainer(tmp_path, model, ZerosCallback(stochastic_probability=0.5), StopEarly(), save_strategy="no")
    run.train()
    assert run.state.global_step == 3


def test_the_draw_is_as_fine_in_bfloat16():
    activation = SparseActivation(torch.nn.ReLU()).train()
    activation.negative_probability = 0.001
    torch.manual_seed(0)
    drawn = activation(torch.full((1_000_000,), -1.0, dtype=torch.bfloat16)) != 0
    assert 0.0008 < float(drawn.float().mean()) < 0.0012  # numbers of bfloat16 are 1/256 apart


def test_l1_makes_zeros(tmp_path):
    shares = []
    for weights in ([], [0.02]):
        seen = []
        callback = ZerosCallback(l1_weights=weights, l1_steps=[1] * len(weights), threshold=1e-9)
        run = trainer(tmp_path, make(dropout=0.0), callback, max_steps=60, save_strategy="no", report_to=[])
        run.train()
        for layer in run.model.model.layers:
            layer.mlp.fc2.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
        run.model.eval()(torch.arange(8)[None])
        shares.append(float(torch.cat([each.flatten() != 0 for each in seen]).double().mean()))
    assert shares[1] < 0.6 * shares[0], shares


def test_a_recipe_has_the_schedule_and_goes_on_exactly(tmp_path, monkeypatch):
    zeros = {"l1_weights": [0.001, 0.01], "l1_steps": [2, 6], "threshold": 0.01, "stochastic_probability": 0.5}
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "activation_function": "relu"}
    recipe = {
        "name": "tiny",
        "zeros": zeros,
        "data": {"source_language": "de", "target_language": "en", "max_length": 64, "demo": {"train": 60}},
        "tokenizer": {"vocab_size": 330},
        "model": {**sizes, **heads, "max_position_embeddings": 64},
        "batching": {"tokens_per_batch": 400},
        "evaluation": {"splits": []},
        "training": {"max_steps": 8, "logging_steps": 2, "save_steps": 2, "use_cpu": True, "report_to": "none"},
    }
    recipe["training"] |= {"output_dir": str(tmp_path / "run"), "save_strategy": "steps", "learning_rate": 0.01}
    recipe_file = tmp_path / "tiny.yaml"
    recipe_file.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    folder = train(load_recipe(recipe_file))
    assert json.loads((folder / "config.json").read_text())["ffn_threshold"] == 0.01
    logs = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    assert logs[0]["ffn_l1"] > 0 and logs[0]["loss"] > logs[0]["cross_entropy"]

    options = ["--config", str(recipe_file), "--training.output_dir", str(tmp_path / "broken")]
    original = ReLUFormerTrainer.log

    def log_until_killed(self, logs, start_time=None):
        original(self, logs, start_time)
        if self.state.global_step == 6:
            raise KeyError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(ReLUFormerTrainer, "log", log_until_killed)
        with pytest.raises(KeyError, match="killed"):
            train(parse_recipe(options))
    with pytest.raises(UserError, match=r"zeros\.threshold"):  # another schedule would be another run
        train(parse_recipe([*options, "--zeros.threshold", "0.02"]))
    again = train(parse_recipe(options))
    assert json.loads((again / "training_record.json").read_text())["resumed_from"].endswith("checkpoint-4")
    one, two = (load_file(each / "model.safetensors") for each in (folder, again))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"l1_weights": [0.1]}, "zeros: 1 l1_weights and 0 l1_steps"),
        ({"l1_weights": 0.1, "l1_steps": 100}, "zeros.l1_weights: 0.1 must be a list, of one number for each stage"),
        ({"l1_weights": [-0.1], "l1_steps": [3]}, "zeros.l1_weights: [-0.1] must be finite numbers"),
        ({"l1_weights": [0.1, 0.2], "l1_steps": [3, 3]}, "zeros.l1_steps: [3, 3] must rise from above 0"),
        ({"threshold": -1.0}, "zeros.threshold: -1.0 must be"),
        ({"threshold": "0.1"}, "zeros.threshold: '0.1' must be a number"),
        ({"l1_weights": [None], "l1_steps": [3]}, "zeros.l1_weights: None must be a number"),
        ({"l1_weights": [0.1], "l1_steps": [1.5]}, "zeros.l1_steps: 1.5 must be a whole number"),
        ({"threshold": 0.1, "threshold_step": True}, "zeros.threshold_step: True must be a whole number"),
        ({"relu_share": None}, "zeros.relu_share: None must be a number"),
        ({"threshold_step": 3}, "zeros.threshold_step: 3 must be at least 0, and needs zeros.threshold"),
        ({"stochastic_probability": 1.5}, "zeros.stochastic_probability: 1.5 must be from 0 to 1"),
        ({"stochastic_probability": 0.5, "relu_share": 0.0}, "zeros.relu_share: 0 leaves no update"),
        ({}, "give a ZerosConfig, or its arguments by name"),
    ],
)
def test_what_makes_no_schedule_is_refused(fields, named):
    with pytest.raises(UserError) as caught:
        ZerosCallback(**fields)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("model", "fields", "named"),
    [
        (lambda: make(ffn_l1_weight=0.1), {"l1_weights": [0.1], "l1_steps": [2]}, "the model has ffn_l1_weight=0.1"),
        (lambda: make(activation_function="gelu"), {"stochastic_probability": 0.5}, "the model's activation is 'gelu'"),
        (
            lambda: make(activation_sparsity_pattern=0.9),
            {"stochastic_probability": 0.5},
            "activation_sparsity_pattern=0.9, which leaves no score below 0",
        ),
        (
            lambda: GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=30)),
            {"threshold": 0.1},
            "no model of this",
        ),
        (
            lambda: ReLUFormerForConditionalGeneration(
                ReLUFormerConfig(
                    vocab_size=30, d_model=8, encoder_layers=1, decoder_layers=1, activation_function="softmax"
                )
            ),
            {"threshold": 0.1},
            "softmax memories",
        ),
    ],
)
def test_models_that_it_does_not_fit_are_refused(model, fields, named, tmp_path):
    with pytest.raises(UserError, match=named):
        trainer(tmp_path, model(), ZerosCallback(**fields)).train()
