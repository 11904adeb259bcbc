"""Clocks that drift faster than the bounds allow: nothing that was observed with them bounds anything.

Slews that the messages show clearly are removed (slews.py). Where rates still change afterwards, or are unknown for a
while, a slew was attributed to the wrong clock, or two clocks changed their rates at the same time. The whole group of
such a clock has no bounds then: its reference may be the one, and all others are measured through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stagescope.clocks.grid import slewed_stretches
from stagescope.clocks.grouped import distinct
from stagescope.clocks.rate_changes import LEAST_IN_PAIR

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from stagescope.clocks.evidence import Bools, Evidence
    from stagescope.clocks.grid import Adjustment
    from stagescope.clocks.prepared import Prepared
    from stagescope.clocks.rates import RateChanges, Stretch
    from stagescope.clocks.solution import Solution

MOST_CLOCKS = 2
"""Each clock of a pair may drift from the reference."""
LONGEST_UNKNOWN_NS = 200_000_000.0
"""Between messages of a pair the rate is unknown for about as long."""


def unsteady_groups(prepared: Prepared, solution: Solution) -> Bools:
    """Return which clocks are in a group with one that drifts faster than the bounds allow.

    That includes clocks that seem to have been set again and again in one direction.
    """
    clocks = range(len(solution.reference))
    repeatedly = {clock for clock in clocks if slewed_stretches(solution.grid, (clock,))}
    unsteady = sorted(prepared.unsteady | repeatedly)
    return np.asarray(np.isin(solution.reference, solution.reference[unsteady]))


def unsteady_clocks(
    evidence: Evidence,
    rates: RateChanges,
    slews: AbstractSet[int],
    zones: tuple[Adjustment, ...],
    max_ppm: float,
) -> frozenset[int]:
    """Return the clocks of all pairs that do not certainly drift from each other at a steady, permitted rate.

    That is so if their rate clearly changes, or if it is more than both may drift or unknown for a while, outside of
    the zones around the changes that were removed. The latter counts where one clock was slewed or has a pair with one
    that was: the other pairs of such a rival show that it was not slewed instead, as long as their rates are known.
    """
    found = {clock for change in rates.changes for clock in (change.one, change.other)}
    if not slews:
        return frozenset(found)
    # A pair of which no rate is known at all is as unknown as one with a gap.
    pairs: dict[tuple[int, int], list[Stretch]] = {pair: [] for pair in observed_pairs(evidence)}
    for stretch in rates.stretches:
        pairs.setdefault((stretch.one, stretch.other), []).append(stretch)
    rivals = {clock for pair in pairs if not slews.isdisjoint(pair) for clock in pair}
    for (one, other), own in pairs.items():
        if rivals.isdisjoint((one, other)):
            continue  # outliers may hide or tilt the rate of a pair, and are judged later
        if any(abs(stretch.rate) > MOST_CLOCKS * max_ppm * 1e-6 for stretch in own):
            found |= {one, other}
        around = [zone for zone in zones if zone.clock in (one, other)]
        if _is_unknown(own, around, _observed(evidence, one, other)):
            found |= {one, other}
    return frozenset(found)


def observed_pairs(evidence: Evidence) -> list[tuple[int, int]]:
    """Return the pairs of clocks with enough observations for their rates to be examined."""
    source, target = evidence.source[evidence.waited], evidence.target[evidence.waited]
    clocks = int(max(source.max(initial=0), target.max(initial=0))) + 1
    pairs, _, _, counts = distinct(np.minimum(source, target) * clocks + np.maximum(source, target))
    return [divmod(pair, clocks) for pair in pairs[counts >= LEAST_IN_PAIR].tolist()]


def _observed(evidence: Evidence, one: int, other: int) -> tuple[float, float]:
    """Return the first and the last time of the first clock at which a receiver of the pair waited."""
    sent_ns = evidence.sent_ns[evidence.waited & (evidence.source == one) & (evidence.target == other)]
    received_ns = evidence.received_ns[
        evidence.waited & (evidence.source == other) & (evidence.target == one)
    ]
    times_ns = np.concatenate([sent_ns, received_ns])
    return float(times_ns.min()), float(times_ns.max())


def _is_unknown(stretches: list[Stretch], zones: list[Adjustment], observed_ns: tuple[float, float]) -> bool:
    """Return whether the rate of a pair is unknown for a while between its observations, outside of zones."""
    ordered = sorted(stretches, key=lambda each: each.from_ns)
    begins_ns = [*(each.from_ns for each in ordered), observed_ns[1]]
    ends_ns = [observed_ns[0], *(each.to_ns for each in ordered)]
    for from_ns, to_ns in zip(ends_ns, begins_ns, strict=True):
        inside_ns = sum(max(0.0, min(to_ns, zone.to_ns) - max(from_ns, zone.from_ns)) for zone in zones)
        if to_ns - from_ns - inside_ns > LONGEST_UNKNOWN_NS:
            return True
    return False
