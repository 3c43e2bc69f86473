"""Zeros in the feed-forward networks of all models: makers by hand, the L1 term by its definition, defaults that cost
nothing."""

import pytest
import torch
from torch import nn
from transformers.models.gemma3n import Gemma3nTextConfig
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextMLP

from reluformer.modeling_reluformer.layers_reluformer import SparseActivation

from ..conftest import VOCABULARY, tiny_model
from .cases import classes, decoder_model, pictures, vision_model

KINDS = ["mlp", "glu", "dglu", "vision", "translation"]


def make(kind, activation="relu", **fields):
    fields = {"activation_function": activation, **fields}
    if kind == "translation":
        rates = dict.fromkeys(("dropout", "attention_dropout", "label_smoothing"), 0.0)
        return tiny_model(decoder_layers=1, **rates, **fields)
    return vision_model(**fields) if kind == "vision" else decoder_model(ffn_type=kind, **fields)


def batch_for(kind, items=5):
    torch.manual_seed(4)
    if kind == "vision":
        return {"pixel_values": pictures(items), "labels": classes(items)}
    if kind == "translation":
        source, labels = torch.randint(3, VOCABULARY, (items, 7)), torch.randint(3, VOCABULARY, (items, 6))
        mask = torch.ones_like(source)
        for row in range(items):  # padding on either side of the source, and targets of many lengths
            mask[row, : row % 3] = 0
            mask[row, 7 - row % 2 :] = 0
            labels[row, 6 - row % 4 :] = -100
        return {"input_ids": source, "attention_mask": mask, "labels": labels}
    ids = torch.randint(3, VOCABULARY, (items, 9))
    mask = torch.ones_like(ids)
    for row in range(items):
        mask[row, : row % 4] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def last_projections(model):
    return [part for name, part in model.named_modules() if name.split(".")[-1] in ("fc2", "down_proj")]


def activations_of(model, batch):
    """What the last projections read, in order."""
    seen, handles = [], []
    for projection in last_projections(model):
        handles.append(projection.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])))
    output = model(**batch)
    for handle in handles:
        handle.remove()
    return seen, output


@pytest.mark.parametrize("kind", ["mlp", "dglu", "vision"])
def test_top_k_keeps_the_largest(kind):
    model = make(kind, "gelu", ffn_top_k=6).eval()
    seen, _ = activations_of(model, batch_for(kind))
    assert all(int((each != 0).sum(dim=-1).max()) <= 6 for each in seen)
    assert any(int((each != 0).sum(dim=-1).max()) == 6 for each in seen)
    scores = torch.randn(3, 11, dtype=torch.float64, requires_grad=True)
    found = SparseActivation(nn.GELU(), top_k=4)(scores)
    plain = nn.functional.gelu(scores)
    for row, kept in zip(plain, found, strict=True):  # one by one
        wanted = sorted(row.tolist(), key=abs)[-4:]
        assert sorted(value for value in kept.tolist() if value) == sorted(wanted)
    assert torch.autograd.gradcheck(SparseActivation(nn.GELU(), top_k=4), (scores,))


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_statistical_top_k_is_gemmas(share):
    sizes = {"hidden_size": 24, "num_attention_heads": 2, "intermediate_size": [40], "num_hidden_layers": 1}
    config = Gemma3nTextConfig(**sizes, activation_sparsity_pattern=[share], layer_types=["full_attention"])
    torch.manual_seed(0)
    gemma = Gemma3nTextMLP(config, layer_idx=0)
    ours = make("glu", "gelu_pytorch_tanh", activation_sparsity_pattern=share, ffn_bias=False).model.layers[0].mlp
    ours.load_state_dict(gemma.state_dict())
    states = torch.randn(2, 7, 24, requires_grad=True)
    again = states.detach().clone().requires_grad_()
    expected, found = gemma(states), ours(again)
    torch.testing.assert_close(found, expected)
    expected.square().sum().backward()
    found.square().sum().backward()
    torch.testing.assert_close(again.grad, states.grad)
    torch.testing.assert_close(ours.gate_proj.weight.grad, gemma.gate_proj.weight.grad)


def test_patterns_are_by_layer():
    model = make("translation", activation_sparsity_pattern=[0.9, 0.0, 0.8])
    parts = [part.activation_fn for part in model.modules() if "activation_fn" in part._modules]
    assert [getattr(part, "sparsity", 0) for part in parts] == [0.9, 0, 0.8]
    seen, _ = activations_of(model.eval(), batch_for("translation"))
    shares = [float((each != 0).double().mean()) for each in seen]
    assert shares[0] < 0.25 and shares[1] > 0.3 and shares[2] < 0.35


@pytest.mark.parametrize("kind", ["glu", "translation"])
def test_threshold_is_fatrelu(kind):
    scores = torch.tensor([-1.0, 0.0, 0.2, 0.3, 0.31, 5.0])
    assert SparseActivation(nn.ReLU(), threshold=0.3)(scores).tolist() == pytest.approx([0, 0, 0, 0.3, 0.31, 5])
    assert SparseActivation(nn.Identity(), threshold=2.0)(torch.tensor([-3.0, -1.0, 1.0])).tolist() == [-3, 0, 0]
    dense, cut = make(kind).eval(), make(kind, ffn_threshold=0.2).eval()
    before, after = (activations_of(model, batch_for(kind))[0][0] for model in (dense, cut))
    assert int((after != 0).sum()) < int((before != 0).sum())


def l1_by_definition(kind, batch, seen):
    """Of each sentence the mean over FFNs and its real rows of the sum of |a|, times its targets; over all targets."""
    total, targets_of_all = 0.0, 0
    for row in range(len(batch["labels"])):
        if kind == "vision":
            targets, rows = 1, [range(each.shape[1]) for each in seen]
        elif kind == "translation":
            real = [place for place in range(7) if batch["attention_mask"][row, place]]
            predicted = [place for place in range(6) if batch["labels"][row, place] != -100]
            targets, rows = len(predicted), [real, real, predicted]
        else:
            predicted = [place for place in range(8) if batch["labels"][row, place + 1] != -100]
            targets, rows = len(predicted), [predicted] * len(seen)
        means = [
            sum(float(activations[row, place].detach().abs().double().sum()) for place in places) / len(places)
            for activations, places in zip(seen, rows, strict=True)
        ]
        total += targets * sum(means) / len(means)
        targets_of_all += targets
    return total / targets_of_all


@pytest.mark.parametrize("kind", KINDS)
def test_l1_is_its_definition(kind):
    model, batch = make(kind, ffn_l1_weight=0.25, regularization_weight=0.0).train(), batch_for(kind)
    seen, output = activations_of(model, batch)
    assert float(output.ffn_l1.detach()) == pytest.approx(l1_by_definition(kind, batch, seen), rel=1e-5)
    torch.testing.assert_close(output.loss, output.cross_entropy + 0.25 * output.ffn_l1)
    plain = make(kind, regularization_weight=0.0).train()(**batch)
    assert plain.ffn_l1 is None
    torch.testing.assert_close(plain.loss, output.cross_entropy)


def test_stochastic_activations_are_relus_at_the_end():
    activation = SparseActivation(nn.ReLU()).train()
    scores = torch.randn(20_000)
    activation.negative_probability = 0.7
    torch.manual_seed(1)
    found = activation(scores)
    negative = scores < 0
    assert torch.equal(found[~negative], scores[~negative])
    through = found[negative] != 0
    assert float(through.double().mean()) == pytest.approx(0.7, abs=0.02)
    torch.testing.assert_close(found[negative][through], nn.functional.silu(scores[negative][through]))
    assert torch.equal(activation.eval()(scores), scores.relu())


@pytest.mark.parametrize(
    ("kind", "fields", "named"),
    [
        ("mlp", {"ffn_top_k": 0}, "ffn_top_k=0 must be from 1 to 40"),
        ("translation", {"ffn_top_k": 12, "decoder_ffn_dim": 10}, "ffn_top_k=12 must be from 1 to 10"),
        ("glu", {"ffn_threshold": -0.1}, "ffn_threshold=-0.1 must be"),
        ("translation", {"ffn_l1_weight": float("inf")}, "ffn_l1_weight=inf must be"),
        ("mlp", {"activation_sparsity_pattern": [0.5]}, "has 1 numbers; give one number, or 2"),
        ("mlp", {"activation_sparsity_pattern": 1.0}, "activation_sparsity_pattern=1.0 must hold"),
    ],
)
def test_wrong_fields_are_refused_by_name(kind, fields, named):
    with pytest.raises(ValueError, match=named):
        make(kind, **fields)
