"""The grid on which corrections and bounds are defined: knots in coarse time, drift budgets, clock adjustments.

The unknown is `x` at each knot of each clock: true time minus the time that the clock shows. True time of a group of
clocks is the time of its reference, where x is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints

MAX_PPM = 200.0
"""The largest drift between two clocks that the bounds allow for: quartz oscillators are within 100 ppm of their
nominal rate, mostly within 50."""
MOST_NODES = 40_000
"""Knots times clocks; the least-squares fit and the shortest paths are linear in it."""
MOST_KNOTS = 512
SHORTEST_GAP_NS = 2_000_000.0
KNOTS_BETWEEN = 4
"""Knots between two changes of the rate of one clock."""
TOLERANCE_NS = 1.0
"""Tolerance for rounding: limits that cross by less do not contradict each other."""

SLEW_STEP_NS = 10_000_000_000.0
"""A clock that is set twice in one direction within this time was probably slewed."""

INSIDE = -1_000_000
"""Marks moments inside an adjustment: far below 0, so that it stays negative when segment numbers are added."""


@dataclass(frozen=True)
class Adjustment:
    """A clock that was set forward by `size_ns` at an unknown moment between two of its own times, in coarse time.

    `may_be_reference`: the reference of its group may have been set instead, by the opposite amount; no third clock
    can decide. `ahead_ns`: the least and greatest offset of the clock `other` before it, if it was an adjustment.
    `is_rate`: the rate of the clock changed instead, and that change was removed from its timestamps. `widen_ns` is how
    far they may still be off within, and `error_ns` the error of the offset after it relative to before.
    """

    clock: int
    from_ns: float
    to_ns: float
    size_ns: float
    may_be_reference: bool = False
    other: int = -1
    ahead_ns: tuple[float, float] = (math.inf, -math.inf)
    is_rate: bool = False
    widen_ns: float = 0.0
    error_ns: float = 0.0


@dataclass(frozen=True)
class Grid:
    """The knots in coarse time, the drift budget of each clock (a fraction), and the clock adjustments.

    `segment` is the number of earlier adjustments for each knot and clock. It is -1 inside an adjustment and in the
    stretches of `unbounded`, where a clock may have been set with too few observations beyond to decide.
    """

    knots_ns: Floats
    budget: Floats
    adjustments: tuple[Adjustment, ...]
    segment: Ints
    unbounded: tuple[Adjustment, ...] = ()

    @property
    def gap_ns(self) -> float:
        """The distance between two knots."""
        return float(self.knots_ns[1] - self.knots_ns[0])

    @cached_property
    def seen(self) -> Grid:
        """The grid without unbounded stretches, as if no clock was set in them."""
        return grid_of(self.knots_ns, self.budget, self.adjustments) if self.unbounded else self

    def segment_at(self, clock: Ints, at_ns: Floats) -> Ints:
        """Return the segment of each moment of a clock, -1 inside an adjustment."""
        found = np.zeros(len(clock), np.int64)
        for adjustment in self.adjustments:
            own = clock == adjustment.clock
            found += own & (at_ns >= adjustment.to_ns)
            found[own & (at_ns > adjustment.from_ns) & (at_ns < adjustment.to_ns)] = INSIDE
        for adjustment in self.unbounded:
            found[(clock == adjustment.clock) & (at_ns > adjustment.from_ns) & (at_ns < adjustment.to_ns)] = (
                INSIDE
            )
        return np.maximum(found, -1)

    def continuous(self) -> Bools:
        """Return for each interval between two knots and each clock whether the clock was certainly not set there."""
        return np.asarray((self.segment[1:] == self.segment[:-1]) & (self.segment[1:] >= 0))


def knots_for(evidence: Evidence, clocks: int, zones: tuple[Adjustment, ...] = ()) -> Floats:
    """Return evenly spaced knots over the observations, ignoring the outermost 1 %, which may be outliers.

    They are close enough to have some between any two `zones` around changes of a rate, if the clocks are few.
    """
    if not len(evidence):
        return np.array([0.0, 1.0])
    times = np.concatenate([evidence.sent_ns, evidence.received_ns])
    # A few timestamps that are off by hours would otherwise leave all knots but two outside of the run.
    first, last = np.quantile(times, [0.01, 0.99])
    margin = 0.03 * (last - first)
    first, last = max(first - margin, times.min()), min(last + margin, times.max())
    most = max(2, min(MOST_KNOTS, MOST_NODES // clocks))
    count = int(np.clip((last - first) / SHORTEST_GAP_NS + 1, 2, most))
    apart_ns = [
        other.from_ns - one.to_ns
        for one, other in pairwise(sorted(zones, key=lambda each: (each.clock, each.from_ns)))
        if one.clock == other.clock
    ]
    if apart_ns:
        wanted = KNOTS_BETWEEN * (last - first) / max(min(apart_ns), SHORTEST_GAP_NS)
        count = max(count, int(min(wanted, max(2, MOST_NODES // clocks))))
    return np.linspace(first, max(last, first + 1_000.0), count)


def grid_of(
    knots_ns: Floats,
    budget: Floats,
    adjustments: tuple[Adjustment, ...],
    unbounded: tuple[Adjustment, ...] = (),
) -> Grid:
    """Return the grid with the segment of every knot filled in."""
    clocks, count = len(budget), len(knots_ns)
    bare = Grid(knots_ns, budget, adjustments, np.zeros((count, clocks), np.int64), unbounded)
    number = np.tile(np.arange(clocks), count)
    segment = bare.segment_at(number, np.repeat(knots_ns, clocks)).reshape(count, clocks)
    return Grid(knots_ns, budget, adjustments, segment, unbounded)


def slewed_stretches(grid: Grid, clocks: tuple[int, ...]) -> list[tuple[float, float]]:
    """Return when one of these clocks was probably slewed: adjusted repeatedly in one direction.

    A clock that runs faster than drift allows looks as if it was set again and again. The stretches begin and end by
    one distance of its adjustments farther out, which is how long a slew goes unnoticed.
    """
    found = []
    for clock in clocks:
        own = sorted((one for one in grid.adjustments if one.clock == clock), key=lambda one: one.from_ns)
        for one, other in pairwise(own):
            apart_ns = abs(other.from_ns + other.to_ns - one.from_ns - one.to_ns) / 2
            if one.size_ns * other.size_ns > 0 and apart_ns <= SLEW_STEP_NS:
                found.append((one.from_ns - apart_ns, other.to_ns + apart_ns))
    return found
