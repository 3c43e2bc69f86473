"""Interleaved timing, on a clock that the contenders themselves move."""

import pytest

from benchmarks import timing
from benchmarks.timing import time_contenders


class Clock:
    def __init__(self):
        self.now, self.calls = 0.0, []

    def step(self, name, seconds):
        def call():
            self.calls.append(name)
            self.now += seconds

        return call


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    return clock


def test_speedups_and_speeds_are_of_the_same_rounds(clock):
    steps = {"mine": clock.step("mine", 0.03), "rival": clock.step("rival", 0.06)}
    found = time_contenders(steps).record({"mine": ["rival", "absent"], "absent": ["mine"]}, 3, "items a second")
    assert found["times"]["mine"]["median_ms"] == pytest.approx(30.0)
    assert found["speedups"].keys() == {"mine"} and found["speedups"]["mine"].keys() == {"rival"}
    assert found["speedups"]["mine"]["rival"]["median"] == pytest.approx(2.0)
    assert found["speeds"] == pytest.approx({"mine": 100.0, "rival": 50.0}) and found["unit"] == "items a second"
    assert [found["times"][name]["rounds"] for name in steps] == [15, 7]


def test_fast_calls_are_repeated_until_a_round_is_long_enough(clock):
    found = time_contenders({"mine": clock.step("mine", 0.003)})
    assert found.repetitions == {"mine": 7}, "7 · 3 ms are the first to pass 20 ms"
    assert found.summary("mine")["median_ms"] == pytest.approx(3.0)


def test_the_order_changes_from_round_to_round(clock):
    time_contenders({name: clock.step(name, 0.02) for name in "abc"}, rounds=4)
    warm_up, calls = "aabbcc", "".join(clock.calls)
    assert calls == warm_up + "abc" + "acb" + "cab" + "cba"


def test_a_slow_contender_shares_its_rounds_with_the_fast_ones(clock):
    found = time_contenders({"fast": clock.step("fast", 0.02), "slow": clock.step("slow", 1.5)}, budget=1.0)
    fast, slow = found.seconds["fast"], found.seconds["slow"]
    assert len(slow) == 3 and set(slow) < set(fast)
    assert max(slow) - min(slow) > len(fast) / 3, "spread over the whole"
