"""What the counters say of steps, and what starting anew forgets."""

from __future__ import annotations

import pytest

from afd_sched.statistics import StepStatistics


def _step(statistics: StepStatistics, ms: float, tokens: int = 6, decode: bool = True) -> None:
    statistics.step(tokens, decode, ms, attention_wait_ms=1.0, ffn_wait_ms=2.0)


def test_an_empty_run_has_no_times() -> None:
    values = StepStatistics().values()
    assert values["steps"] == values["step_ms_p50"] == values["decode_tokens_per_s"] == 0


def test_starting_anew_forgets_times_and_keeps_counts() -> None:
    statistics = StepStatistics()
    _step(statistics, 900.0)
    _step(statistics, 500.0, decode=False)
    statistics.restart()
    assert statistics.values()["step_ms_p50"] == 0
    for ms in (10.0, 20.0, 30.0, 100.0, 40.0):
        _step(statistics, ms)
    values = statistics.values()
    assert values["steps"] == 7 and values["tokens"] == 42
    assert values["step_ms_p50"] == 30.0
    assert values["step_ms_p99"] == pytest.approx(97.6)
    assert values["decode_tokens_per_s"] == pytest.approx(30 / 0.2)
    assert values["attention_wait_ms"] == 1.0


def test_old_times_leave_the_ring() -> None:
    statistics = StepStatistics()
    for _ in range(5000):
        _step(statistics, 1000.0)
    for _ in range(4096):
        _step(statistics, 1.0)
    assert statistics.values()["step_ms_p99"] == 1.0
