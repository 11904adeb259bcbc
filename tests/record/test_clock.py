from __future__ import annotations

import time
from pathlib import Path

import pytest

from stagescope.record import clock


class FakeClocks:
    """Both clocks advance when they are read; the wall clock is ahead by a planted offset."""

    def __init__(self, costs_ns, ahead_ns=1_000_000):
        self.now_ns = 0
        self.costs_ns = iter(costs_ns)
        self.ahead_ns = ahead_ns

    def monotonic_ns(self):
        self.now_ns += next(self.costs_ns, 1)
        return self.now_ns

    def time_ns(self):
        return self.now_ns + self.ahead_ns


def test_narrowest_reading_becomes_the_anchor(monkeypatch):
    clocks = FakeClocks([10, 500, 10, 30, 10, 900, 10, 31, 10, 600])
    monkeypatch.setattr(clock.time, "monotonic_ns", clocks.monotonic_ns)
    monkeypatch.setattr(clock.time, "time_ns", clocks.time_ns)
    assert clock.read_anchor().width_ns == 30


def test_anchor_recovers_planted_offset_within_its_width(monkeypatch):
    clocks = FakeClocks([10, 80] * 5, ahead_ns=7_000_000)
    monkeypatch.setattr(clock.time, "monotonic_ns", clocks.monotonic_ns)
    monkeypatch.setattr(clock.time, "time_ns", clocks.time_ns)
    anchor = clock.read_anchor()
    assert abs(anchor.realtime_ns - anchor.monotonic_ns - 7_000_000) <= anchor.width_ns


def test_spans_use_the_monotonic_clock():
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    assert before <= clock.now_ns() <= time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def test_boot_id_is_the_kernels():
    source = Path("/proc/sys/kernel/random/boot_id")
    if not source.exists():
        pytest.skip("this system has no boot id")
    assert clock.boot_id() == source.read_text(encoding="ascii").strip()


def test_unknown_boot_id_is_empty(monkeypatch):
    def refuse(*_, **__):
        raise PermissionError

    monkeypatch.setattr("builtins.open", refuse)
    assert clock.boot_id() == ""
