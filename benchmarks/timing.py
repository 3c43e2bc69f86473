"""Interleaved timing: all contenders of a cell in turn, round after round, so that drift of the machine hits all alike.

In each round every contender is called often enough to last 20 ms; the order of a round is that of the last one,
rotated by one and reversed. Results are of the rounds: median, P10 and P90 of the time of a call, and for two
contenders the ratio of their times in the same round. A slow contender takes part in fewer rounds, spread over the
whole.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Step = Callable[[], Any]

ROUND_SECONDS, MOST_ROUNDS = 0.02, 41
WARM_UP_AGAIN_BELOW = 0.3  # seconds; a longer call is not repeated before it is timed


@dataclass(frozen=True)
class Timing:
    """What was measured in one cell.

    seconds: of one call, by contender and number of the round. repetitions: calls in a round.
    """

    seconds: dict[str, dict[int, float]]
    repetitions: dict[str, int]

    def summary(self, name: str) -> dict[str, float]:
        """Time of a call in milliseconds, and how it was measured."""
        median, low, high = _spread([1e3 * seconds for seconds in self.seconds[name].values()])
        rounds = {"rounds": len(self.seconds[name]), "repetitions": self.repetitions[name]}
        return {"median_ms": median, "p10_ms": low, "p90_ms": high, **rounds}

    def speedup(self, name: str, rival: str) -> dict[str, float]:
        """How many times as fast `name` is as `rival`, over the rounds that both took part in."""
        mine, other = self.seconds[name], self.seconds[rival]
        median, low, high = _spread([other[number] / mine[number] for number in mine if number in other])
        return {"median": median, "p10": low, "p90": high}

    def record(self, compared: Mapping[str, Iterable[str]], amount: float = 0.0, unit: str = "") -> dict[str, Any]:
        """`times`, `speedups`, and with a unit `unit` and `speeds`, for the result file.

        Args:
            compared: contender → those that it is compared with.
            amount: what a call does; `speeds` tell how much of it is done in a second.
            unit: for example "sentences a second".
        """
        times = {name: self.summary(name) for name in self.seconds}
        speeds = {name: 1e3 * amount / values["median_ms"] for name, values in times.items()}
        speedups = {
            name: {rival: self.speedup(name, rival) for rival in rivals if rival in times}
            for name, rivals in compared.items()
            if name in times
        }
        facts = {"unit": unit, "speeds": speeds} if unit else {}
        return {**facts, "times": times, "speedups": speedups}


def time_contenders(
    contenders: Mapping[str, Step],
    *,
    budget: float = 0.0,
    synchronize: Step | None = None,
    rounds: int | None = None,
    round_seconds: float = ROUND_SECONDS,
) -> Timing:
    """Times all contenders in alternating rounds.

    Args:
        contenders: what to call, by name.
        budget: seconds for the cell, without `rounds`, divided equally; more are taken where the least number of rounds
            needs them: 15 of up to 50 ms, 7 of up to a second, 3 of longer ones.
        synchronize: waits for the device, for work that goes on after the call has returned.
        rounds: this many for all, instead of what the budget allows.
        round_seconds: how long one contender's calls in one round last, at least about.
    """
    calls = {name: _one_call(step, synchronize) for name, step in contenders.items()}
    repetitions = {name: max(1, math.ceil(round_seconds / seconds)) for name, seconds in calls.items()}
    share = budget / len(contenders)
    counts = {name: rounds or _round_count(share, repetitions[name] * seconds) for name, seconds in calls.items()}
    return Timing(_alternate(contenders, repetitions, counts, synchronize), repetitions)


def _round_count(share: float, round_seconds: float) -> int:
    least = 15 if round_seconds <= 0.05 else 7 if round_seconds <= 1.0 else 3
    return min(MOST_ROUNDS, max(least, int(share / round_seconds)))


def _one_call(step: Step, synchronize: Step | None) -> float:
    """Seconds of one call that is not the first, or of the first where that is long."""
    seconds = _time(step, 1, synchronize)
    return _time(step, 1, synchronize) if seconds < WARM_UP_AGAIN_BELOW else seconds


def _alternate(
    steps: Mapping[str, Step], repetitions: dict[str, int], counts: dict[str, int], synchronize: Step | None
) -> dict[str, dict[int, float]]:
    total = max(counts.values())
    # In this order of importance a contender's rounds are spread evenly, and those of a slower one are among them.
    by_importance = sorted(range(total), key=lambda number: number * 0.6180339887 % 1)
    taking_part = {name: set(by_importance[:count]) for name, count in counts.items()}
    seconds: dict[str, dict[int, float]] = {name: {} for name in steps}
    names = list(steps)
    gc.collect()
    gc.disable()
    try:
        for number in range(total):
            rotated = names[number % len(names) :] + names[: number % len(names)]
            for name in reversed(rotated) if number % 2 else rotated:
                if number in taking_part[name]:
                    seconds[name][number] = _time(steps[name], repetitions[name], synchronize)
    finally:
        gc.enable()
    return seconds


def _time(step: Step, repetitions: int, synchronize: Step | None) -> float:
    wait = synchronize or (lambda: None)
    wait()
    start = time.perf_counter()
    for _ in range(repetitions):
        step()
    wait()
    return (time.perf_counter() - start) / repetitions


def _spread(values: list[float]) -> tuple[float, float, float]:
    """Median, P10, P90."""
    return tuple(float(value) for value in np.percentile(values, [50, 10, 90]))
