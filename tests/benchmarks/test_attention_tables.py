"""ATTENTION.md: every figure from the files, goals judged by them."""

import itertools
import json

import pytest

RECORD = {
    "command": "attention.py --seed 0",
    "date": "2026-01-02T03:04:05+00:00",
    "git_commit": "0123456789abcdef",
    "git_dirty": True,
    "machine": {
        "cpu": "a CPU",
        "usable_cores": 2,
        "torch_threads": 2,
        "memory_gb": 8.0,
        "load_average": 0.1,
        "python": "3",
    },
    "versions": {"torch": "1.2", "transformers": "3.4"},
    "environment": {"MALLOC_MMAP_MAX_": "0"},
    "seconds": 90.0,
    "quick": False,
    "settings": {"threads": 2},
    "loop": "compiled",
}


@pytest.fixture
def tables(program):
    return program("speed.attention_tables")


def attention_result(program, sdpa_seconds=1.1):
    attention, timing = program("speed.attention"), program("speed.timing")
    seconds = {"fused": 1.0, "fused+S": 1.05, "fused+S+T": 1.25, "sdpa softmax": sdpa_seconds, "eager relu": 2.0}
    seconds |= {"products only": 0.97, "sparsemax": 5.0}
    cells = []
    for case in attention.all_cases():
        named = {name: seconds[name] for name in attention.contenders_of(case) if name in seconds}
        rounds = {name: {0: 0.9 * value, 1: value, 2: 1.1 * value} for name, value in named.items()}
        left_out = {"entmax15": "a call took 9.0 s, the limit is 2 s"}
        cells.append(attention.cell_record(case, timing.Timing(rounds, dict.fromkeys(rounds, 1)), left_out))
    return {**RECORD, "cells": cells}


def memory_result():
    settings = {"method": "by hand.", "limit_bytes": 5e9, "attention": {"batch": 1}, "model": {"d_model": 8}}
    settings["vocabulary"] = {"tokens": 7}
    cells = [
        {"what": what, "contender": contender, "length": length, "extra_bytes": 250e6 * factor}
        for what in ("attention", "model")
        for contender, factor in (("fused", 1), ("sdpa", 2))
        for length in (1024, 8192)
    ]
    cells[-1] = {**cells[-1], "expected_bytes": 9e9, "not_run": "needs about 9 GB"}
    del cells[-1]["extra_bytes"]
    cells[0]["queries_by_keys_tensors"] = []
    for contender, megabytes in (("without logits", 3), ("MarianMTModel", 9)):
        cells.append(
            {"what": "vocabulary", "contender": contender, "vocabulary": 64000, "extra_bytes": megabytes * 1e6}
        )
    return {**RECORD, "settings": {**RECORD["settings"], **settings}, "cells": cells}


def write(folder, **results):
    for name, result in results.items():
        (folder / f"{name.replace('_', '-')}.json").write_text(json.dumps(result), encoding="utf-8")


def test_goals_are_judged_by_the_files(tables, program, tmp_path):
    write(tmp_path, attention_cpu=attention_result(program), memory_cpu=memory_result())
    assert tables.main(["--results", str(tmp_path), "--output", str(tmp_path)]) == 0
    page = (tmp_path / "ATTENTION.md").read_text(encoding="utf-8")
    assert (
        "| float32 | forward | fused | sdpa softmax | 1 × 8 | no | ≥ 1.05× | 1.10 (1.10–1.10) met; floor 1.13 |" in page
    )
    both = (
        "| float32 | forward+backward | fused | sdpa softmax | 1 × 8 | yes | ≥ 1.05×, 1.05×, 1.00× | 1.10 (1.10–1.10)"
    )
    assert both in page
    assert (
        "| bfloat16 | forward+backward | fused | sdpa softmax | 1 × 8 | no | ≥ 1.20× | 1.10 (1.10–1.10) **missed**;"
        in page
    )
    assert "| fused with S and T | sdpa softmax | 1 × 8 | no | ≥ 1.00× | 0.88 (0.88–0.88) **missed**;" in page
    assert "| fused | sdpa softmax | 4 × 8 | yes | ≥ 0.95× | 1.10 (1.10–1.10) met | 1.10 (1.10–1.10) met | – |" in page
    assert "| fused | sdpa softmax | 8 × 8 | yes | ≥ 0.95× | 1.10 (1.10–1.10) met | – | – |" in page
    for causal, dim, batch in itertools.product(("no", "yes"), (32, 64), (1, 4, 64)):
        shape = f"{causal} | {dim} | {batch} × 8"
        assert f"| bfloat16 | forward | fused | ≥ 0.95× | {shape} | 1.10 | 1.10 | 1.10 | 1.10 | 1.10 |" in page
        both = "**0.88** | **0.88** | **0.88** | **0.88** | **0.88**"
        assert f"| float32 | forward+backward | fused with S and T | ≥ 0.90× | {shape} | {both} |" in page
    assert "| bfloat16 | forward | 1000000 (920000–1080000) | 1250000 (" in page, "microseconds of a call by itself"
    assert "| fused | products only | 1 × 8 | no | ≥ 0.95× | 0.97 (0.97–0.97) met |" in page
    assert "not measured: a call took 9.0 s, the limit is 2 s" in page
    assert "Python 3; loop: compiled; environment: MALLOC_MMAP_MAX_=0" in page
    assert "| extra peak memory, n = 8,192 | < 300 MB | 250 MB | met |" in page
    assert "| 8,192 | 250 MB | not run: needs about 9 GB |" in page
    assert "`fused` at n = 1,024: none." in page
    assert "### the loss, and its logits: tokens 7" in page
    assert "| pieces | without logits | MarianMTModel |" in page and "| 64,000 | 3 MB | 9 MB |" in page
    assert "2026-01-02, commit 0123456789ab, with local changes, 1.5 min on a CPU (2 threads" in page
    assert "MALLOC_MMAP_MAX_=0" in page
    assert "Not measured: `python -m benchmarks.speed.end_to_end`" in page
    assert "![Attention alone, on a CPU](attention-cpu.png)" in page
    assert (tmp_path / "attention-cpu.png").stat().st_size > 10_000
    assert (tmp_path / "memory-cpu.png").stat().st_size > 5_000


def test_the_picture_shows_one_sequence_that_all_rivals_were_timed_with(program, tmp_path, monkeypatch):
    pictures, drawn = program("speed.attention_pictures"), []
    draw = pictures._draw_speedups
    monkeypatch.setattr(pictures, "_draw_speedups", lambda axes, cells: draw(axes, drawn.append(cells) or cells))
    pictures.plot_speedups(attention_result(program), tmp_path / "speed.png")
    assert [len(cells) for cells in drawn] == [7] * 4
    for cells in drawn:
        assert [cell["length"] for cell in cells] == [64, 128, 256, 512, 1024, 2048, 4096]
        assert {(cell["batch"], cell["head_dim"], cell["causal"]) for cell in cells} == {(1, 64, False)}


def test_slower_than_the_rival_is_missed(tables, program):
    goals = program("speed.goals")
    rows = list(goals.speed_rows(attention_result(program, sdpa_seconds=0.9), goals.AGAINST_SDPA, (512,)))
    assert len(rows) == 12 and all("**missed**" in row[-1] for row in rows)


def test_quick_files_say_so_and_end_to_end_is_compared_with_marian(tables, program, tmp_path):
    names = program("speed.translation_models")
    cell = {
        "task": "training",
        "shape": "wide",
        "inputs": "multi30k-like",
        "dtype": "float32",
        "attention_dropout": 0.1,
        "unit": "target tokens a second",
        "speeds": {names.OURS: 4321.0, names.MARIAN: 4000.0, names.MARIAN_SMOOTHED: 3700.0},
        "speedups": {
            names.OURS: {
                names.MARIAN: {"median": 1.08, "p10": 1.01, "p90": 1.2},
                names.MARIAN_SMOOTHED: {"median": 1.17, "p10": 1.1, "p90": 1.3},
            }
        },
        "left_out": {"sparsemax": "a call took 9.0 s"},
    }
    generation = {**cell, "task": "generation", "unit": "sentences a second"}
    generation["speeds"] = {names.OURS: 30.0, names.MARIAN: 40.0, "vanilla": 20.0}
    generation["speedups"] = {names.OURS: {names.MARIAN: {"median": 0.75, "p10": 0.7, "p90": 0.8}}}
    settings = {"threads": 2, "shapes": names.SHAPES}
    cells = [cell, {**cell, "shape": "tiny"}, generation]
    write(tmp_path, end_to_end_cpu={**RECORD, "quick": True, "settings": settings, "cells": cells})
    assert tables.main(["--results", str(tmp_path), "--output", str(tmp_path)]) == 0
    page = (tmp_path / "ATTENTION.md").read_text(encoding="utf-8")
    assert "A quick run, to try the programs: its figures mean nothing." in page
    where = "wide, multi30k-like, float32"
    trained = f"| training, {where}, attention dropout 0.1 |"
    assert f"{trained} ≥ 1.0× {names.MARIAN} | 1.08 (1.01–1.20)× | met |" in page
    assert f"{trained} ≥ 1.0× {names.MARIAN_SMOOTHED} | 1.17 (1.10–1.30)× | met |" in page
    large = trained.replace("wide", "tiny")
    assert f"{large} ≥ 1.1× {names.MARIAN} | 1.08 (1.01–1.20)× | **missed** |" in page, "10,350 pieces"
    assert f"{large} ≥ 1.1× {names.MARIAN_SMOOTHED} | 1.17 (1.10–1.30)× | met |" in page
    assert f"| generation, {where} | ≥ 1.0× MarianMTModel sdpa | 0.75 (0.70–0.80)× | **missed** |" in page
    assert f"| generation, {where} | 1.00 | – | – | 1.50 |" in page
    assert "sparsemax left out, a call took 9.0 s." in page
