"""Every benchmark: a quick run measures all contenders, and its cells are those of the committed results."""

import argparse
import json
import os
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as benchmarks_program
from benchmarks import attention, translating
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.avx2 import HELD_TO_AVX2
from benchmarks.measurement_file import RESULTS, Benchmark, read_result

# Each takes several seconds; the others run the same code.
SLOW = {"attention", "attention-avx2", "end-to-end", "decoder"}
NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in BENCHMARKS
    if name != "translating-types"
]


def committed_cells(name):
    result = read_result(RESULTS / f"{name}-cpu.json")
    return pytest.skip("not measured yet") if result is None else result["cells"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_quick_run_times_every_contender_of_the_committed_results(name, tmp_path, monkeypatch):
    pytest.importorskip("entmax", reason="two of the rivals need the optional package entmax")
    if name.endswith("-avx2"):
        for variable, value in HELD_TO_AVX2.items():
            monkeypatch.setenv(variable, value)
    if name in ("translating", "translating-avx2"):
        pytest.importorskip("ctranslate2", reason="the rival is not installed")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setattr("sys.argv", [benchmarks_program.__file__, name, "--quick"])
    assert main([name, "--quick", "--output", str(tmp_path)]) == 0
    assert os.listdir(tmp_path) == [f"{name}-cpu.json"], "no page of a quick run"
    result = json.loads((tmp_path / f"{name}-cpu.json").read_text(encoding="utf-8"))
    assert result["quick"] and result["seed"] == 0 and "git_commit" in result and "threads" in result["settings"]
    assert result["command"] == f"python -m benchmarks {name} --quick"
    assert result["environment"]["MALLOC_ARENA_MAX"] == "1" and result["machine"]["memory_gb"] > 0
    committed = committed_cells(name)
    for cell in result["cells"]:
        alike = [each for each in committed if each["speedups"].keys() >= cell["speedups"].keys()]
        assert any(cell["times"].keys() <= each["times"].keys() for each in alike), "contenders of a committed cell"
        assert all(values["rounds"] == 3 for values in cell["times"].values())
        for rival, ratio in next(iter(cell["speedups"].values())).items():
            mine, other = (cell["times"][who] for who in (next(iter(cell["speedups"])), rival))
            low, high = sorted((other["p10_ms"] / mine["p90_ms"], other["p90_ms"] / mine["p10_ms"]))
            assert 0.5 * low <= ratio["median"] <= 2 * high
        parameters = cell.get("parameters", 0)
        if name in ("end-to-end", "decoder"):
            assert len(set(parameters.values())) == 1, "all contenders have the same number of weights"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_cells_are_those_of_the_committed_results(name):
    planned = list(BENCHMARKS[name].cells(False))
    committed = committed_cells(name)

    def told(cells):
        facts = {fact for cell in planned for fact in cell}
        return [json.dumps({fact: cell[fact] for fact in sorted(facts & cell.keys())}) for cell in cells]

    assert set(told(planned)) <= set(told(committed))


def test_avx2_alone_is_measured_where_everything_is_held_to_it(tmp_path, monkeypatch, capsys):
    variables = HELD_TO_AVX2
    targets = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    assert all(f"{name}={value}" in targets for name, value in variables.items())
    cells = list(translating.avx2_cells(quick=False))
    assert len(cells) == 13 and {cell["threads"] for cell in cells} == {2}
    chosen, operators = [], torch.ops.reluformer_cpu
    monkeypatch.setattr(operators, "choose_instruction_set", chosen.append)
    monkeypatch.setattr(translating, "measure", lambda *_: {"chosen": chosen[-1]})
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CT2_FORCE_CPU_ISA")
    assert main(["translating-avx2", "--quick", "--output", str(tmp_path)]) == 2
    assert "not set: CT2_FORCE_CPU_ISA=AVX2; `make bench-avx2` sets them" in capsys.readouterr().err
    assert chosen == [] and not list(tmp_path.iterdir())
    monkeypatch.setenv("CT2_FORCE_CPU_ISA", "AVX2")
    assert main(["translating-avx2", "--quick", "--output", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "translating-avx2-cpu.json").read_text(encoding="utf-8"))
    assert result["environment"].items() >= variables.items() and result["settings"]["instruction_set"] == "AVX2 alone"
    assert result["cells"][0]["chosen"] == "avx2" and chosen == ["avx2", operators.instruction_sets()[0]]


def test_a_type_is_scored_beside_generate(monkeypatch):
    texts = {"de": ["Wo ist der Bahnhof?", "Guten Morgen!"], "en": ["Where is the station?", "Good morning!"]}
    monkeypatch.setattr(translating, "_multi30k_test", texts.get)
    cell = next(translating.models_and_beams(quick=True))
    types = translating.measure_types(cell, argparse.Namespace(quick=True))["types"]
    assert list(types) == ["generate", "float32", "int8"]
    assert types["float32"]["equal"] == 2 and types["float32"]["bleu"] == types["generate"]["bleu"] > 10


def test_the_slowest_rivals_stay_where_one_sequence_is_timed():
    for cell in attention.cells(False):
        names = attention.contenders_of(cell)
        one = cell["batch"] == 1 and cell["head_dim"] == 64 and cell["length"] >= 64
        assert ("sparsemax" in names) == (one and cell["length"] <= 1024)
        goals_need_it = cell["length"] <= 256 or (one and (cell["length"] <= 1024 or not cell["causal"]))
        assert ("eager relu" in names) == goals_need_it
        assert {"fused", "fused+S+T", "sdpa softmax"} <= set(names)


def test_threads_of_a_cell_are_set_for_it_alone(tmp_path):
    before, seen = torch.get_num_threads(), []
    cells = [{"threads": before + 1}, {}]
    measure = lambda cell, options: seen.append(torch.get_num_threads()) or {}  # noqa: E731
    options = argparse.Namespace(quick=True, seed=0, output=tmp_path)
    Benchmark("threads", lambda quick: cells, measure, {}).run(options)
    assert seen == [before + 1, before] and torch.get_num_threads() == before


def test_flex_attention_computes_relu_attention():
    case = attention.AttentionCase(1, 2, 33, 16, torch.float32, causal=False, backward=False)
    inputs = attention.random_inputs(case, seed=0)
    step = attention.inference_step(attention.flex_relu(case, inputs, torch_compile=False), inputs.leaves)
    assert attention.error(inputs, step) < 1e-5
