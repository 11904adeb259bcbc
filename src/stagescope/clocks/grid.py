"""The grid that corrections and bounds live on: knots in coarse time, drift budgets, and where clocks were set.

Unknown is `x`, at each knot of each clock: true time minus what the clock shows. The true time of a group of clocks
is that of its reference, where x is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints

MOST_NODES = 40_000
MOST_KNOTS = 512
SHORTEST_GAP_NS = 2_000_000.0
TOLERANCE_NS = 1.0
"""What rounding may do: limits that cross by less do not contradict each other."""

INSIDE = -1_000_000


@dataclass(frozen=True)
class Adjustment:
    """A clock step: somewhere between two moments of a clock, in coarse time, it was set, ahead by `size_ns`.

    `may_be_reference`: the reference of its group may as well have been set, the other way; nobody else tells.
    `ahead_ns`: how far the clock `other` was ahead of this one before, at least and at most, if it was a step.
    """

    clock: int
    from_ns: float
    to_ns: float
    size_ns: float
    may_be_reference: bool = False
    other: int = -1
    ahead_ns: tuple[float, float] = (math.inf, -math.inf)


@dataclass(frozen=True)
class Grid:
    """The knots in coarse time, the drift budget of each clock (a fraction), and the clock steps.

    `segment` tells for each knot and clock how many steps of it came before; -1 is inside of one, or in a stretch
    of `unbounded`: there a step may have been, and too little came after (or before) it to tell.
    """

    knots_ns: Floats
    budget: Floats
    adjustments: tuple[Adjustment, ...]
    segment: Ints
    unbounded: tuple[Adjustment, ...] = ()

    @property
    def gap_ns(self) -> float:
        """Distance of two knots."""
        return float(self.knots_ns[1] - self.knots_ns[0])

    @cached_property
    def seen(self) -> Grid:
        """The grid as if no clock was set in a stretch in which one may have been."""
        return grid_of(self.knots_ns, self.budget, self.adjustments) if self.unbounded else self

    def segment_at(self, clock: Ints, at_ns: Floats) -> Ints:
        """Return the segment that each moment of a clock lies in, -1 inside of a step."""
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
        """Return for each gap between two knots and each clock whether it was surely not set there."""
        return np.asarray((self.segment[1:] == self.segment[:-1]) & (self.segment[1:] >= 0))


def knots_for(evidence: Evidence, clocks: int) -> Floats:
    """Return the knots: evenly spaced over the evidence, without outermost timestamps that are far off and may be false."""
    if not len(evidence):
        return np.array([0.0, 1.0])
    times = np.concatenate([evidence.sent_ns, evidence.received_ns])
    first, last = np.quantile(times, [0.01, 0.99])
    margin = 0.03 * (last - first)
    first, last = max(first - margin, times.min()), min(last + margin, times.max())
    most = max(2, min(MOST_KNOTS, MOST_NODES // clocks))
    count = int(np.clip((last - first) / SHORTEST_GAP_NS + 1, 2, most))
    return np.linspace(first, max(last, first + 1_000.0), count)


def grid_of(
    knots_ns: Floats,
    budget: Floats,
    adjustments: tuple[Adjustment, ...],
    unbounded: tuple[Adjustment, ...] = (),
) -> Grid:
    """Return the grid with every knot's segment filled in."""
    clocks, count = len(budget), len(knots_ns)
    bare = Grid(knots_ns, budget, adjustments, np.zeros((count, clocks), np.int64), unbounded)
    number = np.tile(np.arange(clocks), count)
    segment = bare.segment_at(number, np.repeat(knots_ns, clocks)).reshape(count, clocks)
    return Grid(knots_ns, budget, adjustments, segment, unbounded)
