"""Variance ratios: both variances against torch's, whatever the batches, and the means over layers."""

import pytest
import torch

from reluformer.analysis.variance import VarianceRatios


def test_batches_sum_to_the_direct_computation():
    torch.manual_seed(0)
    output, residual = 0.5 * torch.randn(50, 8) + torch.arange(8.0), 2 * torch.randn(50, 8) + 3
    ratios = VarianceRatios()
    for part, beside in zip(output.split(11), residual.split(11), strict=True):
        ratios.update("encoder", 0, part, beside)
    row = ratios.table()[-1]
    within = [states.double().var(dim=-1, correction=0).mean() for states in (output, residual)]
    over = [states.double().var(dim=0, correction=0).mean() for states in (output, residual)]
    assert (row["module"], row["layer"], row["tokens"]) == ("encoder", 1, 50)
    assert row["output_variance"] == pytest.approx(float(within[0]))
    assert row["variance_ratio"] == pytest.approx(float(within[0] / within[1]))
    assert row["output_variance_over_tokens"] == pytest.approx(float(over[0]))
    assert row["variance_ratio_over_tokens"] == pytest.approx(float(over[0] / over[1]))


def test_an_output_that_is_the_same_for_all_tokens_has_variance_over_features_alone():
    ratios = VarianceRatios()
    ratios.update("decoder", 0, torch.tensor([[1.0, -1.0]]).expand(4, 2), torch.randn(4, 2))
    row = ratios.table()[-1]
    assert row["output_variance"] == 1
    assert row["variance_ratio_over_tokens"] == 0


def test_means_are_over_layers():
    ratios = VarianceRatios()
    unit = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    for stack, layer, factor in (("decoder", 0, 4.0), ("encoder", 1, 1.0), ("encoder", 0, 3.0)):
        ratios.update(stack, layer, factor * unit, unit)
    table = [(row["module"], row["layer"], row["variance_ratio"]) for row in ratios.table()]
    assert table == [
        ("all", "all", pytest.approx(26 / 3)),
        ("encoder", "all", pytest.approx(5)),
        ("decoder", "all", pytest.approx(16)),
        ("encoder", 1, pytest.approx(9)),
        ("encoder", 2, pytest.approx(1)),
        ("decoder", 1, pytest.approx(16)),
    ]
