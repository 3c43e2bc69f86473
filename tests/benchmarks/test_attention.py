"""The program that times attention alone: its check, its rivals, and the gradients that the regulariser sends."""

import argparse

import pytest
import torch

from benchmarks import attention
from benchmarks.attention import AttentionCase, contenders_of, random_inputs, statistics_gradients


@pytest.mark.parametrize("broken", ["output", "gradient", "T"])
def test_a_wrong_fast_path_is_not_timed(monkeypatch, broken):
    original = attention.relu_attention

    def wrong(query, key, value, *, statistics, **kwargs):
        result = original(query, key, value, statistics=statistics, **kwargs)
        if broken == "T":
            return (*result[:2], 1.001 * result[2]) if statistics == "sum+entropy" else result
        first = result if statistics == "none" else result[0]
        first = 1.001 * first if broken == "output" else 1.001 * first - 0.001 * first.detach()
        return first if statistics == "none" else (first, *result[1:])

    monkeypatch.setattr(attention, "relu_attention", wrong)
    with pytest.raises(RuntimeError, match="ours are wrong, nothing was timed: fused"):
        attention.check(argparse.Namespace(quick=True, seed=0))


def test_the_slowest_rivals_stay_where_one_sequence_is_timed():
    for cell in attention.cells(False):
        names = contenders_of(cell)
        one = cell["batch"] == 1 and cell["head_dim"] == 64 and cell["length"] >= 64
        assert ("sparsemax" in names) == (one and cell["length"] <= 1024)
        goals_need_it = cell["length"] <= 256 or (one and (cell["length"] <= 1024 or not cell["causal"]))
        assert ("eager relu" in names) == goals_need_it
        assert {"fused", "fused+S+T", "sdpa softmax"} <= set(names)


def test_gradients_of_the_statistics_are_those_of_the_regulariser():
    case = AttentionCase(2, 2, 20, 8, torch.float32, True, True)
    inputs = random_inputs(case, seed=0)
    of_sum, of_sum_log = statistics_gradients(case, inputs, "sum+entropy")
    _, S, T = (part.detach() for part in attention.eager(inputs, "relu", "sum+entropy")(*inputs.leaves))
    above = S.log() - T / S - 0.7 * inputs.visible_keys.log().unsqueeze(1)
    spread = (above > 0).float()
    weight = 1 / (20 * 2 * 2)  # rows, heads, sequences
    expected = weight * (S.log().sign() / S + spread * (1 / S + T / S**2))
    dead = S == 0
    # A row that sees one key has H = 0 and the margin 0: rounding, which differs by machine, decides whether it is above.
    alive = ~dead & (above.abs() > 1e-4)
    assert alive.float().mean() > 0.8 and 0 < spread[alive].mean() < 1
    torch.testing.assert_close(of_sum[alive], expected[alive], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(of_sum_log[alive], (-weight * spread / S)[alive], rtol=1e-3, atol=1e-6)
    assert of_sum[dead].abs().sum() == 0
