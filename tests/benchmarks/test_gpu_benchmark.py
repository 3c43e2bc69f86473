"""The GPU program, as far as a machine without one can try it."""

import pytest
import torch


@pytest.fixture
def gpu(program):
    return program("speed.gpu")


def test_without_a_cuda_device_nothing_is_written(gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--output", str(tmp_path / "gpu.json")]) == 0
    assert "no CUDA device" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_operations_are_counted_as_in_the_literature(gpu):
    cases = [case for case in gpu.all_cases() if case.length == 16384 and case.head_dim == 64]
    full, causal = cases
    assert (full.batch, full.heads) == (1, 32)
    assert gpu.operations(full, "forward") == 4 * 32 * 16384**2 * 64
    assert gpu.operations(causal, "backward") == 2.5 * 2 * 32 * 16384**2 * 64


def test_each_pass_is_timed_and_what_cannot_run_is_left_out_with_the_reason(gpu, program, monkeypatch, tmp_path):
    contenders = program("speed.contenders")
    # the compiler is not needed to see that all contenders are called alike
    monkeypatch.setattr(gpu, "_flex", lambda case: contenders.sdpa(case))
    case = contenders.AttentionCase(1, 2, 32, 8, torch.float32, True, True, "cpu")
    records = gpu.measure(case, seed=0, budget=0.0, rounds=2, round_seconds=1e-4)
    assert [record["pass"] for record in records] == list(gpu.PASSES)
    for record in records:
        assert set(record["times"]) == {*gpu.OURS, gpu.FLASH, gpu.FLEX}
        assert set(record["left_out"]) == {gpu.CUDNN}, "no cuDNN on a CPU"
        milliseconds = record["times"]["fused"]["median_ms"]
        assert record["tflops"]["fused"] == pytest.approx(gpu.operations(case, record["pass"]) / milliseconds / 1e9)
    gpu.write_csv(tmp_path / "gpu.csv", records)
    assert len((tmp_path / "gpu.csv").read_text(encoding="utf-8").splitlines()) == 1 + 3 * 5
