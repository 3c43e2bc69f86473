"""`Seq2SeqTrainer` as it comes, with nothing of ours but the model."""

import pytest
import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from reluformer import ReLUFormerForConditionalGeneration

from ..conftest import random_tokens, tiny_config, tiny_model


class CopyTask(torch.utils.data.Dataset):
    """The target repeats the source; lengths 3 to 8."""

    def __init__(self, pairs: int) -> None:
        self.tokens = [[*random_tokens(3 + index % 6, seed=index).tolist(), 2] for index in range(pairs)]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def collate(features: list[dict]) -> dict[str, torch.Tensor]:
    def pad(name: str, value: int) -> torch.Tensor:
        rows = [torch.tensor(feature[name]) for feature in features]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)

    input_ids = pad("input_ids", 0)
    return {"input_ids": input_ids, "attention_mask": (input_ids != 0).long(), "labels": pad("labels", -100)}


def trainer(model, folder, pairs: int, **arguments) -> Seq2SeqTrainer:
    options = {"learning_rate": 5e-3, "report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    return Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(str(folder), **{**options, **arguments}),
        train_dataset=CopyTask(pairs),
        eval_dataset=CopyTask(16),
        data_collator=collate,
    )


@pytest.mark.parametrize("preset", ["reluformer", "vanilla", "rela"])
def test_lowers_the_loss(preset, tmp_path):
    model = tiny_model(preset=preset, d_model=32)
    run = trainer(model, tmp_path, 64, max_steps=60, per_device_train_batch_size=16, logging_steps=20)
    before = run.evaluate()["eval_loss"]
    run.train()
    after = run.evaluate()["eval_loss"]
    assert after < before - 0.5, (before, after)


def test_generates_in_evaluation(tmp_path):
    run = trainer(
        tiny_model(), tmp_path, 16, predict_with_generate=True, generation_max_length=10, per_device_eval_batch_size=8
    )
    output = run.predict(CopyTask(16))
    assert output.predictions.shape[0] == 16 and "test_loss" in output.metrics


def test_predictions_are_those_of_transformers_own_models(tmp_path):
    """Logits and the encoder's states, as Marian's: no figure of the loss, which would be one number a batch."""
    logits, states = trainer(tiny_model(), tmp_path, 16, per_device_eval_batch_size=8).predict(CopyTask(16)).predictions
    assert logits.shape[0] == states.shape[0] == 16 and (logits.ndim, states.ndim) == (3, 3)


def test_four_accumulation_steps_equal_one_batch(tmp_path):
    """The Trainer neither divides by the steps nor averages: the model must use num_items_in_batch."""
    results = []
    for batch, steps in ((16, 1), (4, 4)):
        torch.manual_seed(0)
        model = ReLUFormerForConditionalGeneration(
            tiny_config(dropout=0.0, attention_dropout=0.0, regularization_weight=0.5)
        ).double()  # in float32, a row whose sum is near 0 blows rounding up by 1 / S
        run = trainer(
            model,
            tmp_path,
            48,
            max_steps=6,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=steps,
            logging_steps=1,
            seed=3,
            # plain SGD: Adam would blow rounding up where a gradient is near 0
            optim="sgd",
            learning_rate=0.05,
        )
        run.train()
        losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
        results.append((losses, [parameter.detach().clone() for parameter in model.parameters()]))
    assert len(results[0][0]) == 6
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-6)  # the sums of losses are float32
    for first, second in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-9)


def test_the_trainers_own_label_smoothing_warns(tmp_path, monkeypatch):
    messages = []
    monkeypatch.setattr("reluformer.modeling_reluformer.layers_reluformer.logger.warning_once", messages.append)
    run = trainer(tiny_model(), tmp_path, 8, max_steps=1, label_smoothing_factor=0.1)
    run.data_collator = lambda features: {**(batch := collate(features)), "decoder_input_ids": batch["input_ids"]}
    run.train()
    assert messages and "label_smoothing_factor" in messages[0]
