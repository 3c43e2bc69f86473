"""The goals that speed and memory were measured against, and the rows of the table that says which were met."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.speed.contenders import EAGER, EAGER_RELU, PLAIN, SDPA, WITH_STATISTICS
from benchmarks.speed.matrix_products import FLOOR
from benchmarks.speed.translation_models import MARIAN, MARIAN_SMOOTHED
from benchmarks.speed.translation_models import OURS as RELUFORMER

Result = Mapping[str, Any]
NAMES = {PLAIN: "fused", WITH_STATISTICS: "fused with S and T"}


@dataclass(frozen=True)
class SpeedGoal:
    """At each length, at least this speedup of `contender` over the fastest of `rivals`; rivals never give statistics."""

    dtype: str
    which: str
    contender: str
    rivals: tuple[str, ...]
    at_least: Mapping[int, float]


def _everywhere(at_least: float, *lengths: int) -> dict[int, float]:
    return dict.fromkeys(lengths, at_least)


FORWARD, BOTH = "forward", "forward+backward"
DTYPES = ("float32", "bfloat16")
SHORT, LONG = (16, 32, 64, 128, 256), (512, 1024, 2048)
AGAINST_SDPA = (
    SpeedGoal("float32", FORWARD, PLAIN, (SDPA,), _everywhere(1.05, *LONG)),
    SpeedGoal("float32", BOTH, PLAIN, (SDPA,), {512: 1.05, 1024: 1.05, 2048: 1.0}),
    SpeedGoal("float32", BOTH, WITH_STATISTICS, (SDPA,), _everywhere(1.0, *LONG)),
    SpeedGoal("bfloat16", FORWARD, PLAIN, (SDPA,), _everywhere(0.95, *LONG)),
    SpeedGoal("bfloat16", BOTH, PLAIN, (SDPA,), _everywhere(1.2, *LONG)),
    SpeedGoal("bfloat16", BOTH, WITH_STATISTICS, (SDPA,), _everywhere(1.0, *LONG)),
)
# The better of two plain paths where the length is short: in every batch, with heads of either size.
OF_SHORT = tuple(
    SpeedGoal(dtype, which, contender, (EAGER_RELU, SDPA), _everywhere(at_least, *SHORT))
    for dtype in DTYPES
    for which in (FORWARD, BOTH)
    for contender, at_least in ((PLAIN, 0.95), (WITH_STATISTICS, 0.9))
)
# Within 5 % of the floor; and the sparse rivals.
OTHERS = tuple(
    SpeedGoal(dtype, which, PLAIN, rivals, _everywhere(at_least, *lengths))
    for rivals, at_least, lengths in (
        ((FLOOR,), 0.95, LONG),
        (("sparsemax",), 1.7, (512, 1024)),
        (("entmax15",), 1.7, (512, 1024)),
    )
    for dtype in DTYPES
    for which in (FORWARD, BOTH)
)
assert {rival for goal in OTHERS for rival in goal.rivals} <= {FLOOR, SDPA, *EAGER}
MEMORY_LENGTH, MEMORY_BYTES = 8192, 300e6
# of training and of beam search; and of training with at least so many pieces, where a loss without logits counts
END_TO_END, END_TO_END_LARGE, LARGE_VOCABULARY = 1.0, 1.1, 10_000
# With 95 % zeros and one row: networks with a gate over the dense loop, and in int8; a whole model over torch and that loop.
SPARSE_SHARE = 95
SPARSE_GLU, SPARSE_INT8 = 2.3, 1.5
SPARSE_MODEL = {"torch": 2.0, "dense": 1.35}


def verdict(value: float, goal: float, *, at_most: bool = False) -> str:
    return "met" if (value <= goal if at_most else value >= goal) else "**missed**"


def speed_rows(
    result: Result, goals: tuple[SpeedGoal, ...], lengths: tuple[int, ...], batch: int = 1
) -> Iterator[list[str]]:
    """dtype, pass, what against what, batch × heads, causal, goal, and what was measured at each length with heads of 64.

    A row without any cell is left out.
    """
    cells = _by_case(result)
    heads = next(iter(result["cells"]))["heads"]
    for goal, causal in itertools.product(goals, (False, True)):
        wanted = [f"{goal.at_least[length]:.2f}×" for length in lengths if length in goal.at_least]
        row = [
            goal.dtype,
            goal.which,
            NAMES[goal.contender],
            " or ".join(goal.rivals),
            f"{batch} × {heads}",
            _yes(causal),
        ]
        row.append("≥ " + (wanted[0] if len(set(wanted)) == 1 else ", ".join(wanted)))
        found = [cells.get((goal.dtype, goal.which, causal, batch, 64, length)) for length in lengths]
        if any(found):
            yield row + [_speed_text(cell, goal, length) for cell, length in zip(found, lengths, strict=True)]


def short_rows(result: Result, goals: tuple[SpeedGoal, ...] = OF_SHORT) -> Iterator[list[str]]:
    """dtype, pass, ours, goal, causal, head_dim, batch × heads, and at each of SHORT the median speedup, bold where missed."""
    cells = _by_case(result)
    shapes = sorted(
        {(cell["head_dim"], cell["batch"], cell["heads"]) for cell in result["cells"] if cell["length"] in SHORT}
    )
    for goal, causal, (head_dim, batch, heads) in itertools.product(goals, (False, True), shapes):
        found = [cells.get((goal.dtype, goal.which, causal, batch, head_dim, length)) for length in SHORT]
        if any(found):
            row = [goal.dtype, goal.which, NAMES[goal.contender], f"≥ {goal.at_least[SHORT[0]]:.2f}×", _yes(causal)]
            row += [str(head_dim), f"{batch} × {heads}"]
            yield row + [_median_text(cell, goal, length) for cell, length in zip(found, SHORT, strict=True)]


def _by_case(result: Result) -> dict[tuple[Any, ...], Result]:
    names = ("dtype", "pass", "causal", "batch", "head_dim", "length")
    return {tuple(cell[name] for name in names): cell for cell in result["cells"]}


def _against_fastest(cell: Result, goal: SpeedGoal) -> Mapping[str, float] | None:
    """The speedup over the fastest rival; None where one of them was not timed."""
    found = [cell["speedups"].get(goal.contender, {}).get(rival) for rival in goal.rivals]
    return None if None in found else min(found, key=lambda figures: figures["median"])


def _median_text(cell: Result | None, goal: SpeedGoal, length: int) -> str:
    speedup = None if cell is None else _against_fastest(cell, goal)
    if speedup is None:
        return "–"
    text = f"{speedup['median']:.2f}"
    return text if speedup["median"] >= goal.at_least[length] else f"**{text}**"


def _speed_text(cell: Result | None, goal: SpeedGoal, length: int) -> str:
    if cell is None or length not in goal.at_least:
        return "–"
    speedup = _against_fastest(cell, goal)
    if speedup is None:
        return "not measured: " + "; ".join(cell["left_out"].get(rival, "?") for rival in goal.rivals)
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
    """One row for each cell and each of the two MarianMTModels."""
    for cell in result["cells"]:
        large = (
            cell["task"] == "training" and result["settings"]["shapes"][cell["shape"]]["vocab_size"] >= LARGE_VOCABULARY
        )
        goal = END_TO_END_LARGE if large else END_TO_END
        for rival in (MARIAN, MARIAN_SMOOTHED):
            speedup = cell["speedups"].get(RELUFORMER, {}).get(rival)
            if speedup is not None:
                yield [
                    describe(cell),
                    f"≥ {goal:.1f}× {rival}",
                    f"{spread(speedup)}×",
                    verdict(speedup["median"], goal),
                ]


def sparse_rows(networks: Result, models: Result, shape: str) -> Iterator[list[str]]:
    """What, goal, what was measured, verdict and machine: networks with a gate of every width, and the model of a shape."""
    machines = (networks["machine"]["cpu"], models["machine"]["cpu"])
    for cell in networks["cells"]:
        if (cell["kind"], cell["rows"]) == ("GLU", 1):
            where = f"GLU, d = {cell['width']:,}, {cell['threads']} {'thread' if cell['threads'] == 1 else 'threads'}"
            for dtype, goal in (("float32", SPARSE_GLU), ("int8", SPARSE_INT8)):
                speedup = cell["speedups"][f"{dtype} zeros {SPARSE_SHARE}"][f"{dtype} dense"]
                met = verdict(speedup["median"], goal)
                yield [f"{where}, {dtype}", f"≥ {goal}× dense", f"{spread(speedup)}×", met, machines[0]]
    for cell in models["models"]:
        if (cell["shape"], cell["zeros"], cell["beams"]) == (shape, SPARSE_SHARE, 1):
            where = f"`generate`, {shape}, {cell['threads']} {'thread' if cell['threads'] == 1 else 'threads'}, float32"
            for rival, goal in SPARSE_MODEL.items():
                speedup = cell["speedups"]["float32 zeros"][f"float32 {rival}"]
                met = verdict(speedup["median"], goal)
                yield [where, f"≥ {goal}× {rival}", f"{spread(speedup)}×", met, machines[1]]


def describe(cell: Result) -> str:
    """A cell of end_to_end.py in words."""
    dropout = f", attention dropout {cell['attention_dropout']:g}" if cell["task"] == "training" else ""
    return f"{cell['task']}, {cell['shape']}, {cell['inputs']}, {cell['dtype']}{dropout}"


def spread(figures: Mapping[str, float]) -> str:
    """Median (P10–P90)."""
    return f"{figures['median']:.2f} ({figures['p10']:.2f}–{figures['p90']:.2f})"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
