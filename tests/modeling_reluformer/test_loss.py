"""Dead rows, weights of rows, and the plain Trainer on the loss, whose formula `test_formulas` has."""

from dataclasses import fields

import pytest
import torch
from torch import nn
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from reluformer import ReLUFormerForConditionalGeneration
from reluformer.modeling_reluformer.loss_reluformer import LossParts, activation_norms, row_weights, sentence_rows

from ..conftest import random_tokens, tiny_config, tiny_model
from ..training.tiny_run import collate, tiny_pairs
from .cases import padded

NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


def unequal_batch(sentences: int = 4):
    """Source lengths 3…, target lengths 2…, padded on the right."""
    source, labels = random_tokens(sentences, 9), random_tokens(sentences, 8, seed=1)
    mask = torch.ones_like(source)
    for row in range(sentences):
        mask[row, 3 + 2 * row :] = 0
        labels[row, 2 + row * 2 :] = -100
    return {"input_ids": source * mask, "attention_mask": mask, "labels": labels}


class Elsewhere(nn.Linear):  # than the layers, where accelerate leaves it
    def forward(self, hidden_states):
        return super().forward(hidden_states).to("meta")


def test_the_loss_of_a_model_on_two_devices_is_on_that_of_the_logits():
    model = tiny_model(activation_function="relu", ffn_l1_weight=0.1)
    model.lm_head = Elsewhere(16, 40, bias=False)
    output = model(**unequal_batch())
    names = ("loss", *(field.name for field in fields(LossParts)))
    assert {output[name].device.type for name in names} == {"meta"}


def test_a_quantised_model_has_a_loss():
    model, batch = tiny_model().eval(), unequal_batch()
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)
    torch.testing.assert_close(quantised(**batch).loss, model(**batch).loss, atol=0.1, rtol=0)


@pytest.mark.parametrize("implementation", ["eager", "fused"])
def test_dead_rows_give_neither_nan_nor_inf(implementation):
    model = tiny_model(**NO_DROPOUT, attn_implementation=implementation, regularization_weight=1.0).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name:  # queries of zero: every score is 0, every row dead
                parameter.zero_()
    output = model(**unequal_batch())
    output.loss.backward()
    assert output.dead_row_fraction == 1 and output.attention_sum == 0 and output.regularization == 0
    assert torch.isfinite(output.loss)
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


def test_training_without_labels_warns_and_names_the_config(monkeypatch):
    messages = []
    monkeypatch.setattr("reluformer.modeling_reluformer.layers_reluformer.logger.warning_once", messages.append)
    model = tiny_model().train()
    model(input_ids=random_tokens(2, 7), decoder_input_ids=random_tokens(2, 5))
    assert len(messages) == 1 and "config.label_smoothing" in messages[0] and "label_smoothing_factor" in messages[0]
    model.eval()(input_ids=random_tokens(2, 7), decoder_input_ids=random_tokens(2, 5))
    tiny_model(preset="vanilla").train()(input_ids=random_tokens(2, 7), decoder_input_ids=random_tokens(2, 5))
    assert len(messages) == 1


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_row_weighs_the_targets_of_its_sentence_over_its_rows(dtype):
    rows = torch.tensor([[1, 1, 1, 2, 0], [0, 0, 1, 1, 1]], dtype=dtype)
    labels = torch.tensor([[1, 2, 2, 2], [1, 0, 0, 0]], dtype=dtype)
    expected = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 3.0, 0.0], [0.0, 0.0, 1 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(row_weights(rows, labels, 2), expected)


def test_a_sequence_may_have_no_tokens_on_one_side():
    labels, one, two = torch.tensor([[5, 6, 7]]), torch.tensor([[1, 1, 1]]), torch.tensor([[1, 2, 2]])
    for source, target, expected in ((one, two, ([1 / 3] * 3, [1.0] * 3)), (two, one, ([3.0, 0.0, 0.0], [1.0] * 3))):
        found = sentence_rows(labels, None, 3, source, target)
        torch.testing.assert_close(found, tuple(torch.tensor([rows]) for rows in expected))


def test_activations_in_bfloat16_are_summed_in_float32():
    activations, weight = torch.randn(2, 3, 4000).bfloat16(), torch.rand(2, 3)
    expected = (activations.double().abs().sum(-1) * weight).sum()
    torch.testing.assert_close(activation_norms(activations, weight).double(), expected[None], rtol=1e-5, atol=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_packed_labels_are_shifted_by_sequence(side):
    """Labels alone, as one trains: each sequence begins with the start token, not with the last label of the one
    before."""
    model = tiny_model().double()
    sources = [random_tokens(1, 4), random_tokens(1, 6, seed=1)]
    labels = [random_tokens(1, 5, seed=2), random_tokens(1, 3, seed=3)]
    singles = [model(input_ids=source, labels=target) for source, target in zip(sources, labels, strict=True)]
    packed = model(
        input_ids=torch.cat(sources, dim=1),
        labels=padded(torch.cat(labels, dim=1), 2, side, -100),
        segment_ids=torch.tensor([[1] * 4 + [2] * 6]),
        decoder_segment_ids=padded(torch.tensor([[1] * 5 + [2] * 3]), 2, side, 0),
    )
    found = packed.logits[:, 2:] if side == "left" else packed.logits[:, :-2]
    torch.testing.assert_close(found, torch.cat([single.logits for single in singles], dim=1))
    torch.testing.assert_close(packed.loss, (5 * singles[0].loss + 3 * singles[1].loss) / 8, rtol=1e-6, atol=1e-6)


def test_a_mask_of_queries_and_keys_weighs_the_rows_as_one_of_tokens_does():
    model = tiny_model(**NO_DROPOUT, attn_implementation="eager", regularization_weight=1.0).double()
    batch = unequal_batch()
    batch["labels"] = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)  # as many targets as sources
    mask = batch["attention_mask"].bool()[:, None, None].expand(-1, -1, 9, -1)
    torch.testing.assert_close(model(**{**batch, "attention_mask": mask}).loss, model(**batch).loss)


def test_a_token_that_some_query_sees_is_a_row():
    """A window of one token on each side, and padding that no query sees: no token is seen by all queries."""
    places = torch.arange(7)
    window = (places[:, None] - places).abs() <= 1
    real = places < torch.tensor([[7], [4]])
    labels = torch.tensor([[5, 6, 7, -100, -100], [5, 6, 7, 8, 9]])
    rows, _ = sentence_rows(labels, (window & real[:, None])[:, None], 7)
    expected = torch.where(real, torch.tensor([[3 / 7], [5 / 4]]), 0.0)
    torch.testing.assert_close(rows, expected)
    alike, _ = sentence_rows(labels, window[None, None], 7)  # one mask for all sentences
    torch.testing.assert_close(alike, torch.tensor([[3 / 7], [5 / 7]]).expand(2, 7))


def test_four_accumulation_steps_equal_one_batch(tmp_path):
    """The Trainer neither divides by the steps nor averages: the model must use num_items_in_batch."""
    results, options = [], {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    for batch, steps in ((16, 1), (4, 4)):
        torch.manual_seed(0)
        model = ReLUFormerForConditionalGeneration(
            tiny_config(dropout=0.0, attention_dropout=0.0, regularization_weight=0.5)
        ).double()  # in float32, a row whose sum is near 0 blows rounding up by 1 / S
        arguments = Seq2SeqTrainingArguments(
            str(tmp_path),
            **options,
            max_steps=6,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=steps,
            logging_steps=1,
            seed=3,
            # plain SGD: Adam would blow rounding up where a gradient is near 0
            optim="sgd",
            learning_rate=0.05,
        )
        run = Seq2SeqTrainer(model=model, args=arguments, train_dataset=tiny_pairs(48), data_collator=collate)
        run.train()
        losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
        results.append((losses, [parameter.detach().clone() for parameter in model.parameters()]))
    assert len(results[0][0]) == 6
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-6)  # the sums of losses are float32
    for first, second in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-9)
