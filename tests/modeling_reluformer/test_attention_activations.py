"""The table of activations: what it says of each is true, and every place that has code of its own has one for each."""

import ast
from pathlib import Path

import pytest
import torch

from reluformer import modeling_reluformer
from reluformer.modeling_reluformer.attention_reluformer import ACTIVATIONS, POINTWISE

from ..conftest import VARIANTS, tiny_config
from . import paper_formulas

KERNELS = (
    Path(modeling_reluformer.__file__).with_name("fused") / "triton_pointwise.py"
)  # read, not imported: it needs Triton


def scores() -> torch.Tensor:
    """On both sides of every corner, 0 and 6, and past them; none on a corner."""
    return torch.linspace(-9, 9, 360, dtype=torch.float64)


@pytest.mark.parametrize("name", POINTWISE)
def test_the_function_is_that_of_the_papers(name):
    found = POINTWISE[name].function(scores())
    by_hand = [paper_formulas.POINTWISE[name](float(score)) for score in scores()]
    torch.testing.assert_close(found, torch.tensor(by_hand, dtype=torch.float64), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("name", POINTWISE)
def test_the_derivative_is_that_of_the_function(name):
    leaf = scores().requires_grad_()
    (expected,) = torch.autograd.grad(POINTWISE[name].function(leaf).sum(), leaf)
    torch.testing.assert_close(POINTWISE[name].derivative(scores()).double(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", POINTWISE)
def test_its_properties_are_those_of_the_function(name):
    activation, zero = POINTWISE[name], torch.zeros(1, dtype=torch.float64)
    weights = activation.function(scores())
    assert activation.never_negative == bool((weights >= 0).all())
    assert activation.zero_at_zero == bool(activation.function(zero) == 0)
    assert activation.closed_at_zero == (activation.zero_at_zero and not activation.derivative(zero).any())
    assert activation.homogeneous == torch.allclose(activation.function(3 * scores()), 3 * weights, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_has_a_formula_and_a_title(name):
    activation = ACTIVATIONS[name]
    assert activation.title and "x_{ij}" in activation.latex
    assert activation.latex.count("{") == activation.latex.count("}")


@pytest.mark.parametrize("function", ["activate", "activation_gradient"])
def test_the_gpu_kernels_know_the_same_activations(function):
    """By their source. Where a kernel knows no branch for a name, it does not compile; on a CPU nobody would see it."""
    (kernel,) = (
        node
        for node in ast.parse(KERNELS.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == function
    )
    comparisons = [node for node in ast.walk(kernel) if isinstance(node, ast.Compare)]
    known = {
        constant.value
        for comparison in comparisons
        if isinstance(comparison.left, ast.Name) and comparison.left.id == "ACTIVATION"
        for constant in comparison.comparators
    }
    assert known == POINTWISE.keys(), f"add it to fused/triton_pointwise.{function}"


def test_the_configuration_takes_exactly_these():
    assert {tiny_config(**fields).attention_activation for fields in VARIANTS.values()} == ACTIVATIONS.keys()
