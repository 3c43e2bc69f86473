"""The compiled loops and the gather against float64, for every instruction set that the processor has."""

import pytest
import torch

from reluformer.modeling_reluformer.fused.compiled import library
from reluformer.modeling_reluformer.sparse_ffn import gather
from reluformer.modeling_reluformer.sparse_ffn.forward import PreparedWeights
from reluformer.modeling_reluformer.sparse_ffn.gather import Neurons

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
WEIGHTS = [*DTYPES, torch.int8]


@pytest.fixture(params=["gather", "portable", "avx2", "avx512"])
def loops(request, monkeypatch):
    """`loops.feed_forward` and its like, each compiled set and torch's gather."""
    if request.param == "gather":
        yield gather
        return
    operators = library.sparse_library(large=True)
    if operators is None:
        pytest.skip("the compiled library cannot be built here")
    sets = operators.ffn_instruction_sets()
    if request.param not in sets:
        pytest.skip(f"this processor has {', '.join(sets)}")
    operators.choose_ffn_instruction_set(request.param)
    yield Compiled(operators)
    operators.choose_ffn_instruction_set(sets[0])


class Compiled:
    """The operators with the arguments of gather.py."""

    def __init__(self, operators) -> None:
        self.operators = operators

    def feed_forward(self, x, first, up, second, activation, up_activation="identity", hidden=None, all_active=False):
        up = up or (None, None, None)
        return self.operators.sparse_ffn(x, *first, *up, *second, activation, up_activation, hidden, all_active)

    def sparse_projection(self, hidden, second, all_active=False):
        return self.operators.sparse_projection(hidden, *second, all_active)

    def project(self, x, neurons):
        return self.operators.dense_projection(x, *neurons)


def linear(inputs: int, outputs: int, dtype: torch.dtype, bias: bool = True) -> torch.nn.Linear:
    layer = torch.nn.Linear(inputs, outputs, bias=bias, dtype=dtype)
    with torch.no_grad():
        layer.weight.normal_()
        if bias:
            layer.bias.normal_()
    return layer


def network(features: int, neurons: int, outputs: int, kind: torch.dtype, dtype: torch.dtype, bias: bool = True):
    """first, up, second as loops read them."""
    int8 = kind == torch.int8
    layers = (linear(features, neurons, dtype, bias), linear(features, neurons, dtype, bias))
    second = linear(neurons, outputs, dtype, bias)
    return *(PreparedWeights(layer, transposed=False, int8=int8).current() for layer in layers), PreparedWeights(
        second, transposed=True, int8=int8
    ).current()


def exact(neurons: Neurons) -> tuple[torch.Tensor, torch.Tensor | float]:
    weight = neurons.weight.double()
    if neurons.scale is not None:
        weight = weight * neurons.scale.double().unsqueeze(1)
    return weight, 0.0 if neurons.bias is None else neurons.bias.double()


FUNCTIONS = {
    "identity": lambda z: z,
    "relu": torch.relu,
    "relu2": lambda z: torch.relu(z) ** 2,
    "relu6": lambda z: z.clamp(0, 6),
}


def scores(x, neurons: Neurons) -> torch.Tensor:
    """`w_i·x + b_i` in float64. Inputs of int8 weights are rounded as they say, which is tested by itself."""
    x = x.double()
    if neurons.scale is not None:
        steps, scales = gather.quantized_rows(x.float())
        x = steps.double() * scales.double().unsqueeze(1)
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
@pytest.mark.parametrize("kind", WEIGHTS, ids=str)
@pytest.mark.parametrize("gate", ["none", "identity", "relu"])
def test_equals_the_dense_network_in_float64(loops, size, kind, gate):
    torch.manual_seed(sum(size))
    rows, *widths = size
    for dtype in DTYPES if kind == torch.int8 else [kind]:
        for bias in (True, False):
            first, up, second = network(*widths, kind, dtype, bias)
            up = None if gate == "none" else up
            x = torch.randn(rows, widths[0]).to(dtype)
            found = loops.feed_forward(x, first, up, second, "relu", gate.replace("none", "identity"))
            assert_close(found, oracle(x, first, up, second, "relu", gate.replace("none", "identity")), dtype)
            hidden = loops.project(x, first)
            assert_close(hidden, scores(x, first), dtype)
            weight, bias_of_all = exact(second)
            kept = hidden.relu()
            assert_close(loops.sparse_projection(kept, second), kept.double() @ weight + bias_of_all, dtype)


@pytest.mark.parametrize("kind", WEIGHTS, ids=str)
@pytest.mark.parametrize("activation", ["relu", "relu2", "relu6"])
@pytest.mark.parametrize("shift", [-1e3, 0, 1e3], ids=["all zero", "some", "all active"])
def test_every_activation(loops, kind, activation, shift):
    """Also of rows and weights that are not aligned, and of a row of zeros."""
    dtype = torch.float32 if kind == torch.int8 else kind
    parts = [part._replace(weight=moved(part.weight)) for part in network(37, 90, 41, kind, dtype)]
    first, up, second = parts
    first = first._replace(bias=first.bias + shift)
    x = moved(torch.randn(3, 37).to(dtype))
    x[1] = 0
    for factor, up_activation in ((None, "identity"), (up, "identity"), (up, "relu2"), (up, "relu")):
        found = loops.feed_forward(x, first, factor, second, activation, up_activation)
        assert_close(found, oracle(x, first, factor, second, activation, up_activation), dtype)
        if shift < 0:
            assert torch.equal(found, second.bias.to(dtype).expand(3, -1))


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """The same, one element behind an aligned place."""
    return torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("kind", WEIGHTS, ids=str)
def test_activations_that_are_given(loops, kind):
    """As those of a threshold or of top-k, which torch computes."""
    dtype = torch.float32 if kind == torch.int8 else kind
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
    asleep = (gather.project(x, first)[0] <= 0).nonzero()[0]
    for part in (up, second):
        kept = part.weight.clone()
        part.weight[asleep] = torch.nan
        assert loops.feed_forward(x, first, up, second, "relu").isfinite().all()
        assert loops.feed_forward(x, first, up, second, "relu", all_active=True).isnan().all()
        hidden = gather.activated(gather.project(x, first), "relu")
        if part is second:
            assert loops.sparse_projection(hidden, second).isfinite().all()
            assert loops.sparse_projection(hidden, second, True).isnan().all()
        part.weight.copy_(kept)


@pytest.mark.parametrize("kind", DTYPES, ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_numbers_that_are_not_finite_come_back_as_the_dense_network_gives_them(loops, kind, value):
    first, up, second = network(30, 70, 20, kind, kind)
    x = torch.randn(3, 30).to(kind)
    x[1, 7] = value
    for factor, up_activation in ((None, "identity"), (up, "identity"), (up, "relu2"), (up, "relu")):
        found = loops.feed_forward(x, first, factor, second, "relu", up_activation)
        expected = oracle(x, first, factor, second, "relu", up_activation).to(kind)
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found[found.isinf()], expected[expected.isinf()])
        assert_close(found[[0, 2]], expected[[0, 2]].double(), kind)


@pytest.mark.parametrize("kind", WEIGHTS, ids=str)
def test_threads_share_the_neurons(loops, kind):
    """So many that two threads take part, and an odd number of them."""
    dtype = torch.float32 if kind == torch.int8 else kind
    parts = network(200, 1701, 190, kind, dtype)
    x, before = torch.randn(2, 200).to(dtype), torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert_close(loops.feed_forward(x, *parts, "relu"), oracle(x, *parts, "relu"), dtype)
    finally:
        torch.set_num_threads(before)


def test_rows_in_int8_have_127_steps():
    x = torch.randn(4, 30) * torch.tensor([[1e-38], [1e-20], [1e20], [0.0]])
    steps, scales = gather.quantized_rows(x)
    assert steps.abs().amax(1).tolist() == [0, 127, 127, 0]
    error = (steps * scales.unsqueeze(1) - x)[1:3]
    assert (error.abs() <= 0.5001 * scales[1:3].unsqueeze(1)).all()
    assert gather.quantized_rows(torch.tensor([[torch.inf, 1.0]]))[1].isnan().all()


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
    operators = library.sparse_library(large=True)
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
