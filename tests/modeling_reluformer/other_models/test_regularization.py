"""L_reg of other models: Eq. 7 from their weights, added to their loss in training, once, and nothing left behind."""

import inspect
import math

import pytest
import torch
from torch import Tensor
from transformers import BertForSequenceClassification
from transformers.utils.logging import warning_once

from reluformer import attention_regularization, use_relu_attention
from reluformer.modeling_reluformer.other_models import regularization

from .foreign_cases import bert_config, build, padding, tokens

WEIGHT = 0.5


def regularised(family: str, **settings):
    """A model of `build` in training mode, without dropout, that adds L_reg to its loss."""
    model = build(family, "sdpa", reluformer=None, attention_dropout=0.0)
    return use_relu_attention(model, **{"gamma": 0.6, "regularization_weight": WEIGHT, **settings}).train()


def eq7(weights: Tensor, visible: Tensor, rows: Tensor) -> Tensor:
    """As the formula stands, row by row. weights: (batch, heads, queries, keys), visible: the same, rows: (batch,
    queries)."""
    penalties = []
    for b, i in rows.nonzero().tolist():
        for head in range(weights.shape[1]):
            row = weights[b, head, i]
            total = row.sum()
            if total == 0:
                penalties.append(total)
                continue
            share = row[row > 0] / total
            entropy = -(share * share.log()).sum()
            bound = 0.7 * math.log(max(int(visible[b, 0, i].sum()), 1))
            penalties.append(total.log().abs() + (entropy - bound).clamp(min=0))
    return torch.stack(penalties).mean()


def square(mask: Tensor, causal: bool, queries: int | None = None) -> Tensor:
    """(batch, 1, queries, keys), True where the key is visible."""
    batch, keys = mask.shape
    visible = mask.bool()[:, None, None].expand(batch, 1, queries or keys, keys)
    return visible & torch.ones(queries or keys, keys, dtype=torch.bool).tril() if causal else visible


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("family", ["bert", "llama", "mistral"])
def test_is_eq7_over_real_rows(family, side):
    """Mistral has a window of 4."""
    mask = padding(side)
    model, inputs = regularised(family), {"input_ids": tokens(3, 7), "attention_mask": mask}
    seen = torch.ones(3, 7) if mask is None else mask
    visible = square(seen, causal=family != "bert")
    if family == "mistral":
        visible = visible & ~torch.ones(7, 7, dtype=torch.bool).tril(-4)
    output = model(**inputs, output_attentions=True)
    found = attention_regularization(model)
    expected = torch.stack([eq7(weights, visible, seen.bool()) for weights in output.attentions]).mean()
    torch.testing.assert_close(found, expected)
    assert found > 0.1
    _ = model(**inputs)
    torch.testing.assert_close(attention_regularization(model), expected)
    # and its gradient
    query = next(parameter for name, parameter in model.named_parameters() if "q_proj" in name or "query" in name)
    (through_rows,) = torch.autograd.grad(found, query, retain_graph=True)
    (through_weights,) = torch.autograd.grad(expected, query)
    torch.testing.assert_close(through_rows, through_weights)


@pytest.mark.parametrize("marked_by", ["labels", "decoder_attention_mask"])
def test_rows_of_a_decoder_are_its_target_tokens(marked_by, length=7):
    """The source is as long as the target: the padding of its keys is not that of the decoder's rows."""
    model, mask, target_mask = regularised("marian"), padding("left"), padding("right", length=length)
    labels = tokens(3, length, seed=1)
    inputs = {"input_ids": tokens(3, 7), "attention_mask": mask, "decoder_input_ids": labels}
    if marked_by == "labels":
        inputs["labels"] = labels.masked_fill(target_mask == 0, -100)
    else:
        inputs |= {"decoder_attention_mask": target_mask, "labels": labels}
    output = model(**inputs, output_attentions=True)
    own = target_mask if marked_by == "decoder_attention_mask" else torch.ones_like(target_mask)
    source, target = mask.bool(), target_mask.bool()
    cached = {"decoder_attention_mask": torch.tensor([[0, 1, 1]])}  # the rows are the last two tokens
    assert regularization._decoder_rows(cached, penalty=torch.zeros(1, 1, 2)).all()
    parts = [eq7(weights, square(mask, causal=False), source) for weights in output.encoder_attentions]
    parts += [eq7(weights, square(own, causal=True), target) for weights in output.decoder_attentions]
    parts += [eq7(weights, square(mask, causal=False, queries=length), target) for weights in output.cross_attentions]
    torch.testing.assert_close(attention_regularization(model), torch.stack(parts).mean())


def test_rows_of_an_encoder_alone_and_of_a_model_with_labels_of_classes():
    encoder, mask = regularised("marian").model.encoder, padding("right")
    use_relu_attention(encoder, gamma=0.6, regularization_weight=WEIGHT)
    weights = encoder(tokens(3, 7), attention_mask=mask, output_attentions=True).attentions
    expected = torch.stack([eq7(each, square(mask, causal=False), mask.bool()) for each in weights]).mean()
    torch.testing.assert_close(attention_regularization(encoder), expected)
    assert regularization._decoder_rows({"labels": torch.tensor([0, 1])}, penalty=torch.zeros(2, 1, 7)) is None


@pytest.mark.parametrize("return_dict", [True, False])
def test_is_added_to_the_loss_in_training_alone(return_dict):
    model, inputs = regularised("llama"), {"input_ids": tokens(3, 7), "return_dict": return_dict}
    output = model(**inputs, labels=tokens(3, 7))
    regularizer = attention_regularization(model)
    alone = model.eval()(**inputs, labels=tokens(3, 7))[0]
    torch.testing.assert_close(output[0], alone + WEIGHT * regularizer)
    assert regularizer > 0.1


def test_positional_labels_are_found():
    model, labels = regularised("marian"), tokens(2, 5, seed=1)
    labels[1, 3:] = -100
    by_name = model(input_ids=tokens(2, 7), labels=labels).loss
    order = list(inspect.signature(model.forward).parameters)
    given = {"input_ids": tokens(2, 7), "labels": labels}
    by_place = model(*(given.get(name) for name in order[: order.index("labels") + 1])).loss
    assert torch.equal(by_place, by_name)


def test_nothing_is_collected_without_gradients_or_while_generating(monkeypatch):
    monkeypatch.setattr("reluformer.modeling_reluformer.other_models.attention.collect", None)  # whoever calls it fails
    model = regularised("llama")
    with torch.no_grad():
        model(tokens(2, 7), labels=tokens(2, 7))
    model.generate(tokens(2, 7), max_new_tokens=3)
    model.eval()(tokens(2, 7), labels=tokens(2, 7)).loss.backward()


def test_a_checkpoint_counts_once_and_gives_the_same_gradients():
    models = [regularised("llama") for _ in range(2)]
    models[1].gradient_checkpointing_enable({"use_reentrant": False})
    losses = []
    for model in models:  # two passes before the backward one
        losses.append(sum(model(tokens(3, 7, seed=seed), labels=tokens(3, 7)).loss for seed in (0, 1)))
        losses[-1].backward()
        assert regularization._open.collection is None
    torch.testing.assert_close(losses[1], losses[0])
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_reentrant_checkpoint_is_refused():
    model = regularised("llama")
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model.enable_input_require_grads()
    with pytest.raises(ValueError, match="'use_reentrant': False"):
        model(tokens(3, 7), labels=tokens(3, 7))
    assert regularization._open.collection is None
    model.gradient_checkpointing_disable()
    assert model(tokens(3, 7), labels=tokens(3, 7)).loss.isfinite()


def test_without_a_loss_one_warning_says_what_to_do(caplog):
    warning_once.cache_clear()
    model = regularised("llama")
    for _ in range(2):
        output = model(tokens(2, 7))
        assert attention_regularization(model) > 0.1
    (message,) = caplog.messages
    assert "returned no loss" in message and "label_smoothing_factor" in message
    del output


def test_each_part_of_an_update_counts_by_its_labels():
    """Where the rows are not alike: L_reg of each part, by the share of its labels."""
    model = regularised("llama")
    parts = [(tokens(3, 7), padding("right")), (tokens(1, 7, seed=1), None)]
    labels = [ids if mask is None else ids.masked_fill(mask == 0, -100) for ids, mask in parts]
    items = sum(each[:, 1:].ne(-100).sum() for each in labels)
    for (ids, mask), own in zip(parts, labels, strict=True):
        inputs = {"input_ids": ids, "attention_mask": mask, "labels": own, "num_items_in_batch": items}
        loss = model.train()(**inputs).loss
        share = own[:, 1:].ne(-100).sum() / items
        expected = WEIGHT * share * attention_regularization(model) + model.eval()(**inputs).loss
        torch.testing.assert_close(loss, expected)


def classifier():
    torch.manual_seed(0)
    return BertForSequenceClassification(bert_config(num_labels=2)).train()


def test_a_model_without_it_is_told_so():
    for model in (classifier(), regularised("llama")):
        with pytest.raises(ValueError, match="has no L_reg: it is computed by a forward pass"):
            attention_regularization(model)


def test_a_weight_that_no_model_would_add_is_refused():
    model = build("llama", "sdpa", reluformer={"gamma": 0.6, "regularization_weight": WEIGHT}).train()
    model.set_attn_implementation("reluformer")
    with pytest.raises(ValueError, match=r"no model adds it to a loss\. Call use_relu_attention"):
        model(tokens(2, 7), labels=tokens(2, 7))


def test_a_model_whose_attention_is_all_in_evaluation_is_refused():
    model = regularised("llama")
    model.model.eval()
    with pytest.raises(ValueError, match="no attention in training mode"):
        model(tokens(2, 7), labels=tokens(2, 7))
