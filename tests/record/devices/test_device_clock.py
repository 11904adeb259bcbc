from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_device import as_float32
from stagescope.record.devices.device_clock import DeviceClock, host_time_ns


def new_clock():
    """A device clock whose marks know their device time; distances are rounded like a driver's."""
    return DeviceClock(lambda start, end: as_float32((end.ns - start.ns) / 1e6), 0)


def mark(ns):
    return SimpleNamespace(ns=ns)


@pytest.fixture
def clock():
    return new_clock()


def test_first_anchor_has_no_error(clock):
    assert clock.add(mark(0), 100, 200) == 0
    assert (clock.latest.device_ns, clock.latest.host_ns, clock.latest.width_ns) == (0, 150, 100)


def test_moment_is_interpolated_between_surrounding_anchors(clock):
    clock.add(mark(0), 1_000, 1_000)
    first = clock.latest
    clock.add(mark(1_000_000), 1_501_000, 1_501_000)  # the device is slower by a third
    assert host_time_ns(clock.locate(mark(500_000), first)) == 751_000


def test_moment_after_the_last_anchor_has_no_time(clock):
    clock.add(mark(0), 0, 0)
    moment = clock.locate(mark(10), clock.latest)
    assert host_time_ns(moment) is None
    clock.add(mark(1_000), 1_000, 1_000)
    assert host_time_ns(moment) == 10


def test_moment_is_measured_from_the_preceding_anchor(clock):
    hour_ns = 3_600 * 10**9
    clock.add(mark(0), 0, 0)
    first = clock.latest
    for second in range(1, 8):
        clock.add(mark(hour_ns + second * 10**9), hour_ns + second * 10**9, hour_ns + second * 10**9)
    truth_ns = hour_ns + 5 * 10**9 + 123_457
    moment = clock.locate(mark(truth_ns), first)
    assert moment.since_ns == pytest.approx(123_457, abs=20)
    assert host_time_ns(moment) == pytest.approx(truth_ns, abs=300)


def test_error_is_half_the_wider_bracket_plus_rounding(clock):
    clock.add(mark(0), 0, 4_000)
    error_ns = clock.add(mark(8 * 10**9), 8 * 10**9, 8 * 10**9 + 10_000)
    float32_step_ns = math.ulp(8_000.0) * 2**29 * 1e6
    assert 5_000 + float32_step_ns <= error_ns <= 5_000 + float32_step_ns + 10


def test_anchor_at_the_same_device_time_is_refused(clock):
    clock.add(mark(5), 0, 10)
    first = clock.latest
    assert clock.add(mark(5), 20, 30) is None
    assert clock.latest is first


@given(
    st.lists(st.integers(1_000, 20 * 10**9), min_size=1, max_size=12),
    st.lists(st.floats(0, 1), min_size=12, max_size=12),
    st.integers(0, 100_000),
    st.floats(-500, 500),
)
def test_stated_error_covers_the_truth_for_every_drift_and_bracket(gaps_ns, where, width_ns, drift_ppm):
    """Anchors are anywhere in their brackets; the moment is in the middle of the last interval."""
    rate = 1 + drift_ppm / 1e6
    clock = new_clock()
    clock.add(mark(0), 0, 0)
    first, truth_ns, host_ns = clock.latest, 0, 0
    for gap_ns, fraction in zip(gaps_ns, where, strict=False):
        truth_ns, host_ns = host_ns, host_ns + gap_ns
        before_ns = host_ns - round(width_ns * fraction)
        error_ns = clock.add(mark(round(host_ns * rate)), before_ns, before_ns + width_ns)
    middle_ns = (truth_ns + host_ns) // 2
    found_ns = host_time_ns(clock.locate(mark(round(middle_ns * rate)), first))
    assert abs(found_ns - middle_ns) <= error_ns + 2
