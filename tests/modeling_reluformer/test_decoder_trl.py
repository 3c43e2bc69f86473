"""TRL's `SFTTrainer` on the decoder-only model: which loss it takes, and rows that are padded, joined or packed."""

import copy

import pytest
import torch
from datasets import Dataset
from transformers import Trainer, TrainingArguments

from reluformer import ReLUFormerForCausalLM

from .decoder_cases import Counting, decoder_config, padded_collator, word_tokenizer

trl = pytest.importorskip("trl", reason="needs the extra trl: pip install 'reluformer[trl]'")

ROWS = len(Counting())
OPTIONS = {
    "max_steps": 6,
    "learning_rate": 1e-2,
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
    "save_strategy": "no",
}
WAYS = {
    "padded": {"per_device_train_batch_size": ROWS},
    "padding_free": {"per_device_train_batch_size": ROWS, "padding_free": True, "max_length": None},
    "packing": {"per_device_train_batch_size": 1, "packing": True, "max_length": 1024},
    "accumulation": {"per_device_train_batch_size": ROWS // 4, "gradient_accumulation_steps": 4},
}


class WithOwnLoss(trl.SFTTrainer):
    """As docs/decoder.md has it."""

    compute_loss = Trainer.compute_loss


def new_model(regularization_weight: float) -> ReLUFormerForCausalLM:
    torch.manual_seed(0)
    fields = {"attention_activation": "relu", "attention_gamma": 4, "regularization_weight": regularization_weight}
    return ReLUFormerForCausalLM(decoder_config(**fields))


def fine_tuned(trainer_class: type, tmp_path, regularization_weight: float = 0.1, **options) -> ReLUFormerForCausalLM:
    """After updates of all rows, however they are put into batches."""
    model, rows = new_model(regularization_weight), Counting()
    arguments = trl.SFTConfig(str(tmp_path), bf16=False, gradient_checkpointing=False, **{**OPTIONS, **options})
    data = Dataset.from_list([{"input_ids": row["input_ids"]} for row in (rows[index] for index in range(ROWS))])
    trainer_class(model, arguments, train_dataset=data, processing_class=word_tokenizer()).train()
    return model


@pytest.fixture(scope="module")
def plainly_trained(tmp_path_factory) -> dict[float, ReLUFormerForCausalLM]:
    """By the plain `Trainer`, with the regulariser and without it."""
    models = {weight: new_model(weight) for weight in (0.1, 0.0)}
    for model in models.values():
        arguments = TrainingArguments(
            str(tmp_path_factory.mktemp("plain")), **OPTIONS, per_device_train_batch_size=ROWS
        )
        Trainer(model, arguments, train_dataset=Counting(), data_collator=padded_collator).train()
    assert difference(*models.values()) > 1e-2, "the regulariser matters"
    return models


def difference(one: ReLUFormerForCausalLM, two: ReLUFormerForCausalLM) -> float:
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    return max((first - second).abs().max().item() for first, second in pairs)


@pytest.mark.parametrize("way", WAYS)
def test_with_the_models_own_loss_it_trains_as_the_plain_trainer_does(way, plainly_trained, tmp_path):
    assert difference(fine_tuned(WithOwnLoss, tmp_path, **WAYS[way]), plainly_trained[0.1]) < 1e-3


@pytest.mark.parametrize("way", ["padded", "packing"])
def test_the_loss_of_trl_is_cross_entropy_alone_and_the_model_says_so(way, plainly_trained, tmp_path, monkeypatch):
    messages = []
    monkeypatch.setattr("reluformer.modeling_reluformer.layers_reluformer.logger.warning_once", messages.append)
    found = fine_tuned(trl.SFTTrainer, tmp_path, **WAYS[way])
    assert messages and all("compute_loss = Trainer.compute_loss" in message for message in messages)
    assert difference(found, plainly_trained[0.0]) < 1e-3


def test_without_a_regulariser_there_is_nothing_to_say(tmp_path, monkeypatch):
    messages = []
    monkeypatch.setattr("reluformer.modeling_reluformer.layers_reluformer.logger.warning_once", messages.append)
    fine_tuned(trl.SFTTrainer, tmp_path, 0.0, **{**WAYS["padded"], "max_steps": 1})
    assert messages == []


def test_an_adapter_is_trained_and_the_model_is_not(tmp_path):
    peft = pytest.importorskip("peft", reason="LoRA is peft's, which is not installed")
    model, rows = new_model(0.1), Counting()
    before = copy.deepcopy(model.state_dict())
    data = Dataset.from_list([{"input_ids": rows[index]["input_ids"]} for index in range(ROWS)])
    lora = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj", "fc1", "fc2"], r=4)
    options = {**OPTIONS, "max_steps": 20, "logging_steps": 1}
    arguments = trl.SFTConfig(str(tmp_path), **options, bf16=False, gradient_checkpointing=False, **WAYS["packing"])
    trainer = WithOwnLoss(model, arguments, train_dataset=data, processing_class=word_tokenizer(), peft_config=lora)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] - 0.1
    merged = trainer.model.get_base_model().state_dict()
    for name, tensor in merged.items():
        if "lora_" not in name:
            assert torch.equal(tensor, before[name.replace(".base_layer", "")]), name
