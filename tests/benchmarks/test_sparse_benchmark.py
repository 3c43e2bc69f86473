"""Networks and models with zeros beside torch and the dense loop: zeros as asked for, and a page of the figures."""

import json
from dataclasses import replace

import pytest
import torch

from reluformer import use_sparse_ffn


@pytest.fixture
def sparse(program):
    return program("speed.sparse")


@pytest.fixture
def models(program):
    return program("speed.sparse_models")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_quick_run_times_every_contender_and_makes_a_page(program, sparse, models, tmp_path):
    output, whole, page = (tmp_path / name for name in ("sparse.json", "models.json", "SPARSE.md"))
    threads = torch.get_num_threads()
    try:
        assert sparse.main(["--quick", "--output", str(output)]) == 0
        assert models.main(["--quick", "--output", str(whole)]) == 0
    finally:
        torch.set_num_threads(threads)
    result = json.loads(output.read_text(encoding="utf-8"))
    assert [(cell["kind"], cell["rows"], cell["threads"]) for cell in result["cells"]] == [
        (kind, 1, count) for kind in ("MLP", "GLU") for count in (1, 2)
    ]
    names = {
        f"{dtype} {how}" for dtype in sparse.DTYPES for how in ("torch", "dense", *(f"zeros {z}" for z in sparse.ZEROS))
    }
    for cell in result["cells"]:
        assert set(cell["times"]) == set(cell["speedups"]) == names and cell["bandwidth"] > 0
    cells = json.loads(whole.read_text(encoding="utf-8"))["models"]
    assert [cell["threads"] for cell in cells] == [1, 2]
    assert all(set(cell["times"]) == set(models.CONTENDERS) for cell in cells)
    files = ["--result", str(output), "--models", str(whole), "--output", str(page)]
    assert program("speed.sparse_tables").main(files) == 0
    text = page.read_text(encoding="utf-8")
    assert "A quick run" in text and text.count("≥ 2.3× dense") == 2 and text.count("≥ 2.0× torch") == 2
    assert "### 1 row, 2 threads" in text
    over = result["cells"][2]["speedups"]["float32 zeros 95"]["float32 dense"]
    assert f"| GLU, d = 32, 1 thread, float32 | ≥ 2.3× dense | {over['median']:.2f} (" in text


@pytest.mark.parametrize("kind", ["MLP", "GLU"])
def test_zeros_are_those_asked_for_and_every_contender_computes_the_network(sparse, kind):
    torch.manual_seed(0)
    cell, generator = sparse.Cell(96, kind, 5, 1), torch.Generator().manual_seed(0)
    with torch.no_grad():
        (network,) = sparse.build(cell, "float32", 1, generator)
        for share in sparse.ZEROS:
            rows = sparse.shifted_rows(cell, share, generator)
            found = sparse.zeros_of(network, rows)
            assert found["zeros"] == pytest.approx(share / 100, abs=0.05)
            assert found["active"] == pytest.approx(1 - (share / 100) ** 5, abs=0.08), "rows are independent"
            for all_active in (False, True):
                torch.testing.assert_close(sparse.skipping(network, False, all_active)(rows), network(rows))


def test_calls_take_the_networks_in_turn(sparse):
    seen = []
    step = sparse.cycle([lambda rows, number=number: seen.append((number, rows)) for number in range(3)], "x")
    for _ in range(4):
        step()
    assert seen == [(0, "x"), (1, "x"), (2, "x"), (0, "x")]
    cell = sparse.Cell(32, "GLU", 1, 1)
    with torch.no_grad():
        stack = sparse.build(cell, "bfloat16", 2**16, torch.Generator())
    size = sum(part.numel() * part.element_size() for part in stack[0].parameters())
    assert size == cell.bytes_read("bfloat16", 1.0) and len(stack) == -(-(2**16) // size)


@pytest.mark.parametrize("shape", range(3))
def test_models_have_the_zeros_asked_for(models, monkeypatch, shape):
    name = list(models.SHAPES)[shape]
    cell = models.ModelCell(name, 90, 1, 1)
    small = models.SHAPES[name].sizes | {
        "num_hidden_layers": 1,
        "vocab_size": 64,
    }
    monkeypatch.setitem(models.SHAPES, name, replace(models.SHAPES[name], sizes=small))
    with torch.no_grad():
        model = models.build_model(cell, False, 0)
        step = models.generation(model, torch.tensor([[5, 6]]), 3, 1)
        assert models.zeros_while(model, step) == pytest.approx(0.9, abs=0.03)
        assert torch.equal(models.generation(use_sparse_ffn(model), torch.tensor([[5, 6]]), 3, 1)(), step())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", ["torch", "both"])
def test_int8_of_torch_takes_the_networks_that_skip_zeros_only_where_nothing_else_does(models, how):
    with torch.no_grad():
        model = models.build_model(models.ModelCell(models.OURS, 90, 1, 1), True, 0)
    found = models.contender(model, f"int8 {how}")
    own = [name for name, part in found.named_modules() if type(part) is torch.nn.Linear]
    assert [name.rpartition(".")[2] for name in own] == (["gate_proj", "up_proj", "down_proj"] if how == "both" else [])
    assert ("forward" in vars(found.model.layers[0].mlp)) == (how == "both")
    assert "quantized" in type(found.lm_head).__module__ and "forward" not in vars(model.model.layers[0].mlp)


def test_the_bound_is_that_of_the_weights_that_are_read(sparse):
    for kind, most in (("MLP", 1.90), ("GLU", 2.73)):
        cell = sparse.Cell(512, kind, 1, 1)
        assert cell.bytes_read("float32", 1.0) / cell.bytes_read("float32", 0.05) == pytest.approx(most, abs=0.005)
    assert isinstance(sparse.measured_bandwidth(2**16), float)


def test_the_page_is_that_of_the_committed_figures(program):
    tables = program("speed.sparse_tables")
    results = (tables.read(tables.RESULTS / name) for name in (tables.RESULT, tables.MODELS, tables.TRAINED))
    assert (tables.PAGES / "SPARSE.md").read_text(encoding="utf-8") == tables.render(*results)


def test_the_cells_are_those_of_the_page(sparse, models):
    assert len(list(sparse.all_cells())) == 3 * 2 * 3 * 2
    assert len(list(models.all_models((1, 2)))) == 3 * 3 * 2
