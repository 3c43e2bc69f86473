"""bfloat16 on a processor that computes it in software: said once, before the first update."""

import logging
from types import SimpleNamespace

import pytest
import torch

from reluformer.training.run import precision

from ..tiny_run import tiny_trainer


@pytest.mark.parametrize(
    ("features", "in_hardware"),
    [((), False), (("avx2", "avx512f"), False), (("avx512_bf16",), True), (("amx_tile",), True), (("bf16",), True)],
)
def test_the_features_decide(features, in_hardware):
    assert precision.has_bfloat16({*features}) == in_hardware
    assert precision.has_bfloat16() in (False, True)


@pytest.mark.parametrize(
    ("machine", "supported", "cpuinfo", "features"),
    [
        ("x86_64", ("avx512_bf16",), "Features : bf16", {"avx512_bf16"}),
        ("AMD64", ("amx_tile",), None, {"amx_tile"}),
        ("x86_64", (), "Features : bf16", set()),
        ("aarch64", ("amx_tile",), "processor : 0\nFeatures\t: fp asimd bf16\n", {"bf16"}),
        ("aarch64", (), "Features\t: fp asimd\n", set()),
        ("riscv64", (), None, {"avx512_bf16", "amx_tile", "bf16"}),  # unknown: nothing is said
    ],
)
def test_an_x86_processor_is_asked_and_linux_tells_of_others(
    monkeypatch, tmp_path, machine, supported, cpuinfo, features
):
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(precision, "Path", lambda path: tmp_path / path.removeprefix("/proc/"))
    monkeypatch.setattr(precision.platform, "machine", lambda: machine)
    for name in ("avx512_bf16", "amx_tile"):
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda name=name: name in supported)
    assert precision.cpu_features() == features


@pytest.mark.parametrize(("asked", "features", "warned"), [(True, (), 1), (True, ("amx_tile",), 0), (False, (), 0)])
def test_a_training_in_bfloat16_says_once_that_it_is_slow(tmp_path, monkeypatch, caplog, asked, features, warned):
    monkeypatch.setattr(precision, "cpu_features", lambda: {*features})
    trainer = tiny_trainer(tmp_path, max_steps=2, bf16=asked)
    at_first_update = []
    trainer.log = lambda *_: at_first_update.append(caplog.text.count("neither AVX512-BF16 nor AMX"))
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert at_first_update[0] == warned == caplog.text.count("train in float32 (--training.bf16 false)")
    assert precision.precision_of(trainer.args) == ("bfloat16" if asked else "float32")


@pytest.mark.parametrize(("device", "process_index", "warnings"), [("cpu", 0, 1), ("cpu", 1, 0), ("cuda", 0, 0)])
def test_the_main_process_says_it_and_never_of_a_gpu(monkeypatch, caplog, device, process_index, warnings):
    monkeypatch.setattr(precision, "cpu_features", lambda: set())
    arguments = SimpleNamespace(bf16=True, device=torch.device(device), process_index=process_index)
    precision.warn_of_slow_bfloat16(arguments)
    assert len(caplog.records) == warnings
