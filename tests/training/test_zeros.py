"""The schedule of zeros: weights by hand, a resumed run bit for bit, what stays in the model, and what is refused."""

import json
import math

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from reluformer import ReLUFormerDecoderConfig, ReLUFormerForCausalLM
from reluformer.configuration.errors import UserError
from reluformer.modeling_reluformer.layers_reluformer import SparseActivation
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
    shared = {"max_position_embeddings": 16, "activation_function": "relu", "dropout": 0.1}
    return ReLUFormerForCausalLM(ReLUFormerDecoderConfig(**{**sizes, **shared, **fields}))


class Seen(TrainerCallback):
    """What held in each update: the weight of L1, the probability and the threshold, in the first layer."""

    def __init__(self):
        self.rows = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        activation = model.model.layers[0].mlp.activation_fn
        probability = getattr(activation, "negative_probability", 0.0)
        self.rows.append((model.ffn_l1_weight, probability, getattr(activation, "threshold", 0.0)))


class StopEarly(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 3


def trainer(folder, model, *callbacks, **arguments):
    rows = [torch.arange(8) * (index % 5 + 1) + index for index in range(64)]
    options = {"max_steps": STEPS, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
               "learning_rate": 5e-3, "save_steps": 5, "logging_steps": 1, "use_cpu": True, "report_to": [],
               "disable_tqdm": True}  # fmt: skip
    training = TrainingArguments(str(folder), **{**options, **arguments})
    data = [{"input_ids": row % 30, "labels": row % 30} for row in rows]
    return Trainer(model, training, train_dataset=data, callbacks=list(callbacks))


def test_the_weights_of_the_stages_by_hand():
    zeros = ZerosCallback(l1_weights=[0.1, 0.5, 0.3], l1_steps=[10, 20, 40])
    assert [zeros.l1_weight(step) for step in (0, 9, 10)] == [0.1, 0.1, 0.1]
    # w_1 + (w_2 - w_1) (1 + sin(-pi/2 + pi (t - T_1) / (T_2 - T_1))) / 2, as the paper writes it
    for step in (12, 15, 19):
        expected = 0.1 + 0.2 * (1 + math.sin(-math.pi / 2 + math.pi * (step - 10) / 10))
        assert zeros.l1_weight(step) == pytest.approx(expected)
    assert zeros.l1_weight(30) == pytest.approx(0.4) and zeros.l1_weight(40) == zeros.l1_weight(99) == 0.3
    assert ZerosCallback().l1_weight(3) is None


@pytest.mark.parametrize(("share", "steps", "relu_steps"), [(0.2, 10, 2), (0.1, 5, 1), (0.01, 10, 1), (1.0, 4, 4)])
def test_the_last_updates_are_a_relus(share, steps, relu_steps):
    zeros = ZerosCallback(stochastic_probability=0.7, relu_share=share)
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
    again = trainer(tmp_path / "again", make(), ZerosCallback(**SCHEDULE), later := Seen())
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-5"))
    assert later.rows == seen.rows[5:]
    for (name, one), two in zip(whole.model.named_parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, two), name


def test_the_threshold_stays_in_the_model_and_nothing_else(tmp_path):
    callback = ZerosCallback(l1_weights=[0.02], l1_steps=[4], threshold=0.05, stochastic_probability=0.5)
    run = trainer(tmp_path, make(), callback)
    run.train()
    model, activation = run.model, run.model.model.layers[1].mlp.activation_fn
    assert model.ffn_l1_weight == 0 and model.config.ffn_l1_weight == 0
    assert (activation.threshold, activation.negative_probability) == (0.05, 0)
    # ProSparse sets it when training is over: no checkpoint from before has it
    held = json.loads((tmp_path / "checkpoint-10" / "config.json").read_text())
    assert held["ffn_threshold"] == 0 and held["ffn_l1_weight"] == 0
    run.save_model(tmp_path / "saved")
    loaded, ids = ReLUFormerForCausalLM.from_pretrained(tmp_path / "saved").eval(), torch.arange(8)[None]
    assert loaded.config.ffn_threshold == 0.05
    assert torch.equal(loaded(ids).logits, model.eval()(ids).logits)


@pytest.mark.parametrize("threshold_step", [None, 9])
def test_a_run_that_ends_early_is_a_relus_without_the_threshold(tmp_path, threshold_step, caplog):
    callback = ZerosCallback(stochastic_probability=0.5, threshold=0.05, threshold_step=threshold_step)
    run = trainer(tmp_path, make(activation_sparsity_pattern=[0.9, 0.0]), callback, StopEarly(), save_strategy="no")
    run.train()
    activation = run.model.model.layers[0].mlp.activation_fn
    assert run.state.global_step == 3 and run.model.config.ffn_threshold == 0
    assert (activation.threshold, activation.negative_probability) == (0, 0)
    assert "no threshold is set: training ended at update 3" in caplog.text


def test_the_loss_of_evaluation_is_that_of_the_model_whatever_the_schedule():
    plain, ids = {"dropout": 0.0, "regularization_weight": 0.0}, torch.arange(8)[None]
    model = make(**plain)
    model.scheduled_ffn_l1_weight = 0.5
    found = model.train()(ids, labels=ids)
    assert found.loss.item() == pytest.approx((found.cross_entropy + 0.5 * found.ffn_l1).item())
    found = model.eval()(ids, labels=ids)
    assert found.loss.item() == pytest.approx(found.cross_entropy.item()) and found.ffn_l1 > 0


def test_the_draw_is_as_fine_in_bfloat16():
    activation = SparseActivation(torch.nn.ReLU()).train()
    activation.negative_probability = 0.001
    torch.manual_seed(0)
    drawn = activation(torch.full((1_000_000,), -1.0, dtype=torch.bfloat16)) != 0
    assert 0.0008 < float(drawn.float().mean()) < 0.0012  # numbers of bfloat16 are 1/256 apart


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"l1_weights": [0.1]}, r"l1_weights=\[0.1\] and l1_steps=\[\]"),
        ({"l1_weights": [0.1, 0.2], "l1_steps": [3, 3]}, r"l1_steps=\[3, 3\]; .*rising from above 0"),
        ({"l1_weights": [0.1], "l1_steps": [0]}, "rising from above 0"),
        ({"l1_weights": [-0.1], "l1_steps": [3]}, r"l1_weights=\[-0.1\] .* must be at least 0"),
        ({"threshold_step": 3}, "threshold_step=3 needs a threshold above 0"),
        ({"stochastic_probability": 1.5}, "stochastic_probability=1.5 .* from 0 to 1"),
    ],
)
def test_what_makes_no_schedule_is_refused(arguments, named):
    with pytest.raises(UserError, match=named):
        ZerosCallback(**arguments)


@pytest.mark.parametrize(
    ("fields", "arguments", "named"),
    [
        ({"ffn_l1_weight": 0.1}, {"l1_weights": [0.1], "l1_steps": [2]}, "the model's ffn_l1_weight=0.1"),
        ({"activation_function": "gelu"}, {"stochastic_probability": 0.5}, "the model's activation is 'gelu'"),
        (None, {"threshold": 0.1}, "GPT2LMHeadModel is no model of this"),
    ],
)
def test_models_that_it_does_not_fit_are_refused(fields, arguments, named):
    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1)) if fields is None else make(**fields)
    with pytest.raises(UserError, match=named):
        ZerosCallback(**arguments).on_train_begin(None, None, None, model=model)
