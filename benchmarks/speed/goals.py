"""The goals that speed and memory were measured against, and the rows of the table that says which were met."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.speed.contenders import EAGER, OURS, SDPA
from benchmarks.speed.matrix_products import FLOOR
from benchmarks.speed.translation_models import MARIAN
from benchmarks.speed.translation_models import OURS as RELUFORMER

Result = Mapping[str, Any]
PLAIN, _, WITH_STATISTICS = OURS
NAMES = {PLAIN: "fused", WITH_STATISTICS: "fused with S and T"}


@dataclass(frozen=True)
class SpeedGoal:
    """At each length, at least this speedup of `contender` over the fastest of `rivals`; heads of 64, batch 1 × 8 heads."""

    dtype: str
    which: str
    contender: str
    rivals: tuple[str, ...]
    at_least: Mapping[int, float]


def _everywhere(at_least: float, *lengths: int) -> dict[int, float]:
    return dict.fromkeys(lengths, at_least)


FORWARD, BOTH = "forward", "forward+backward"
LONG = (512, 1024, 2048)
AGAINST_SDPA = (
    SpeedGoal("float32", FORWARD, PLAIN, (SDPA,), _everywhere(1.05, *LONG)),
    SpeedGoal("float32", BOTH, PLAIN, (SDPA,), {512: 1.05, 1024: 1.05, 2048: 1.0}),
    SpeedGoal("float32", BOTH, WITH_STATISTICS, (SDPA,), _everywhere(0.85, *LONG)),
    SpeedGoal("bfloat16", FORWARD, PLAIN, (SDPA,), _everywhere(0.95, *LONG)),
    SpeedGoal("bfloat16", BOTH, PLAIN, (SDPA,), _everywhere(1.2, *LONG)),
)
# within 5 % of the floor, of the better of two plain paths where the length is short; and the sparse rivals
OTHERS = tuple(
    SpeedGoal(dtype, which, PLAIN, rivals, _everywhere(at_least, *lengths))
    for rivals, at_least, lengths in (
        ((FLOOR,), 0.95, LONG),
        (("eager relu", SDPA), 0.95, (64, 128)),
        (("sparsemax",), 1.7, LONG),
        (("entmax15",), 1.7, LONG),
    )
    for dtype in ("float32", "bfloat16")
    for which in (FORWARD, BOTH)
)
assert {rival for goal in OTHERS for rival in goal.rivals} <= {FLOOR, SDPA, *EAGER}
MEMORY_LENGTH, MEMORY_BYTES = 8192, 300e6
END_TO_END = 1.0
# pass → speedup over FlashAttention with heads of 64; and what S and T may cost
GPU_SPEEDUPS = {"forward": 1.5, "backward": 1.2}
GPU_STATISTICS = 1.2


def verdict(value: float, goal: float, *, at_most: bool = False) -> str:
    return "met" if (value <= goal if at_most else value >= goal) else "**missed**"


def speed_rows(result: Result, goals: tuple[SpeedGoal, ...], lengths: tuple[int, ...]) -> Iterator[list[str]]:
    """dtype, pass, what against what, causal, goal, and for each length what was measured."""
    cells = {
        (cell["dtype"], cell["pass"], cell["causal"], cell["length"]): cell
        for cell in result["cells"]
        if cell["batch"] == 1
    }
    for goal in goals:
        wanted = [f"{goal.at_least[length]:.2f}×" for length in lengths if length in goal.at_least]
        for causal in (False, True):
            row = [goal.dtype, goal.which, NAMES[goal.contender], " or ".join(goal.rivals), _yes(causal)]
            row.append("≥ " + (wanted[0] if len(set(wanted)) == 1 else ", ".join(wanted)))
            for length in lengths:
                cell = cells.get((goal.dtype, goal.which, causal, length))
                row.append(_speed_text(cell, goal, length))
            yield row


def _speed_text(cell: Result | None, goal: SpeedGoal, length: int) -> str:
    if cell is None or length not in goal.at_least:
        return "–"
    found = [cell["speedups"].get(goal.contender, {}).get(rival) for rival in goal.rivals]
    if None in found:
        return "not measured: " + "; ".join(cell["left_out"].get(rival, "?") for rival in goal.rivals)
    speedup = min(found, key=lambda figures: figures["median"])
    text = f"{spread(speedup)} {verdict(speedup['median'], goal.at_least[length])}"
    floor = cell["speedups"].get(FLOOR, {})
    if goal.rivals == (SDPA,) and SDPA in floor:
        text += f"; floor {floor[SDPA]['median']:.2f}"
    return text


def memory_row(result: Result) -> list[str]:
    """The goal, and the extra peak of the fused attention with its regulariser; empty where it was not measured."""
    for cell in result["cells"]:
        if (cell["what"], cell["contender"], cell["length"]) == ("attention", "fused", MEMORY_LENGTH):
            measured = cell.get("extra_bytes")
            text = cell.get("not_run") if measured is None else f"{measured / 1e6:,.0f} MB"
            met = "**missed**" if measured is None else verdict(measured, MEMORY_BYTES, at_most=True)
            return [f"extra peak memory, n = {MEMORY_LENGTH:,}", f"< {MEMORY_BYTES / 1e6:.0f} MB", text, met]
    return []


def end_to_end_rows(result: Result) -> Iterator[list[str]]:
    for cell in result["cells"]:
        speedup = cell["speedups"].get(RELUFORMER, {}).get(MARIAN)
        if speedup is not None:
            met = verdict(speedup["median"], END_TO_END)
            yield [describe(cell), f"≥ {END_TO_END:.1f}× {MARIAN}", f"{spread(speedup)}×", met]


def gpu_rows(result: Result, rival: str = "sdpa flash") -> Iterator[list[str]]:
    """One row for each length and pass with heads of 64: speedup over FlashAttention, and the cost of S and T."""
    for cell in result["cells"]:
        if cell["pass"] not in GPU_SPEEDUPS or cell["head_dim"] != 64:
            continue
        where = f"{cell['pass']}, n = {cell['length']:,}, causal: {_yes(cell['causal'])}"
        speedup = cell["speedups"][PLAIN].get(rival)
        if speedup is not None:
            goal = GPU_SPEEDUPS[cell["pass"]]
            yield [where, f"≥ {goal}× {rival}", f"{spread(speedup)}×", verdict(speedup["median"], goal)]
        cost = cell["speedups"][PLAIN][WITH_STATISTICS]
        met = verdict(cost["median"], GPU_STATISTICS, at_most=True)
        yield [f"{where}: S and T", f"≤ {GPU_STATISTICS}× the time without", f"{spread(cost)}×", met]


def describe(cell: Result) -> str:
    """A cell of end_to_end.py in words."""
    dropout = f", attention dropout {cell['attention_dropout']:g}" if cell["task"] == "training" else ""
    return f"{cell['task']}, {cell['shape']}, {cell['inputs']}, {cell['dtype']}{dropout}"


def spread(figures: Mapping[str, float]) -> str:
    """Median (P10–P90)."""
    return f"{figures['median']:.2f} ({figures['p10']:.2f}–{figures['p90']:.2f})"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
