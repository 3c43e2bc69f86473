"""The campaign on a GPU, as far as a machine without one can try it: each stage at toy size, and what its file
keeps."""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import attention, translation
from benchmarks.gpu import __main__ as program
from benchmarks.gpu import attention as stage_attention
from benchmarks.gpu import campaign, models, page, shares
from benchmarks.measurement_file import ROOT

# What the machine with the GPU lacks: importing one of them there would cost the stage.
STAGE = """
import runpy, sys
lacking = ("datasets", "jsonargparse", "sacremoses", "entmax", "num2words", "dill", "multiprocess")
for name in lacking:
    sys.modules[name] = None
sys.argv = ["benchmarks.gpu", *sys.argv[1:]]
runpy.run_module("benchmarks.gpu", run_name="__main__")
"""


def options(folder, minutes=1.0):
    return argparse.Namespace(output=folder, minutes=minutes)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["check", "shares", "attention", "models", "decode"])  # the bundle below runs `tune`
def test_each_stage_runs_at_toy_size_with_what_such_a_machine_has(stage, tmp_path):
    command = [sys.executable, "-c", STAGE, stage, "--toy", "--output", str(tmp_path), "--minutes", "9"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ".", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    assert "0 of them failed, no time for 0" in run.stdout.splitlines()[-1]
    result = json.loads((tmp_path / f"{stage}.json").read_text(encoding="utf-8"))
    assert result["source"] and result["versions"]["torch"] and result["machine"] and len(result["cells"]) >= 2
    if stage == "check":
        assert result["cells"][0]["tests_passed"] >= 1, "kernels in the interpreter"
    if stage == "attention":
        plain = result["cells"][0]
        assert plain["dtype"] == "float32" and all(limit > 0 for limit in plain["product"].values())
        low, high = plain["p10_p90_ms"]["forward"]["fused"]
        assert low <= plain["ms"]["forward"]["fused"] <= high
        assert "no package flash_attn_interface" in plain["left_out"]["FlashAttention-3"]
        for cell in result["cells"]:
            assert all(error < 1e-5 for error in cell.get("errors", {}).get("fused+S+T", {}).values())
            assert (cell["cell"]["dropout"] == 0) == (
                set(cell.get("errors", {}).get("fused+S+T", {})) == {"output", "S", "T"}
            )
        assert "| product, TFLOP/s |" in page.render(tmp_path)
    if stage == "shares":
        assert [cell["cell"]["model"] for cell in result["cells"][:2]] == [
            "ReLUFormer, share 1.0",
            "ReLUFormer, share 0.5",
        ]
    if stage == "decode":
        assert set(result["cells"][0]["ms"]["1"]["16"]) == {"kernel", "plain"}


def test_a_stage_goes_on_where_it_stopped_but_not_with_figures_of_another_source(tmp_path, monkeypatch, capsys):
    measured = []

    def cells(*numbers):
        return lambda: [
            campaign.Cell({"number": number}, lambda number=number: measured.append(number) or {"figure": number}, 0)
            for number in numbers
        ]

    assert campaign.run_stage("models", cells(1, 2), options(tmp_path)) == 0
    campaign.run_stage("models", cells(1, 2, 3), options(tmp_path))
    assert measured == [1, 2, 3]
    assert [cell["figure"] for cell in json.loads((tmp_path / "models.json").read_text())["cells"]] == [1, 2, 3]
    other = {**campaign.stage_record(), "source": "another"}
    monkeypatch.setattr(campaign, "stage_record", lambda: other)
    campaign.run_stage("models", cells(3), options(tmp_path))
    assert measured == [1, 2, 3, 3]
    monkeypatch.setattr(campaign, "RESULTS", tmp_path)
    campaign.run_stage("models", cells(3), options(tmp_path / "empty"))
    assert measured == [1, 2, 3, 3], "what is committed is not measured again"
    assert "models: 1 cells, 0 of them failed, no time for 0" in capsys.readouterr().out


def test_no_cell_is_begun_that_would_end_too_late_and_a_failure_costs_only_its_own(tmp_path):
    def fail(reason):
        raise RuntimeError(reason)

    cells = [
        campaign.Cell({"name": "fails"}, lambda: fail("no kernel"), 1),
        campaign.Cell({"name": "too long"}, lambda: {}, 61),
        campaign.Cell({"name": "short"}, lambda: {"figure": 1.5}, 1),
        campaign.Cell({"name": "breaks the process"}, lambda: fail("CUDA error: an illegal memory access"), 1),
        campaign.Cell({"name": "another time"}, lambda: {"figure": 2.5}, 1),
    ]
    assert campaign.run_stage("check", lambda: cells, options(tmp_path)) == 1
    failed, short, broken = json.loads((tmp_path / "check.json").read_text())["cells"]
    assert failed["failed"] == "RuntimeError: no kernel" and short["figure"] == 1.5 and "CUDA" in broken["failed"]
    cells[0] = cells[0]._replace(measure=lambda: {"figure": 3.5})
    assert campaign.run_stage("check", lambda: cells, options(tmp_path)) == 1
    done = json.loads((tmp_path / "check.json").read_text())["cells"]
    figures = [(record["cell"]["name"], record.get("figure")) for record in done]
    assert figures == [("short", 1.5), ("another time", 2.5), ("fails", 3.5), ("breaks the process", None)]


def test_all_fails_where_a_stage_fails_or_is_killed(monkeypatch):
    statuses, called = dict.fromkeys(program.STAGES, 0), []
    monkeypatch.setattr(program, "_run_alone", lambda stage, given: called.append(stage) or statuses[stage])
    for statuses["models"], expected in ((0, 0), (1, 1), (-9, 1)):
        assert program.main(["all"]) == expected
    assert called == [*program.STAGES] * 3


def test_a_contender_that_fails_leaves_the_others_their_figures():
    def make(name):
        if name == "too large":
            raise torch.OutOfMemoryError("no memory")
        return (lambda: None), 7

    names = ("first", "too large", "last")
    group = {"task": "training"}, names, make, 12
    measured = {cell.names["model"]: (cell.seconds, cell.measure()) for cell in models.cells_of([group])}
    assert [seconds for seconds, _ in measured.values()] == [36, 0, 0]
    assert measured["too large"][1] == {"failed": "OutOfMemoryError: no memory"}
    assert all(measured[name][1]["a_second"] > 0 for name in ("first", "last"))


def test_the_trainings_that_are_timed_are_those_of_their_names(monkeypatch):
    built = []
    monkeypatch.setattr(
        models.translation, "training_step", lambda model, *given: built.append(model) or (lambda: None)
    )
    for share in (1.0, 0.5):
        shares.train("quick", "quick", 64, shares.OF_SHARE.format(share))
    assert [model.config.regularization_share for model in built] == [1.0, 0.5]
    asked = {}
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **given: asked.update(given))
    monkeypatch.setattr(models, "CUDA", True)
    monkeypatch.setattr(models, "DEVICE", "cpu")
    for compiled, mode in ((models.GRAPHS, "reduce-overhead"), (True, None)):
        models.train("quick", "quick", 64, compiled, models.OURS)
        assert asked == {"fullgraph": True, "backend": "inductor", "mode": mode}
        assert not built[-1].config.skip_logits


def test_an_empty_folder_gives_no_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "PAGE", tmp_path / "GPU.md")
    assert program.main(["page", "--output", str(tmp_path)]) == 2
    assert "holds no results" in capsys.readouterr().err and not program.PAGE.exists()


def test_operations_are_counted_as_in_the_literature():
    case = attention.AttentionCase(1, 32, 16384, 64, torch.bfloat16, False, True)
    assert stage_attention.operations(case, "forward") == 4 * 32 * 16384**2 * 64
    causal = attention.AttentionCase(1, 32, 16384, 64, torch.bfloat16, True, True)
    assert stage_attention.operations(causal, "forward+backward") == 3.5 * 2 * 32 * 16384**2 * 64


def test_a_dry_run_says_what_a_card_would_measure_and_in_how_many_minutes(tmp_path, capsys):
    for stage in program.STAGES:
        assert program.main([stage, "--dry-run", "--output", str(tmp_path)]) == 0
        told = capsys.readouterr().out.splitlines()
        minutes = float(re.search(r"at most (\S+) minutes for", told[-1])[1])
        assert 0 < minutes <= program.MOST_MINUTES and told[-1].startswith(f"{stage}: 0 cells are measured")
        if stage == "attention":
            fitting = [line for line in told[:-1] if "later" not in line]
            assert len(fitting) == 24 and fitting[0] == "  64, False, 0.0, 16384: 25 s", "all without dropout"
    assert not list(tmp_path.iterdir())
    assert program.main(["check", "--dry-run", "--minutes", "11"]) == 2
    assert "more than 0 and at most 10" in capsys.readouterr().err


def test_a_plan_counts_what_is_measured_at_once_once_and_not_what_the_file_holds(tmp_path, capsys):
    given = argparse.Namespace(output=tmp_path, minutes=1.0, toy=True)
    campaign.run_stage("models", lambda: [campaign.Cell({"name": "known"}, dict, 0)], given)
    cells = [campaign.Cell({"name": name}, dict, 40, together="pair") for name in ("first", "second")]
    cells += [campaign.Cell({"name": name}, dict, 30) for name in ("known", "too long")]
    campaign.plan_stage("models", lambda: cells, given)
    told = capsys.readouterr().out.splitlines()
    assert told[-4:-1] == ["  first: 40 s", "  second: 0 s", "  later: too long: 30 s"]
    assert told[-1] == ("models: 1 cells are measured; at most 0.7 minutes for 2 more, and 0.5 for 1 in further calls")


def test_errors_on_sampled_rows_see_a_row_that_is_wrong(monkeypatch):
    case = attention.AttentionCase(1, 2, 48, 16, torch.float32, True, True)
    inputs = attention.random_inputs(case, 0)
    assert max(stage_attention.row_errors(case, inputs, "sum+entropy").values()) < 1e-5
    fused = attention.fused(case, inputs, "none")

    def wrong(*states):
        output = fused(*states)[0].clone()
        output[:, 1, -1] *= 1.5
        return (output,)

    monkeypatch.setattr(attention, "fused", lambda *given: wrong)
    assert stage_attention.row_errors(case, inputs, "none")["output"] > 1e-2


def test_without_a_cuda_device_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "CUDA", False)
    assert program.main(["check", "--output", str(tmp_path / "gpu")]) == 2
    assert "--toy tries the stage on the CPU" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_page_judges_goals_by_the_files_and_names_what_failed(tmp_path, monkeypatch):
    machine = {"cores": 16, "python": "3.12", "accelerators": ["a card"]}
    origin = {"toy": False, "git_commit": "0123456789abcdef", "git_dirty": False, "date": "2026-11-26"}
    versions = dict.fromkeys(("torch", "cuda", "triton", "transformers"), "1")
    origin |= {"machine": machine, "versions": versions}

    def write(stage, *cells):
        (tmp_path / f"{stage}.json").write_text(json.dumps({**origin, "stage": stage, "cells": cells}))

    times = {"fused": 1.0, "fused+S+T": 1.2, page.FLASH: 1.6}
    tflops = {name: 400 / ms for name, ms in times.items()}
    cell = {"head_dim": 128, "causal": False, "dropout": 0.0, "length": 16384}
    both = {"ms": dict.fromkeys(page.PASSES, times), "tflops": dict.fromkeys(page.PASSES, tflops)}
    write("attention", {"cell": cell, **both, "left_out": {"cuDNN": "no kernel"}})
    write("check", {"cell": {"what": "compiled"}, "relative_error": 1e-6, "of_eager": None})
    speeds = {"median_ms": 10.0, "p10_ms": 9.0, "p90_ms": 11.0, "gpu_busy_ms": 5.0, "peak_gib": 2.0}
    cells = []
    speeds_of = {translation.OURS: 110.0, translation.MARIAN: 100.0, translation.MARIAN_SMOOTHED: 100.0}
    for name, a_second in speeds_of.items():
        long = {"task": "training", "shape": "iwslt14", "lengths": page.LONG, "model": name, "compiled": False}
        for of_cell in (long, {"task": "generation", "model": name}):
            cells.append({"cell": of_cell, **speeds, "a_second": a_second, "kernels": {"gemm": 3.0}})
    write("models", *cells, {"cell": {"task": "training", "model": "broken"}, "failed": "OutOfMemoryError: no memory"})
    monkeypatch.setattr(program, "PAGE", tmp_path / "GPU.md")
    assert program.main(["page", "--output", str(tmp_path)]) == 0
    text = (tmp_path / "GPU.md").read_text(encoding="utf-8")
    assert "None" not in text
    forward, both_passes = "forward, 16,384 tokens", "forward and backward, 16,384 tokens"
    for line in (
        f"| ReLU over FlashAttention-2, {forward} | ≥ 1.5× | 1 of 1 | 1.60× |",
        f"| ReLU, {forward}, heads of 128 (Triton's sigmoid attention: 515) | ≥ 515 TFLOP/s | **0 of 1** | 400 TFLOP/s "
        "|",
        f"| ReLU, {both_passes}, heads of 128 (Triton's sigmoid attention: 371) | ≥ 371 TFLOP/s | 1 of 1 | 400 TFLOP/s "
        "|",
        f"| S and T: time over that without, {forward} | ≤ 1.15× | **0 of 1** | 1.20× |",
        "| ReLUFormer over Marian with label smoothing, training, 1,024 tokens | ≥ 1.2× | **0 of 1** | 1.10× |",
        "| ReLUFormer over Marian, generation | ≥ 1× | 1 of 1 | 1.10× |",
        "| pass | heads of | causal | ReLU over FlashAttention-2 | ReLU over cuDNN | ReLU with S and T over "
        "FlashAttention-2 |",
        "| forward and backward | 128 | no | 1.60 | – | 1.33 | – |",
        "Generation now computes",
        "a card, 16 cores; commit 0123456789ab, 2026-11-26;",
        "| 128 | no | 0.0 | 16,384 | 400 | 333.3 | 250 |",
        "- cuDNN is left out: no kernel",
        "| ReLUFormer | 5 | 2 | 110 | 10 (9–11) |",
        "| ReLUFormer with the regulariser | 5 | 2 | 110 | 10 (9–11) |",
        "- training, broken: OutOfMemoryError: no memory",
        "| compiled | 1.0e-06 | – |",
        "Not measured: `python -m benchmarks.gpu tune` measures it.",
    ):
        assert line in text, line


def test_the_page_is_that_of_the_committed_results():
    assert program.PAGE.read_text(encoding="utf-8") == page.render(campaign.RESULTS)


@pytest.mark.slow
def test_a_bundle_runs_by_itself_and_tells_its_commit(tmp_path):
    data, bundle = tmp_path / "corpora", tmp_path / "bundle"
    (data / "multi30k").mkdir(parents=True)
    (data / "multi30k" / "train.de.gz").write_bytes(b"text")
    # without packages, for which pip needs the network
    given = [f"BIN={Path(sys.executable).parent}", f"DATA={data}", f"GPU={bundle}", "GPU_PACKAGES="]
    subprocess.run(["make", "-s", "-o", ".venv/all", "gpu-bundle", *given], cwd=ROOT, check=True)
    assert (bundle / "data" / "multi30k" / "train.de.gz").is_file() and not (bundle / "docs").exists()
    assert list((bundle / "site").glob("reluformer-*.dist-info/METADATA")), "reluformer train asks for its version"
    command = ["sh", bundle / "run", "tune", "--toy", "--output", str(tmp_path), "--minutes", "9"]
    program_path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "PATH": program_path}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "0 of them failed" in run.stdout, run.stderr[-2000:]
    result = json.loads((tmp_path / "tune.json").read_text(encoding="utf-8"))
    assert result["git_commit"] == campaign.stage_record()["git_commit"]
