"""The compiled loops against float64, for every instruction set that the processor has."""

import pytest
import torch

from reluformer.modeling_reluformer.compiled.library import library
from reluformer.modeling_reluformer.sparse_ffn.forward import Neurons, PreparedWeights

# rows, features, neurons, outputs: below, at and above the widths of vectors, blocks of neurons and of rows
SIZES = [
    (1, 1, 1, 1),
    (1, 64, 64, 64),
    (2, 15, 3, 17),
    (3, 33, 66, 31),
    (4, 65, 130, 16),
    (5, 100, 37, 70),
    (8, 128, 257, 129),
    (9, 47, 8, 5),
]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
DTYPES = [torch.float32, torch.bfloat16]
KINDS = [(kind, dtype) for dtype in DTYPES for kind in (dtype, torch.int8)]  # of weights and of inputs
FUNCTIONS = {
    "identity": lambda z: z,
    "relu": torch.relu,
    "relu2": lambda z: torch.relu(z) ** 2,
    "relu6": lambda z: z.clamp(0, 6),
}


class Compiled:
    """The operators with their arguments by network."""

    def __init__(self, operators) -> None:
        self.operators = operators

    def feed_forward(self, x, first, up, second, activation, up_activation="identity", hidden=None, all_active=False):
        up = up or (None, None, None)
        return self.operators.sparse_ffn(x, *first, *up, *second, activation, up_activation, hidden, all_active)

    def sparse_projection(self, hidden, second, all_active=False):
        return self.operators.sparse_projection(hidden, *second, all_active)

    def project(self, x, neurons):
        return self.operators.dense_projection(x, *neurons)


@pytest.fixture(params=["avx2", "avx512"])
def loops(request, choose_instruction_set):
    """`loops.feed_forward` and its like, by each compiled set."""
    torch.manual_seed(0)
    choose_instruction_set(request.param)
    return Compiled(library(large=True))


def linear(inputs: int, outputs: int, dtype: torch.dtype, bias: bool = True) -> torch.nn.Linear:
    layer = torch.nn.Linear(inputs, outputs, bias=bias, dtype=dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    return layer


def network(features: int, neurons: int, outputs: int, kind: torch.dtype, dtype: torch.dtype, bias: bool = True):
    """first, up, second as loops read them."""
    layers = [linear(features, neurons, dtype, bias) for _ in range(2)] + [linear(neurons, outputs, dtype, bias)]
    return [
        PreparedWeights(layer, transposed=layer is layers[2], int8=kind == torch.int8).current() for layer in layers
    ]


def exact(neurons: Neurons) -> tuple[torch.Tensor, torch.Tensor | float]:
    weight = neurons.weight.double()
    if neurons.scale is not None:
        weight = weight * neurons.scale.double().unsqueeze(1)
    return weight, 0.0 if neurons.bias is None else neurons.bias.double()


def scores(x, neurons: Neurons) -> torch.Tensor:
    """`w_i·x + b_i` in float64. With int8 weights, inputs have 127 steps either way, and one scale a row."""
    x = x.double()
    if neurons.scale is not None:
        largest = x.float().abs().amax(1, keepdim=True)
        steps = (x.float() * torch.where(largest > 1e-30, 127 / largest, 0.0)).round()
        x = steps.double() * (largest / 127).double()
    weight, bias = exact(neurons)
    return x @ weight.t() + bias


def oracle(x, first, up, second, activation, up_activation="identity"):
    """The dense network in float64."""
    hidden = FUNCTIONS[activation](scores(x, first))
    if up is not None:
        hidden = hidden * FUNCTIONS[up_activation](scores(x, up))
    weight, bias = exact(second)
    return hidden @ weight + bias


def assert_close(found, expected, dtype) -> None:
    assert found.dtype == dtype
    error = (found.double() - expected).norm() / expected.norm().clamp_min(1e-6)
    assert error < TOLERANCE[dtype], f"relative error {error:.1e}"


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", ""])
def test_equals_the_dense_network_in_float64(loops, size, bias):
    rows, *widths = size
    for kind, dtype in KINDS:
        first, up, second = network(*widths, kind, dtype, bias)
        x = torch.randn(rows, widths[0]).to(dtype)
        for factor, up_activation in ((None, "identity"), (up, "identity"), (up, "relu")):
            found = loops.feed_forward(x, first, factor, second, "relu", up_activation)
            assert_close(found, oracle(x, first, factor, second, "relu", up_activation), dtype)
        hidden = loops.project(x, first)
        assert_close(hidden, scores(x, first), dtype)
        weight, bias_of_all = exact(second)
        kept = hidden.relu()
        assert_close(loops.sparse_projection(kept, second), kept.double() @ weight + bias_of_all, dtype)


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """The same, one element behind an aligned place."""
    return torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("activation", ["relu", "relu2", "relu6"])
@pytest.mark.parametrize("shift", [-1e3, 0, 1e3], ids=["all zero", "some", "all active"])
def test_every_activation(loops, activation, shift):
    """Also of rows and weights that are not aligned, and of a row of zeros."""
    for kind, dtype in KINDS:
        first, up, second = (part._replace(weight=moved(part.weight)) for part in network(37, 90, 41, kind, dtype))
        first = first._replace(bias=first.bias + shift)
        x = moved(torch.randn(3, 37).to(dtype))
        x[1] = 0
        for factor, up_activation in ((None, "identity"), (up, "identity"), (up, "relu2"), (up, "relu")):
            found = loops.feed_forward(x, first, factor, second, activation, up_activation)
            assert_close(found, oracle(x, first, factor, second, activation, up_activation), dtype)
            if shift < 0:
                assert torch.equal(found, second.bias.to(dtype).expand(3, -1))


def test_a_neuron_that_the_last_of_many_rows_alone_needs_is_computed(loops):
    parts, x = network(30, 4, 20, torch.float32, torch.float32), torch.randn(9, 30)
    parts[0].bias.zero_()
    x[:8] = 0
    assert_close(loops.feed_forward(x, *parts, "relu"), oracle(x, *parts, "relu"), torch.float32)


def test_activations_that_are_given(loops):
    """As those of a threshold or of top-k, which torch computes."""
    for kind, dtype in KINDS:
        first, up, second = network(50, 90, 40, kind, dtype)
        x = torch.randn(3, 50).to(dtype)
        kept = loops.project(x, first)
        kept = kept.masked_fill(kept.abs() < 5, 0)
        assert 0.1 < (kept == 0).float().mean() < 0.9
        weight, bias = exact(second)
        for factor in (None, up):
            found = loops.feed_forward(x, first, factor, second, "identity", hidden=kept)
            hidden = kept.double() * (1 if factor is None else loops.project(x, up).double())
            assert_close(found, hidden @ weight + bias, dtype)


def test_what_lies_behind_a_zero_is_not_read(loops):
    """A NaN there would be seen; with `all_active` it is."""
    first, up, second = network(30, 70, 20, torch.float32, torch.float32)
    x = torch.randn(1, 30)
    hidden = loops.project(x, first).relu().index_fill(1, torch.arange(8), 0)
    for part in (up, second):
        kept = part.weight.clone()
        part.weight[3] = torch.nan
        assert loops.feed_forward(x, first, up, second, "relu", hidden=hidden).isfinite().all()
        assert loops.feed_forward(x, first, up, second, "relu", hidden=hidden, all_active=True).isnan().all()
        if part is second:
            assert loops.sparse_projection(hidden, second).isfinite().all()
            assert loops.sparse_projection(hidden, second, True).isnan().all()
        part.weight.copy_(kept)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_numbers_that_are_not_finite_come_back_as_the_dense_network_gives_them(loops, value):
    for dtype in DTYPES:
        first, up, second = network(30, 70, 20, dtype, dtype)
        x = torch.randn(3, 30).to(dtype)
        x[1, 7] = value
        for factor, up_activation in ((None, "identity"), (up, "identity"), (up, "relu2"), (up, "relu")):
            found = loops.feed_forward(x, first, factor, second, "relu", up_activation)
            expected = oracle(x, first, factor, second, "relu", up_activation).to(dtype)
            assert torch.equal(found.isnan(), expected.isnan())
            assert torch.equal(found[found.isinf()], expected[expected.isinf()])
            assert_close(found[[0, 2]], expected[[0, 2]].double(), dtype)
    first, up, second = network(30, 70, 20, torch.int8, torch.float32)
    assert loops.feed_forward(x.float(), first, up, second, "relu").isfinite().all(1).tolist() == [True, False, True]


def test_a_zero_times_a_number_that_is_not_finite_is_not_skipped(loops):
    """An infinite input makes each neuron 0 in its row, and its factor infinite; no other row makes the neurons
    active."""
    for dtype in DTYPES:
        first, up, second = network(30, 70, 20, dtype, dtype)
        first.weight[:, 7].abs_().neg_()
        x = torch.randn(1, 30).to(dtype)
        x[0, 7] = torch.inf
        assert (scores(x, first) == -torch.inf).all() and scores(x, up).isinf().all()
        assert loops.feed_forward(x, first, up, second, "relu").isnan().all()


def test_threads_leave_no_neuron_out(loops, set_threads):
    """1,601 is one more than two threads share evenly."""
    set_threads(2)
    parts, x = network(200, 1601, 190, torch.float32, torch.float32), torch.randn(2, 200)
    assert_close(loops.feed_forward(x, *parts, "identity"), oracle(x, *parts, "identity"), torch.float32)


def test_threads_share_the_neurons(loops, set_threads):
    """So many that two threads take part, and an odd number of them."""
    for kind, dtype in KINDS:
        parts, x = network(200, 1701, 190, kind, dtype), torch.randn(2, 200).to(dtype)
        expected = oracle(x, *parts, "relu")
        for threads in (1, 2, 3):
            set_threads(threads)
            assert_close(loops.feed_forward(x, *parts, "relu"), expected, dtype)


def test_weights_in_int8_have_127_steps_of_each_neuron():
    layer = linear(40, 30, torch.float32)
    layer.weight.data[3] = 0
    for transposed in (False, True):
        neurons = PreparedWeights(layer, transposed=transposed, int8=True).current()
        rows = layer.weight.t() if transposed else layer.weight
        assert neurons.weight.abs().amax(1).tolist() == [127 if row.any() else 0 for row in rows]
        error = neurons.weight * neurons.scale.unsqueeze(1) - rows
        assert (error.abs() <= 0.5001 * neurons.scale.unsqueeze(1)).all()


@pytest.mark.parametrize("place", range(6))
def test_tensors_that_do_not_fit_are_refused(place):
    operators = library(large=True)
    if operators is None:
        pytest.skip("the compiled library cannot be built here")
    first, up, second = network(30, 70, 20, torch.float32, torch.float32)
    x = torch.randn(2, 30)
    wrong = [
        (x[:, 1:], first, up, second),
        (x.double(), first, up, second),
        (x, first, up._replace(weight=up.weight[1:]), second),
        (x, first, up, second._replace(weight=second.weight.t())),
        (x, first, up, second._replace(weight=second.weight.bfloat16())),
        (x, first._replace(bias=first.bias.double()), up, second),
    ]
    with pytest.raises(ValueError, match="reluformer_cpu::sparse_ffn"):
        Compiled(operators).feed_forward(*wrong[place], "relu")
