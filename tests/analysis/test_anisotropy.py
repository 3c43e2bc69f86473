"""Anisotropy: known values, the definition's double sum, and the right matrix of a model."""

import pytest
import torch

from reluformer.analysis.anisotropy import anisotropy, anisotropy_table
from reluformer.configuration.errors import UserError

from .small_models import FFN, LAYERS, make_model


def by_definition(slots):
    slots = slots.detach().double()
    cosines = torch.nn.functional.cosine_similarity(slots.unsqueeze(0), slots.unsqueeze(1), dim=-1)
    return float(cosines.fill_diagonal_(0).sum() / (len(slots) * (len(slots) - 1)))


def test_known_values():
    assert anisotropy(torch.tensor([[1.0, 2.0]]).expand(5, 2)) == pytest.approx(1)
    assert anisotropy(torch.diag(torch.tensor([1.0, 5.0, 0.2]))) == pytest.approx(0, abs=1e-12)
    assert anisotropy(torch.tensor([[3.0, 0.0], [-1.0, 0.0]])) == pytest.approx(-1)


def test_it_is_equation_4():
    torch.manual_seed(0)
    slots = torch.randn(40, 6) + 0.5
    assert anisotropy(slots) == pytest.approx(by_definition(slots), abs=1e-12)


@pytest.mark.parametrize("kind", ["reluformer", "marian", "t5"])
def test_the_slots_of_a_model_are_the_rows_of_w2(kind):
    model = make_model(kind, 300)
    table = anisotropy_table(model)
    assert [(row["module"], row["layer"]) for row in table[3:]] == [
        (stack, layer) for stack in ("encoder", "decoder") for layer in range(1, LAYERS + 1)
    ]
    assert all(row["slots"] == FFN for row in table[3:])
    names = {"t5": "decoder.block.1.layer.2.DenseReluDense.wo"}
    weight = model.get_submodule(names.get(kind, "model.decoder.layers.1.fc2")).weight
    assert table[-1]["anisotropy"] == pytest.approx(by_definition(weight.T), abs=1e-12)
    assert table[0]["anisotropy"] == pytest.approx(sum(row["anisotropy"] for row in table[3:]) / (2 * LAYERS))


def test_slots_that_are_zero_are_counted_and_left_out():
    model = make_model("reluformer", 300)
    with torch.no_grad():
        model.model.encoder.layers[0].fc2.weight[:, :4] = 0
    row = anisotropy_table(model)[3]
    assert (row["slots"], row["zero_slots"]) == (FFN, 4)
    assert row["anisotropy"] == pytest.approx(by_definition(model.model.encoder.layers[0].fc2.weight.T[4:]))
    with torch.no_grad():
        model.model.encoder.layers[0].fc2.weight[:] = 0
    with pytest.raises(UserError, match="encoder layer 1 has 0 value slots that are not 0 of 24"):
        anisotropy_table(model)
