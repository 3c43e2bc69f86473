"""Interleaved timing, on a clock that the contenders themselves move."""

import pytest


class Clock:
    def __init__(self):
        self.now, self.calls = 0.0, []

    def step(self, name, seconds):
        def call():
            self.calls.append(name)
            self.now += seconds

        return call


@pytest.fixture
def timing(program):
    return program("speed.timing")


@pytest.fixture
def clock(timing, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    return clock


def test_speedups_are_of_the_same_rounds(timing, clock):
    steps = {"mine": clock.step("mine", 0.03), "rival": clock.step("rival", 0.06)}
    found = timing.time_contenders(steps, budget=0.0)
    assert found.summary("mine")["median_ms"] == pytest.approx(30.0)
    assert found.speedup("mine", "rival")["median"] == pytest.approx(2.0)
    assert found.speedup("rival", "mine")["p90"] == pytest.approx(0.5)
    assert found.summary("mine")["rounds"] == 15 and found.summary("rival")["rounds"] == 7


def test_fast_calls_are_repeated_until_a_round_is_long_enough(timing, clock):
    found = timing.time_contenders({"mine": clock.step("mine", 0.003)}, budget=0.0)
    assert found.repetitions == {"mine": 7}, "7 · 3 ms are the first to pass 20 ms"
    assert found.summary("mine")["median_ms"] == pytest.approx(3.0)


def test_the_order_changes_from_round_to_round(timing, clock):
    steps = {name: clock.step(name, 0.02) for name in "abc"}
    timing.time_contenders(steps, budget=0.0, rounds=4)
    warm_up, calls = "aabbcc", "".join(clock.calls)
    assert calls == warm_up + "abc" + "acb" + "cab" + "cba"


def test_a_slow_contender_shares_its_rounds_with_the_fast_ones(timing, clock):
    steps = {"fast": clock.step("fast", 0.02), "slow": clock.step("slow", 1.5)}
    found = timing.time_contenders(steps, budget=1.0)
    fast, slow = found.seconds["fast"], found.seconds["slow"]
    assert len(slow) == 3 and set(slow) < set(fast)
    assert max(slow) - min(slow) > len(fast) / 3, "spread over the whole"


def test_who_is_too_slow_is_left_out_with_the_reason_unless_needed(timing, clock):
    steps = {"mine": clock.step("mine", 2.0), "rival": clock.step("rival", 3.0)}
    found = timing.time_contenders(steps, budget=1.0, slowest=1.0, always=("mine",))
    assert set(found.seconds) == {"mine"}
    assert found.left_out == {"rival": "a call took 3.0 s, the limit is 1 s"}
    assert clock.calls.count("rival") == 1


def test_nothing_to_time_is_refused(timing):
    with pytest.raises(ValueError, match="nothing to time"):
        timing.time_contenders({}, budget=1.0)
