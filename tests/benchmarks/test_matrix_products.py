"""The floor: that its products are those of attention, and that nobody else's threads change."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch


@pytest.fixture
def floors(program):
    return program("speed.matrix_products")


def case_and_inputs(program, causal, backward=True, length=37):
    contenders = program("speed.contenders")
    case = contenders.AttentionCase(1, 2, length, 8, torch.float32, causal, backward)
    return case, contenders.random_inputs(case, seed=0)


@pytest.mark.parametrize("causal", [False, True])
def test_the_products_are_those_of_attention_and_its_gradients(floors, program, causal):
    _, inputs = case_and_inputs(program, causal)
    query, key, value = (tensor.detach()[0, 0].requires_grad_() for tensor in (inputs.query, inputs.key, inputs.value))
    gradient = inputs.output_gradient[0, 0]
    rows = 16
    blocks = [(slice(s, min(s + rows, 37)), slice(0, min(s + rows, 37) if causal else 37)) for s in range(0, 37, rows)]
    products = floors._ProductsInPlace(inputs.query.detach()[0], rows)
    with torch.no_grad():
        products.forward(query, key, value, gradient, blocks)
        products.backward(query, key, value, gradient, blocks)
    visible = torch.zeros(37, 37)
    for queries, keys in blocks:
        visible[queries, keys] = 1.0  # whole blocks: the floor does not mask the diagonal
    output = ((query @ key.T) * visible) @ value
    expected = (output, *torch.autograd.grad(output, (query, key, value), gradient))
    torch.testing.assert_close(products.results, torch.stack([tensor.detach() for tensor in expected]))


def test_both_floors_do_every_head(floors, program, monkeypatch):
    case, inputs = case_and_inputs(program, causal=True)
    done = []
    monkeypatch.setattr(floors, "product", lambda first, second: done.append(first) or first @ second.T)
    with floors.MatrixProducts(2, block_size=lambda keys, bytes_per_score: 16) as pool:
        steps = pool.steps(case, inputs)
        assert set(steps) == {floors.FLOOR, floors.FLOOR_MM}
        steps[floors.FLOOR]()
        assert len(done) == 2 * 3 * 7, "heads × blocks × products"
        steps[floors.FLOOR_MM]()
        assert len(done) == 2 * 3 * 7


def test_thread_settings_of_others_stay(floors, program):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        case, inputs = case_and_inputs(program, causal=False)
        inside = []
        with floors.MatrixProducts(2) as pool:
            steps = pool.steps(case, inputs)
            steps[floors.FLOOR_MM]()
            inside += pool._pool.map(lambda _: torch.get_num_threads(), range(4))
            assert torch.get_num_threads() == 3
        assert inside == [1] * 4
        with ThreadPoolExecutor(1) as other:
            assert other.submit(torch.get_num_threads).result() == 3
        assert threading.active_count() < 50
    finally:
        torch.set_num_threads(before)
