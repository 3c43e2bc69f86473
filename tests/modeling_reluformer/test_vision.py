"""The Vision Transformer: its loss and labels, and ViT as an oracle."""

import pytest
import torch

from reluformer import ReLUFormerForImageClassification
from reluformer.training.conversion import convert_model

from .cases import (
    CLASSES,
    assert_same_logits_loss_and_gradients,
    classes,
    pair_of_models,
    pictures,
    row_penalties,
    scaled,
    vision_config,
    vision_model,
    vit_model,
    with_shares_for_dropout,
)

FULL = {
    "preset": "relu_vit",
    "attention_scaling": "variance",
    "attention_gamma_learnable": True,
    "attention_gate": True,
    "attention_output_norm": "gated_rms",
    "pooling": "cls",
    "pooler_act": "tanh",
    "regularization_weight": 0.3,
}


def test_fused_and_eager_are_the_same_model():
    results = []
    for implementation in ("fused", "eager"):
        model = vision_model(attn_implementation=implementation, **FULL)
        output = model(pictures(), labels=classes())
        output.loss.backward()
        results.append([output.logits, output.loss, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*results, atol=2e-5, rtol=1e-4)


def test_pictures_in_float32_go_into_a_model_in_bfloat16():
    model = vision_model().bfloat16()
    torch.testing.assert_close(model(pictures()).logits, model(pictures().bfloat16()).logits, atol=0, rtol=0)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_each_dropout_falls_at_its_place_with_its_rate(pooling, monkeypatch):
    """What is dropped on average, taken into the weights behind or before it, gives the model in evaluation."""
    fields = {"attn_implementation": "eager", "pooling": pooling}
    rates = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
    dropping, plain = vision_model(**fields, **rates), vision_model(**fields)
    with_shares_for_dropout(monkeypatch)
    torch.testing.assert_close(dropping(pictures()).logits, plain(pictures()).logits)
    scaled(plain.model.embeddings.parameters(), 0.8)
    for layer in plain.model.layers:
        scaled([layer.self_attn.out_proj.weight], 0.7)
        scaled((*layer.self_attn.out_proj.parameters(), *layer.mlp.fc2.parameters()), 0.8)
    torch.testing.assert_close(dropping.train()(pictures()).logits, plain(pictures()).logits)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_loss_is_cross_entropy_and_the_regulariser_of_the_weights(pooling):
    """L_reg from the weights of attention themselves, by its formula: the mean over pictures, layers, heads and
    rows."""
    model = vision_model(
        attn_implementation="eager", attention_scaling="variance", pooling=pooling, regularization_weight=0.5
    )
    output = model(pictures(), labels=classes(), output_attentions=True)
    penalties = []
    for weights in output.attentions:
        visible = torch.tensor(float(weights.shape[-1]))
        penalties.append(row_penalties(weights, visible, model.config.entropy_margin).mean())
    expected = torch.stack(penalties).mean()
    torch.testing.assert_close(output.regularization, expected, atol=1e-5, rtol=1e-5)
    cross_entropy = torch.nn.functional.cross_entropy(output.logits, classes())
    torch.testing.assert_close(output.loss, cross_entropy + 0.5 * expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["single_label_classification", "multi_label_classification"])
def test_the_loss_does_not_depend_on_how_a_batch_is_cut(kind):
    model = vision_model(attention_scaling="variance", regularization_weight=0.5, problem_type=kind)
    labels = classes(4) if kind.startswith("single") else torch.rand(4, CLASSES)
    whole = model(pictures(4), labels=labels).loss
    items = labels.numel()  # as the Trainer counts
    parts = [
        model(pictures(4)[part], labels=labels[part], num_items_in_batch=items).loss
        for part in (slice(0, 1), slice(1, 4))
    ]
    torch.testing.assert_close(sum(parts), whole)


def test_a_picture_that_does_not_count_changes_nothing():
    model = vision_model(attention_scaling="variance", regularization_weight=0.5)
    labels = classes().index_fill(0, torch.tensor(1), -100)
    found, expected = model(pictures(), labels=labels), model(pictures()[[0, 2]], labels=labels[[0, 2]])
    for name in ("loss", "regularization", "attention_sum", "attention_entropy", "dead_row_fraction"):
        torch.testing.assert_close(found[name], expected[name])
    assert model(pictures(), labels=torch.full_like(labels, -100)).loss == 0


@pytest.mark.parametrize(
    ("inputs", "error", "named"),
    [
        ({"pixel_values": pictures(size=(12, 8))}, ValueError, r"3, 8, 8\); got torch.float32 \(3, 3, 12, 8\)"),
        ({"pixel_values": pictures(channels=1)}, ValueError, r"got torch.float32 \(3, 1, 8, 8\)"),
        ({"pixel_values": pictures()[0]}, ValueError, r"got torch.float32 \(3, 8, 8\)"),
        ({"pixel_values": pictures().byte()}, ValueError, "must be floats"),
        ({"labels": torch.tensor([0, 5, 1])}, IndexError, "Target 5 is out of bounds"),
        ({"output_attentions": True}, ValueError, "needs attn_implementation='eager'"),
        ({"attention_mask": torch.ones(3, 4)}, TypeError, "takes no attention_mask"),
    ],
)
def test_wrong_calls_say_what_is_wrong(inputs, error, named):
    with pytest.raises(error, match=named):
        vision_model()(**{"pixel_values": pictures(), **inputs})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"patch_size": 0}, r"image_size=8 and patch_size=0 must be at least 1"),
        ({"patch_size": 3}, r"patch_size=3 does not divide image_size=8"),
        ({"patch_size": (4, 16)}, r"patch_size=\(4, 16\) does not divide"),
        ({"pooling": "max"}, "pooling='max' is not supported; choose one of mean, cls"),
        ({"initialization": "zeros"}, "choose one of xavier, normal"),
        ({"hidden_size": 15}, "hidden_size=15 must be a multiple of num_attention_heads=2"),
        ({"attention_dropout": -1.0}, r"attention_probs_dropout_prob=-1.0 must lie in \[0, 1\)"),
        ({"pooler_act": "tanhh"}, "tanhh"),
        ({"preset": "vit"}, "choose one of relu_vit, softmax_vit"),
        ({"size": "S/4"}, "choose one of S/32, S/16, S/8"),
        ({"pach_size": 4}, "did you mean patch_size"),
    ],
)
def test_bad_fields_are_refused_by_name(fields, named):
    with pytest.raises(ValueError, match=named):
        vision_config(**fields)


def test_the_start_of_the_paper():
    torch.manual_seed(0)
    config = vision_config(hidden_size=64, num_attention_heads=4, problem_type="multi_label_classification")
    model = ReLUFormerForImageClassification(config)
    largest = model.model.layers[0].mlp.fc1.weight.abs().max()
    assert largest <= (6 / (64 + 24)) ** 0.5 < 1.05 * largest
    assert not model.classifier.weight.any()
    torch.testing.assert_close(model.classifier.bias, torch.full((CLASSES,), 1 / CLASSES).log())
    embeddings = model.model.embeddings
    assert abs(float(embeddings.position_embeddings.detach().std()) * 8 - 1) < 0.3
    assert abs(float(embeddings.patch_embeddings.weight.detach().std()) * (3 * 4 * 4) ** 0.5 - 1) < 0.08
    plain = ReLUFormerForImageClassification(vision_config(initialization="normal"))
    assert 0.01 < float(plain.classifier.weight.detach().std()) < 0.03


SCALINGS = {
    "softmax": None,
    "relu-length": {"activation": "relu", "scaling": "length", "alpha": 1.0},
    "relu2-half-length": {"activation": "relu2", "scaling": "length", "alpha": 0.5},
    "gelu-none": {"activation": "gelu", "scaling": "none"},
    "relu-variance": {"activation": "relu", "scaling": "variance", "gamma": 2.0},
}
SHAPES = {"plain": {}, "no-bias": {"qkv_bias": False}, "oblong": {"image_size": (8, 12), "patch_size": (4, 2)}}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_logits_loss_and_gradients_are_those_of_vit(scaling, shape):
    vit, model = pair_of_models(vit_model(**SHAPES[shape]), SCALINGS[scaling])
    assert model.config._attn_implementation == ("sdpa" if scaling == "softmax" else "fused")
    inputs = {"pixel_values": pictures(size=(8, 12) if shape == "oblong" else (8, 8)), "labels": classes()}
    assert_same_logits_loss_and_gradients(vit, model, **inputs)


def test_positions_are_interpolated_as_vit_does():
    vit, model = pair_of_models(vit_model(), None)
    large = pictures(size=(16, 12))
    expected, found = (each(large, interpolate_pos_encoding=True) for each in (vit, model))
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=0)
    assert found.logits.isfinite().all()
    oblong = vit_model(image_size=(8, 12), patch_size=(4, 2))  # of 2 × 6 patches, which the library cannot interpolate
    embeddings = convert_model(oblong, None)[0].model.embeddings
    torch.testing.assert_close(embeddings._interpolated(8, 12), embeddings.position_embeddings)


@pytest.mark.parametrize("kind", ["multi_label_classification", "regression"])
def test_other_problems_have_the_loss_of_vit(kind):
    vit, model = pair_of_models(vit_model(), None)
    vit.config.problem_type = model.config.problem_type = kind
    inputs = {"pixel_values": pictures(), "labels": torch.rand(3, 5, generator=torch.Generator().manual_seed(1))}
    torch.testing.assert_close(model(**inputs).loss, vit(**inputs).loss, atol=1e-6, rtol=0)
