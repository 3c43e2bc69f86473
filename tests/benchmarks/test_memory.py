"""Peak memory: what is expected of longer cells, what is not run, and one real measurement in a process of its own."""

import argparse
import json
import subprocess
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import memory
from reluformer import ReLUFormerDecoderConfig, ReLUFormerForCausalLM

OPTIONS = argparse.Namespace(seed=0)
LINUX = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from Linux's /proc")


def test_needs_are_a_linear_and_a_quadratic_part():
    needs = {n: 7.0 * n + 3.0 * n * n for n in (64, 128)}
    assert memory.expected_bytes(needs, {"length": 256}) == pytest.approx(7.0 * 256 + 3.0 * 256**2)
    assert memory.expected_bytes({64: 10.0, 128: 15.0}, {"length": 256}) == 40.0, "less than linear counts as linear"
    assert memory.expected_bytes({64: 10.0}, {"length": 128}) == 40.0
    assert memory.expected_bytes({128: None}, {"length": 256}) == 0.0


def test_cells_beyond_the_limit_are_computed_and_not_run(monkeypatch):
    started = []

    def run(command, env, **options):
        cell = json.loads(command[-1])
        started.append((cell["length"], "MALLOC_ARENA_MAX" in env))
        if cell["contender"] == "sdpa":
            raise subprocess.TimeoutExpired("memory", 1)
        return argparse.Namespace(returncode=0, stdout=json.dumps({"extra_bytes": 1000.0 * cell["length"] ** 2}))

    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setattr(memory.subprocess, "run", run)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: argparse.Namespace(available=1e9))
    cells = []
    for contender, length in (*(("eager relu", n) for n in (512, 1024, 2048, 4096)), ("sdpa", 512)):
        cell = {"what": "attention", "contender": contender, "length": length}
        cells.append({**cell, **memory.measure(cell, OPTIONS, cells)})
    assert started == [(512, False), (512, False)], "the allocator is glibc's own"
    assert [cell.get("not_run") for cell in cells] == [
        None,
        *(f"needs about {gb} GB" for gb in (1, 4, 17)),
        "not finished within 300 s",
    ]


@LINUX
@pytest.mark.slow
def test_a_process_finds_the_memory_of_the_weights():
    measured = memory.measure({"what": "attention", "contender": "eager relu", "length": 1024}, OPTIONS, [])
    weights = 8 * 1024 * 1024 * 4
    assert 3 * weights < measured["extra_bytes"] < 12 * weights


def test_attention_alone_has_the_gradients_of_all_inputs_and_the_regulariser(monkeypatch):
    for contender in memory.CONTENDERS:
        calls = []
        monkeypatch.setattr(torch.autograd, "grad", lambda *args, calls=calls: calls.append(args))
        memory.attention_step({"contender": contender, "seed": 0})(16)()
        (arguments,) = calls
        assert len(arguments[1]) == 3 and (contender == "sdpa" or len(arguments[0]) == 2)


class QueriesByKeys(TorchDispatchMode):
    """Notes the shape of every tensor (…, 400, 400) that an operator returns: long enough that no plain products are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.shape[-2:] == (400, 400):
                self.shapes.add((*tensor.shape, tensor.dtype))
        return result


@pytest.mark.parametrize("contender", memory.CONTENDERS)
def test_a_training_step_makes_no_tensor_of_queries_by_keys(contender):
    run = memory.model_step({"contender": contender, "length": 400, "seed": 0})(400)
    with QueriesByKeys() as seen:
        run()
    assert bool(seen.shapes) == (contender == "eager relu")


def test_nor_does_that_of_a_language_model():
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"max_position_embeddings": 400, "attention_activation": "relu", "regularization_weight": 0.01}
    config = ReLUFormerDecoderConfig.from_preset("gpt2", **sizes, skip_logits=True)
    ids = torch.randint(3, 64, (1, 400))
    with QueriesByKeys() as seen:
        ReLUFormerForCausalLM(config).train()(ids, labels=ids).loss.backward()
    assert not seen.shapes
