"""Peak memory: what is expected of longer cells, what is not run, and one real measurement in a child."""

import argparse
import json
import subprocess
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


@pytest.fixture
def memory(program):
    return program("memory.peak")


def test_needs_are_a_linear_and_a_quadratic_part(memory):
    needs = {n: 7.0 * n + 3.0 * n * n for n in (64, 128)}
    assert memory.expected_bytes(needs, 256) == pytest.approx(7.0 * 256 + 3.0 * 256**2)
    assert memory.expected_bytes({64: 10.0, 128: 15.0}, 256) == pytest.approx(40.0), "less than linear counts as linear"
    assert memory.expected_bytes({64: 10.0}, 128) == 40.0 and memory.expected_bytes({}, 64) == 0.0


def test_cells_beyond_the_limit_are_computed_and_not_run(memory, monkeypatch):
    run = []

    def fake(cell, options):
        run.append(cell["length"])
        return {"extra_bytes": 1000.0 * cell["length"] ** 2}

    monkeypatch.setattr(memory, "run_cell", fake)
    settings = {"limit_bytes": 1e9}
    with memory.tqdm(disable=True) as progress:
        cells = memory.climb(
            "attention", "eager relu", (512, 1024, 2048, 4096), settings, argparse.Namespace(seed=0), progress
        )
    assert run == [512]
    assert [cell.get("not_run") for cell in cells] == [None, *(f"needs about {gb} GB" for gb in (1, 4, 17))]


def test_after_a_cell_that_did_not_finish_no_longer_one_is_run(memory, monkeypatch):
    monkeypatch.setattr(memory, "run_cell", lambda cell, options: {"not_run": "not finished within 1 s"})
    with memory.tqdm(disable=True) as progress:
        cells = memory.climb("model", "sdpa", (64, 128), {"limit_bytes": 1e9}, argparse.Namespace(seed=0), progress)
    assert [cell["not_run"] for cell in cells] == ["not finished within 1 s"] * 2


def test_a_child_that_does_not_finish_in_time_says_so(memory, monkeypatch):
    def late(*args, **kwargs):
        raise subprocess.TimeoutExpired("memory_step", 1)

    monkeypatch.setattr(memory.subprocess, "run", late)
    options = argparse.Namespace(threads=None, timeout=1.0)
    assert memory.run_cell({"length": 64}, options) == {"not_run": "not finished within 1 s"}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from Linux's /proc")
def test_a_child_finds_the_memory_of_the_weights(memory, monkeypatch):
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "0")
    options = argparse.Namespace(threads=1, timeout=300.0)
    cell = {"what": "attention", "contender": "eager relu", "length": 1024, "seed": 0}
    measured = memory.run_cell(cell, options)
    weights = 8 * 1024 * 1024 * 4
    assert 3 * weights < measured["extra_bytes"] < 12 * weights
    assert "1 × 8 × 1024 × 1024 float32" in measured["queries_by_keys_tensors"]


def test_the_allocator_is_glibc_s_own(memory):
    assert memory.child_environment({"MALLOC_MMAP_MAX_": "0", "HOME": "/"}) == {"HOME": "/"}


# long enough that `fused` does not take plain products
LENGTH = 400


def test_masks_of_queries_by_keys_are_seen_in_a_model(program):
    step = program("memory.peak_step")
    seen = {}
    for contender in ("fused", "sdpa"):
        run = step.model_step(contender, seed=0)(LENGTH)
        with step.QueriesByKeys(LENGTH) as inspected:
            run()
        seen[contender] = inspected.shapes
    assert any("bool" in shape for shape in seen["sdpa"]), "the library's mask"
    assert not any("bool" in shape for shape in seen["fused"])


def test_attention_alone_has_the_gradients_of_all_inputs(program, monkeypatch):
    step = program("memory.peak_step")
    for contender in step.CONTENDERS:
        calls = []
        monkeypatch.setattr(torch.autograd, "grad", lambda *args, calls=calls: calls.append(args))
        step.attention_step(contender, seed=0)(16)()
        (arguments,) = calls
        assert len(arguments[1]) == 3 and (contender == "sdpa" or len(arguments[0]) == 2)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from Linux's /proc")
def test_a_run_writes_settings_and_cells(memory, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "run_cell", lambda cell, options: {"extra_bytes": 1, "seconds": 0.0})
    assert memory.main(["--output", str(tmp_path / "memory.json")]) == 0
    result = json.loads((tmp_path / "memory.json").read_text(encoding="utf-8"))
    assert len(result["cells"]) == 2 * 3 * 5 + 2 * 3
    assert [cell["vocabulary"] for cell in result["cells"][-6:]] == [10_000] * 3 + [64_000] * 3
    assert len({cell["contender"] for cell in result["cells"][-6:]}) == 3
    assert result["settings"]["limit_bytes"] == int(0.6 * result["settings"]["available_bytes"])
    assert not any(name.startswith("MALLOC_") for name in result["environment"])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from Linux's /proc")
def test_a_step_without_logits_needs_less_memory_by_some_of_them(memory):
    options = argparse.Namespace(threads=1, timeout=300.0)
    cell = {"what": "vocabulary", "vocabulary": 10_000, "length": 1024, "seed": 0}
    needs = {
        name: memory.run_cell({**cell, "contender": name}, options)["extra_bytes"]
        for name in ("without logits", "with logits")
    }
    logits = 900 * 10_000 * 4  # 1,024 positions, some of them padding on either side
    assert needs["without logits"] + logits < needs["with logits"]


def test_the_rivals_of_a_step_of_short_sentences_are_what_they_are_called(program):
    step = program("memory.peak_step")
    found = {}
    for contender in step.VOCABULARY_CONTENDERS:
        run = step.vocabulary_step(contender, 0, 101)(64)
        with Logits(101) as seen:
            run()
        found[contender] = seen.made
    assert found == {"without logits": False, "with logits": True, step.MARIAN: True}


class Logits(TorchDispatchMode):
    """Whether a tensor (batch, target, vocabulary) is made."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary, self.made = vocabulary, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.ndim == 3:
            self.made = self.made or result.shape[2] == self.vocabulary
        return result
