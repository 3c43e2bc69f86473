"""Without norm of queries and keys and without gate, the model with a token of the whole is Transformers' ViT."""

import pytest
import torch

import reluformer  # noqa: F401  (makes attn_implementation="reluformer" known)
from reluformer import use_relu_attention
from reluformer.training.foreign_models import convert_model, vit_weights

from .vision_cases import classes, pictures, vit_model

SCALINGS = {
    "softmax": None,
    "relu-length": {"activation": "relu", "scaling": "length", "alpha": 1.0},
    "relu2-half-length": {"activation": "relu2", "scaling": "length", "alpha": 0.5},
    "gelu-none": {"activation": "gelu", "scaling": "none"},
    "relu-variance": {"activation": "relu", "scaling": "variance", "gamma": 2.0},
}
SHAPES = {"plain": {}, "no-bias": {"qkv_bias": False}, "oblong": {"image_size": (8, 12), "patch_size": (4, 2)}}


def pair_of_models(scaling: str, **fields):
    """The library's ViT with an attention, and ours with the same weights."""
    vit, settings = vit_model(**fields), SCALINGS[scaling]
    changes = None
    if settings is not None:
        changes = {f"attention_{name}": value for name, value in settings.items()} | {"regularization_weight": 0.0}
    model, new = convert_model(vit, changes)
    assert new == []
    if settings is not None:
        use_relu_attention(vit, **settings)
    return vit, model


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_logits_loss_and_gradients_are_those_of_vit(scaling, shape):
    vit, model = pair_of_models(scaling, **SHAPES[shape])
    assert model.config._attn_implementation == ("sdpa" if scaling == "softmax" else "fused")
    inputs = {"pixel_values": pictures(size=(8, 12) if shape == "oblong" else (8, 8)), "labels": classes()}
    expected, found = vit(**inputs), model(**inputs)
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.loss, expected.loss, atol=1e-5, rtol=0)
    expected.loss.backward()
    found.loss.backward()
    theirs = {name: parameter.grad for name, parameter in vit.named_parameters()}
    assert len(theirs) == len(list(model.parameters()))
    pairs = zip(vit.named_parameters(), _in_their_order(vit, model), strict=True)
    for (name, parameter), ours in pairs:
        torch.testing.assert_close(ours.grad, parameter.grad, atol=1e-5, rtol=1e-4, msg=name)


def _in_their_order(vit, model):
    ours = dict(model.named_parameters())
    return [ours[name] for name in vit_weights(dict(vit.named_parameters()))]


@pytest.mark.parametrize("scaling", ["softmax", "relu-length"])
def test_all_hidden_states_and_weights_of_attention_are_those_of_vit(scaling):
    vit, model = pair_of_models(scaling)
    model.set_attn_implementation("eager")
    if scaling == "softmax":
        vit.set_attn_implementation("eager")
    options = {"output_attentions": True, "output_hidden_states": True}
    expected, found = (each(pictures(), **options) for each in (vit, model))
    for name in ("hidden_states", "attentions"):
        theirs, ours = getattr(expected, name), getattr(found, name)
        assert len(theirs) == len(ours) == (3 if name == "hidden_states" else 2)
        for one, two in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, two, atol=1e-5, rtol=0)


def test_positions_are_interpolated_as_vit_does():
    vit, model = pair_of_models("softmax")
    large = pictures(size=(16, 12))
    expected, found = (each(large, interpolate_pos_encoding=True) for each in (vit, model))
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=0)
    assert found.logits.isfinite().all()
    oblong = vit_model(image_size=(8, 12))  # of 2 × 3 patches, which the library cannot interpolate
    embeddings = convert_model(oblong, None)[0].model.embeddings
    torch.testing.assert_close(embeddings._interpolated(8, 12), embeddings.position_embeddings)


@pytest.mark.parametrize("kind", ["multi_label_classification", "regression"])
def test_other_problems_have_the_loss_of_vit(kind):
    vit, model = pair_of_models("softmax")
    vit.config.problem_type = model.config.problem_type = kind
    inputs = {"pixel_values": pictures(), "labels": torch.rand(3, 5, generator=torch.Generator().manual_seed(1))}
    torch.testing.assert_close(model(**inputs).loss, vit(**inputs).loss, atol=1e-6, rtol=0)


def test_dropout_of_both_kinds_acts_in_training_alone():
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        vit, model = pair_of_models("softmax", **{name: 0.5})
        expected = model(pictures()).logits
        torch.testing.assert_close(expected, vit(pictures()).logits, atol=1e-5, rtol=0)
        assert not torch.allclose(model.train()(pictures()).logits, expected)
