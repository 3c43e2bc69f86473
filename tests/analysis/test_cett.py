"""Thresholds of a CETT: those of the authors' public code on one set of activations, and a slow float64 oracle."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from reluformer.analysis.cett import CANDIDATES, TailTruncation, below

FIXTURE = Path(__file__).parent / "authors_thresholds"
CARRIED_OVER = json.loads((FIXTURE / "thresholds.json").read_text())
AUTHORS, LARGEST = CARRIED_OVER["thresholds"], CARRIED_OVER["largest_candidates"]


def formula(rows, columns, salt):
    """Numbers in [-1, 1) that any machine makes alike."""
    numbers = (torch.arange(rows * columns, dtype=torch.int64) * 2654435761 + salt) % 2**31
    return (numbers.double() / 2**30 - 1).float().view(rows, columns)


def activations(name):
    if name == "formula":  # more than 65,536 products: the quantile is of a sample
        return formula(400, 512, 12345) * formula(400, 512, 999).abs(), formula(16, 512, 777)
    held = load_file(FIXTURE / "activations.safetensors")
    return held[f"{name}.activations"], held[f"{name}.value_slots"]


def step_of(truncation):
    return float(truncation._candidates[1] - truncation._candidates[0])


@pytest.mark.parametrize("name", AUTHORS)
def test_thresholds_are_those_of_the_authors_code(name):
    truncation = TailTruncation(*activations(name))
    assert float(truncation._candidates[-1]) == pytest.approx(LARGEST[name], rel=1e-6)
    for cett, threshold in AUTHORS[name].items():
        # the sums of another machine may turn one comparison with a candidate
        assert truncation.threshold(float(cett)) == pytest.approx(threshold, abs=1.5 * step_of(truncation))


def slow_cett(activations, value_slots, threshold):
    """By its definition, token by token and neuron by neuron, in float64."""
    activations, slots = activations.double().tolist(), value_slots.double().T.tolist()
    norms = [math.sqrt(sum(value**2 for value in slot)) for slot in slots]
    errors = []
    for token in activations:
        whole, lost = [0.0] * len(slots[0]), [0.0] * len(slots[0])
        for activation, slot, norm in zip(token, slots, norms, strict=True):
            for feature, value in enumerate(slot):
                whole[feature] += activation * value
                if abs(activation) * norm <= threshold:
                    lost[feature] += activation * value
        lost, whole = (math.sqrt(sum(value**2 for value in vector)) for vector in (lost, whole))
        errors.append(0.0 if lost == 0 else lost / whole)
    return sum(errors) / len(errors)


@pytest.mark.parametrize("kind", ["relu", "gated"])
def test_cett_equals_a_slow_oracle_and_the_threshold_is_its_last_candidate(kind):
    torch.manual_seed(5)
    found = torch.randn(13, 21, dtype=torch.float64)
    found = found.relu() if kind == "relu" else torch.nn.functional.silu(found) * torch.randn_like(found)
    found[3] = 0  # a token without any activation loses nothing
    truncation = TailTruncation(found, torch.randn(7, 21, dtype=torch.float64))
    step = step_of(truncation)
    for cett in (0.02, 0.15, 0.5):
        threshold = truncation.threshold(cett)
        assert truncation.cett(threshold) == pytest.approx(slow_cett(found, truncation.value_slots, threshold))
        # by the slow oracle, too: at most the CETT here, more at the next candidate
        assert slow_cett(found, truncation.value_slots, threshold) <= cett
        assert slow_cett(found, truncation.value_slots, threshold + step * (1 + 1e-9)) > cett
        dropped = below(found, threshold, truncation.slot_norms)
        assert torch.equal(dropped, found.abs() * truncation.value_slots.norm(dim=0) < threshold)


def test_where_no_candidate_is_small_enough_nothing_is_dropped():
    # one neuron: its smallest product is the whole output of a token, so that any candidate loses half on the mean
    truncation = TailTruncation(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]]))
    assert truncation.threshold(0.1) == 0 and not below(truncation.activations, 0.0, truncation.slot_norms).any()
    assert not below(torch.tensor([0.0, 1.0]), 0.0, torch.tensor([2.0, 0.0])).any()
    # what lies at the threshold itself stays
    assert below(torch.tensor([0.5, 1.0, 1.5]), 2.0, torch.full((3,), 2.0)).tolist() == [True, False, False]
    assert len(truncation._candidates) == CANDIDATES
