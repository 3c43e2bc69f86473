"""The operator behind `relu_attention` in torch's machinery: compiler, checkpoints, threads, processes."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import reluformer.attention_fused as fused
import reluformer.attention_workers as workers
from reluformer import relu_attention
from reluformer.attention_operator import pointwise_attention

from .attention_cases import gradients, random_inputs


@pytest.fixture(autouse=True)
def blocks(monkeypatch) -> None:
    monkeypatch.setattr(fused, "_is_small", lambda *call: False)


def attend(query, key, value, row_scale, **options):
    return relu_attention(query, key, value, row_scale=row_scale, statistics="sum+entropy", **options)


@pytest.mark.parametrize("statistics", ["none", "sum", "sum+entropy"])
def test_operator_keeps_torchs_rules(statistics):
    """Schema, fake tensors, autograd registration and strides, by torch's own check."""
    inputs = random_inputs(queries=20, keys=31, dtype=torch.float32).leaves()
    mask = torch.rand(2, 31) < 0.7
    options = ("relu", 0.25, True, 3, 0.0, statistics)
    torch.library.opcheck(pointwise_attention, (*inputs, mask, None, None, None, None, *options))
    offset, seed = torch.tensor(3), torch.tensor(5)
    torch.library.opcheck(
        pointwise_attention, (*inputs, mask, None, None, offset, seed, "relu", 0.25, True, 0, 0.2, statistics)
    )


@pytest.mark.parametrize("options", [{}, {"causal": True, "query_offset": torch.tensor(2)}], ids=["full", "offset"])
def test_compiles_without_a_break(options):
    inputs = random_inputs(queries=40).leaves()
    others = inputs.leaves()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    expected, found = attend(*inputs, **options), compiled(*others, **options)
    for one, other in zip((*expected, *gradients(expected, inputs)), (*found, *gradients(found, others)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_draws_the_same_dropout(reentrant):
    inputs = random_inputs(queries=40).leaves()
    others = inputs.leaves()

    def with_dropout(*tensors):
        return attend(*tensors, dropout_p=0.5)

    torch.manual_seed(7)
    expected = with_dropout(*inputs)
    torch.manual_seed(7)
    found = checkpoint(with_dropout, *others, use_reentrant=reentrant)
    sum(item.sum() for item in expected).backward()
    sum(item.sum() for item in found).backward()
    for one, other in zip(inputs, others, strict=True):
        assert torch.equal(one.grad, other.grad)


def test_second_derivatives_are_refused():
    inputs = random_inputs(queries=20).leaves()
    (first,) = torch.autograd.grad(attend(*inputs)[0].square().sum(), inputs.query, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        first.square().sum().backward()


def test_autocast_outside_does_not_change_the_products():
    inputs = random_inputs(queries=60, dtype=torch.float32)
    expected = attend(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attend(*inputs)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def thread_settings() -> dict[str, int]:
    info = torch.__config__.parallel_info()
    return {line.split(":")[0].strip(): line for line in info.splitlines() if "threads" in line}


@pytest.fixture(params=[0, 2**60], ids=["long work", "short work"])
def work(request, monkeypatch) -> None:
    """Whether OpenMP's threads are ended before the workers begin."""
    monkeypatch.setattr(workers, "LONG_WORK", request.param)


@pytest.mark.usefixtures("work")
def test_thread_settings_stay_as_they_were():
    before = torch.get_num_threads()
    inputs = random_inputs(heads=6, queries=300, dtype=torch.float32).leaves()
    try:
        for threads in (2, 3, 1, 2):
            torch.set_num_threads(threads)
            settings = thread_settings()
            found = attend(*inputs)
            gradients(found, inputs)
            assert torch.get_num_threads() == threads
            assert thread_settings() == settings, "MKL's and OpenMP's numbers too"
        elsewhere = []
        thread = threading.Thread(target=lambda: elsewhere.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert elsewhere == [2], "a thread that starts later gets the caller's number"
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("work")
def test_threads_change_no_bit():
    inputs = random_inputs(heads=6, queries=300, dtype=torch.float32)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            leaves = inputs.leaves()
            torch.manual_seed(0)
            found = attend(*leaves, dropout_p=0.1)
            results.append((*found, *gradients(found, leaves)))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_without_gradients_in_the_workers(mode, threads, activation, dtype):
    """Tensors made under `inference_mode` may be written to under it alone, and each thread has a mode of its own."""
    inputs = random_inputs(heads=4, queries=70, dtype=dtype)
    options = {"activation": activation, "causal": True, "statistics": "sum" if activation == "relu" else "none"}
    outside = relu_attention(*inputs[:3], row_scale=inputs.row_scale, **options)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with mode():
            inside = relu_attention(*inputs[:3], row_scale=inputs.row_scale, **options)
    finally:
        torch.set_num_threads(before)
    for one, other in zip(
        *(found if isinstance(found, tuple) else (found,) for found in (inside, outside)), strict=True
    ):
        assert torch.equal(one, other)


def test_python_threads_with_torch_threads_of_their_own(monkeypatch):
    """Each may ask for another number of workers, at the same time, and the first calls make them."""
    monkeypatch.setattr(workers, "_pools", {})
    before = torch.get_num_threads()
    inputs = random_inputs(heads=8, queries=64, dtype=torch.float32)
    expected = attend(*inputs)
    errors = []

    def call_with(threads: int) -> None:
        try:
            torch.set_num_threads(threads)
            for _ in range(20):
                found = attend(*inputs)
                assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        except BaseException as error:
            errors.append(error)

    callers = [threading.Thread(target=call_with, args=(threads,)) for threads in (2, 3, 4, 5, 2, 3)]
    try:
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    finally:
        torch.set_num_threads(before)
        for pool in workers._pools.values():
            pool.shutdown()
    assert errors == []


def test_an_error_in_a_worker_reaches_the_caller():
    before = torch.get_num_threads()
    torch.set_num_threads(2)

    def fail(piece):
        raise ArithmeticError(f"piece {piece}")

    try:
        with pytest.raises(ArithmeticError, match="piece"):
            workers.for_each(fail, range(4))
        done = []
        workers.for_each(done.append, range(4))
        assert sorted(done) == [0, 1, 2, 3], "the workers live on"
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("threads", [1, 2])
def test_workers_after_a_fork(threads):
    """A forked process has lost the threads, these workers and OpenMP's; waiting for them would hang."""
    program = f"""
import os, torch, reluformer.attention_fused, reluformer.attention_workers
from reluformer import relu_attention
reluformer.attention_fused._is_small = lambda *call: False
reluformer.attention_workers.LONG_WORK = 0
torch.set_num_threads(2)
tensors = [torch.randn(1, 4, 300, 8) for _ in range(3)]
expected = relu_attention(*tensors, row_scale=None)
torch.ones(1_000_000).sum()  # starts OpenMP's threads
child = os.fork()
if child == 0:
    torch.set_num_threads({threads})
    os._exit(0 if torch.equal(relu_attention(*tensors, row_scale=None), expected) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


@pytest.mark.slow
def test_long_work_ends_the_threads_that_spin():
    """Counted by the system; and they come again."""
    if not os.path.isdir("/proc/self/task") or workers._symbol_of_torch("omp_pause_resource_all") is None:
        pytest.skip("this torch's OpenMP cannot be told to end its threads, or the system does not count them")
    program = """
import os, torch, reluformer.attention_workers as workers
def threads(): return len(os.listdir("/proc/self/task"))
def attend(work):
    workers.for_each(lambda piece: None, range(6), work=work)
    return threads()
torch.set_num_threads(3)
numbers = torch.ones(1_000_000)
for _ in range(2):
    numbers.sum()
    before = attend(0)
    assert attend(3 * workers.LONG_WORK - 1) == before
    assert attend(3 * workers.LONG_WORK) == before - 2, (before, threads())
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


@pytest.mark.slow
def test_two_copies_of_the_package_do_not_replace_each_others_operators(tmp_path):
    """A copy from the Hub is a module of another name in the same process."""
    program = """
import sys, shutil, pathlib, importlib, torch, reluformer
from reluformer import attention_operator
folder = pathlib.Path(sys.argv[1]) / "copied_model"
shutil.copytree(pathlib.Path(reluformer.__file__).parent, folder)
(folder / "__init__.py").write_text("")
sys.path.insert(0, sys.argv[1])
copy = importlib.import_module("copied_model.attention_operator")
assert copy.NAMESPACE == "copied_model" and attention_operator.NAMESPACE == "reluformer"
names = [operator.pointwise_attention._qualname for operator in (copy, attention_operator)]
assert names == ["copied_model::pointwise_attention", "reluformer::pointwise_attention"], names
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
