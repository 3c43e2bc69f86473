"""Padded and packed rows of the same sentences, and what token batches waste."""

import datasets
import pytest
import torch


@pytest.fixture
def packing(program):
    return program("speed.packing")


def sentences(lengths):
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(4, 60, (length,), generator=generator) for length in lengths]


def test_packed_rows_have_the_loss_and_gradients_of_the_padded_ones(packing, program):
    models = program("speed.translation_models")
    sources, targets = sentences([5, 3, 8, 1]), sentences([4, 6, 7, 2])
    found = {}
    for name in ("padded", "packed"):
        model = models.build(models.OURS, models.SHAPES["quick"], 0.1, 0).eval().double()
        output = model(**getattr(packing, f"{name}_batch")(sources, targets))
        output.loss.backward()
        found[name] = [output.loss, output.regularization, *(p.grad for p in model.parameters() if p.grad is not None)]
    assert found["padded"][1] > 0 and len(found["padded"]) > 20
    for padded, packed in zip(found["padded"], found["packed"], strict=True):
        torch.testing.assert_close(packed, padded)


def test_waste_is_the_share_of_padding_on_either_side(packing):
    encoded = datasets.Dataset.from_dict(
        {"input_ids": [[4] * 2, [4] * 4, [4] * 3], "labels": [[5] * 4, [5] * 1, [5] * 5]}
    )
    found = packing.waste(encoded, [[0, 1], [2]])
    assert found["tokens"] == {"source": 9, "target": 10, "both": 19}
    assert found["padding_share"] == pytest.approx({"source": 2 / 11, "target": 3 / 13, "both": 5 / 24})


def test_the_bound_has_rows_of_one_length_and_no_padding(packing):
    packed = packing.packed_batch(sentences([5, 3, 8]), sentences([4, 6, 7]))
    even = packing.even_batch(packed, 3)
    assert even["input_ids"].shape == even["labels"].shape == (3, 5)
    assert even["attention_mask"].all() and packing.real_tokens(even) == 30 and packing.real_tokens(packed) == 33
    assert torch.equal(even["labels"].flatten(), packed["labels"][0, :15])
