"""The program that times attention alone: its gate, its cells, its files."""

import csv
import json

import pytest
import torch


@pytest.fixture
def attention(program):
    pytest.importorskip("entmax", reason="two of the rivals need the optional package entmax")
    return program("speed.attention")


def test_a_quick_run_writes_every_cell_twice(attention, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(attention, "DTYPES", (torch.float32,))
    output = tmp_path / "speed.json"
    assert attention.main(["--quick", "--output", str(output)]) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    assert result["quick"] and result["seed"] == 0 and "git_commit" in result
    assert result["machine"]["memory_gb"] > 0 and "threads" in result["settings"]
    assert all(check["passed"] for check in result["gate"])
    assert {check["head_dim"] for check in result["gate"]} == {32, 64}
    assert result["loop"] in ("compiled", "python")
    assert [(cell["batch"], cell["head_dim"], cell["length"]) for cell in result["cells"]] == (
        4 * [(1, 64, 64)] + 4 * [(4, 32, 16)] + 2 * [(1, 64, 1)]
    )
    names = {*attention.OURS, attention.SDPA, *attention.EAGER, attention.FLOOR, attention.FLOOR_MM}
    few = {attention.PLAIN, attention.WITH_STATISTICS, attention.SDPA, attention.EAGER_RELU}
    for cell in result["cells"]:
        assert set(cell["times"]) == (names if cell["length"] == 64 else few) and cell["left_out"] == {}
        mine, rival = cell["times"]["fused"], cell["times"][attention.SDPA]
        low, high = sorted((rival["p10_ms"] / mine["p90_ms"], rival["p90_ms"] / mine["p10_ms"]))
        assert low <= cell["speedups"]["fused"][attention.SDPA]["median"] <= high
    with (tmp_path / "speed.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * len(names) + 6 * len(few)
    assert {row["pass"] for row in rows} == {"forward", "forward+backward"}


@pytest.mark.parametrize("broken", ["output", "gradient", "T"])
def test_a_wrong_fast_path_is_not_timed(attention, program, tmp_path, monkeypatch, capsys, broken):
    contenders = program("speed.contenders")
    original = contenders.relu_attention

    def wrong(query, key, value, *, statistics, **kwargs):
        result = original(query, key, value, statistics=statistics, **kwargs)
        if broken == "T":
            return (*result[:2], 1.001 * result[2]) if statistics == "sum+entropy" else result
        first = result if statistics == "none" else result[0]
        first = 1.001 * first if broken == "output" else 1.001 * first - 0.001 * first.detach()
        return first if statistics == "none" else (first, *result[1:])

    monkeypatch.setattr(contenders, "relu_attention", wrong)
    output = tmp_path / "speed.json"
    assert attention.main(["--quick", "--output", str(output)]) == 1
    assert not output.exists()
    assert "a fast path is wrong" in capsys.readouterr().err


def test_the_cells_are_those_of_the_plan(attention):
    cases = list(attention.all_cases())
    assert len(cases) == len(set(cases)) and {case.heads for case in cases} == {8}
    of_each = [
        (case.batch, case.head_dim, case.length)
        for case in cases
        if case.causal and case.backward and case.dtype.itemsize == 2
    ]
    short = {(batch, dim, length) for batch in (1, 4, 64) for dim in (32, 64) for length in (16, 32, 64, 128, 256)}
    long = {(1, 64, length) for length in (512, 1024, 2048)} | {(4, 64, 512), (4, 64, 1024), (8, 64, 512)}
    assert set(of_each) == short | long
    assert len(cases) == 8 * len(of_each) + 4 * 2, "the longest that is not causal, and a call by itself"


def test_the_slowest_rivals_stay_where_one_sequence_is_timed(attention):
    for case in attention.all_cases():
        names = attention.contenders_of(case)
        with_all = case.batch == 1 and case.head_dim == 64 and case.length >= 64
        assert ("sparsemax" in names) == (attention.FLOOR in names) == with_all
        assert ("eager relu" in names) == (with_all or case.length <= 256), "the goals of short cells need it"
        assert {attention.PLAIN, attention.WITH_STATISTICS, attention.SDPA} <= set(names)
        left = attention._chosen(case, {}, 2.5)[1]
        assert ("sparsemax" in left) == (with_all and case.length > 1024)
        assert ("eager relu" in left) == (with_all and case.causal and case.length > 1024)


def test_what_is_too_slow_at_one_length_is_not_tried_at_the_next(attention, program, monkeypatch):
    contenders, timing = program("speed.contenders"), program("speed.timing")
    case = contenders.AttentionCase(1, 1, 64, 64, torch.float32, False, False)
    longer = contenders.AttentionCase(1, 1, 128, 64, torch.float32, False, False)
    tried = []

    def fake(steps, **options):
        tried.append(set(steps))
        kept = {name: {0: 1.0} for name in steps if name != "sparsemax"}
        return timing.Timing(kept, dict.fromkeys(kept, 1), {"sparsemax": "a call took 9.0 s"})

    monkeypatch.setattr(attention, "time_contenders", fake)
    options = type("Options", (), {"seed": 0, "quick": True, "budget": 1.0, "slowest": 2.0})
    with attention.MatrixProducts(1) as floor:
        first, second = attention.measure_all([case, longer], floor, options)
    assert "sparsemax" in tried[0] and "sparsemax" not in tried[1] and "rela" not in tried[1]
    assert first["left_out"] == {"sparsemax": "a call took 9.0 s"}
    assert second["left_out"]["rela"] == "a call is expected to take 4.0 s, the limit is 2 s"


def test_gradients_of_the_statistics_are_those_of_the_regulariser(program):
    contenders = program("speed.contenders")
    case = contenders.AttentionCase(2, 2, 20, 8, torch.float32, True, True)
    inputs = contenders.random_inputs(case, seed=0)
    of_sum, of_sum_log = contenders.statistics_gradients(case, inputs, "sum+entropy")
    result = contenders.reference_attention(
        *(tensor.detach() for tensor in (inputs.query, inputs.key, inputs.value)),
        activation="relu",
        mask=inputs.mask,
        row_scale=inputs.row_scale,
        statistics="sum+entropy",
    )
    S, T = result.row_sum, result.row_sum_log
    above = S.log() - T / S - 0.7 * inputs.visible_keys.log().unsqueeze(1)
    spread = (above > 0).float()
    weight = 1 / (20 * 2)
    expected = weight * (S.log().sign() / S + spread * (1 / S + T / S**2))
    dead = S == 0
    # A row that sees one key has H = 0 and the margin 0: rounding, which differs by machine, decides whether it is above.
    alive = ~dead & (above.abs() > 1e-4)
    assert alive.float().mean() > 0.8 and 0 < spread[alive].mean() < 1
    torch.testing.assert_close(of_sum[alive], expected[alive], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(of_sum_log[alive], (-weight * spread / S)[alive], rtol=1e-3, atol=1e-6)
    assert of_sum[dead].abs().sum() == 0
