"""Durations and time axes as text; the unit follows the magnitude."""

from __future__ import annotations

from typing import NamedTuple

UNITS: tuple[tuple[str, int], ...] = (("s", 10**9), ("ms", 10**6), ("µs", 10**3), ("ns", 1))
UNITS_NS: dict[str, int] = {"us": 10**3, **dict(UNITS)}
"""Units that a user may write after a number, in nanoseconds."""

NICE_STEPS = (1, 2, 5)


class Tick(NamedTuple):
    """One mark of a time axis."""

    time_ns: int
    text: str


class Axis(NamedTuple):
    """The marks of a time axis that starts at 0, and the unit of their texts."""

    unit: str
    ticks: tuple[Tick, ...]


def duration_text(duration_ns: int) -> str:
    """Return a duration with its unit and four significant digits; nanoseconds are whole.

    >>> duration_text(12_345_678), duration_text(420_000), duration_text(7)
    ('12.35 ms', '420.0 µs', '7 ns')
    """
    unit, unit_ns = _unit(abs(duration_ns))
    value = duration_ns / unit_ns
    decimals = max(0, 4 - len(str(abs(int(value))))) if unit_ns > 1 else 0
    return f"{value:.{decimals}f} {unit}"


def time_axis(length_ns: int, most: int) -> Axis:
    """Return at most `most` evenly spaced marks (plus the one at 0) on an axis of `length_ns`.

    The distance is 1, 2 or 5 times a power of ten nanoseconds; all marks share one unit.
    """
    length_ns, most = max(length_ns, 1), max(most, 1)
    step_ns = next(
        nice * 10**power for power in range(20) for nice in NICE_STEPS if nice * 10**power * most >= length_ns
    )
    unit, unit_ns = _unit(length_ns)
    times_ns = range(0, length_ns + 1, step_ns)
    decimals = max(0, len(str(unit_ns)) - len(str(step_ns)))
    return Axis(unit, tuple(Tick(time_ns, f"{time_ns / unit_ns:.{decimals}f}") for time_ns in times_ns))


def _unit(size_ns: int) -> tuple[str, int]:
    """Return the largest unit in which the value is at least 1."""
    return next((unit for unit in UNITS if size_ns >= unit[1]), UNITS[-1])
