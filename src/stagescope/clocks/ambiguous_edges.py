"""Observations at the ends of a run that are either outliers or the only ones beyond a clock adjustment.

They are too few to decide which. From there to that end of the run, the clocks have no bounds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.clocks.conflicts import CONFIRMING
from stagescope.clocks.grid import Adjustment

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints


class Ambiguous(NamedTuple):
    """Observations that contradict others on one side, too few for an adjustment.

    `unbounded` are the stretches in which there may be one.
    """

    places: Ints
    unbounded: tuple[Adjustment, ...]


class Points(NamedTuple):
    """The observations of one pair of clocks, and the moment of each."""

    evidence: Evidence
    at_ns: Floats
    pair: tuple[int, int]


class Group(NamedTuple):
    """Conflicts that share a moment: indices of the earlier and the later observation of each, and the size."""

    early: Ints
    late: Ints
    conflict_ns: Floats

    def where(self, chosen: Bools | Ints) -> Group:
        """Return a subset of the conflicts."""
        return Group(self.early[chosen], self.late[chosen], self.conflict_ns[chosen])


def conflict_cover(group: Group) -> Ints:
    """Return observations whose removal resolves all conflicts: the most frequent first, and both of the last pairs."""
    chosen: list[Ints] = []
    early, late = group.early, group.late
    while len(early):
        places, counts = np.unique(np.concatenate([early, late]), return_counts=True)
        if counts.max() == 1:
            chosen.append(places)
            break
        most = places[[np.argmax(counts)]]
        chosen.append(most)
        left = (early != most) & (late != most)
        early, late = early[left], late[left]
    return np.concatenate(chosen)


def unbounded_ends(
    points: Points, group: Group, ends_ns: Floats, own: Ints, ambiguous: Bools
) -> list[Adjustment]:
    """Return the ends of the run in which a clock may have been set, with too few observations beyond to decide.

    `points` are the observations with the indices `own`, `ends_ns` the earlier and the later event of every
    observation, and `ambiguous` the excluded ones. If further observations of either direction, beyond the few, do
    not contradict what the few contradict, the few are outliers. Otherwise they may be all that followed (or
    preceded) an adjustment. It may be as late, or as early, as the few allow, extended by its possible size, because
    a clock that is set back shows that much time twice.
    """
    conflict_ns = float(group.conflict_ns.max())
    found = []
    for few, many, sign in ((group.late, group.early, 1), (group.early, group.late, -1)):
        if len(np.unique(few)) > len(np.unique(many)):
            continue
        at_ns = sign * ends_ns.mean(axis=0)
        beyond = sign * points.at_ns > at_ns[few].max()
        ahead = points.evidence.source == points.pair[0]
        if min(np.sum(beyond & ahead), np.sum(beyond & ~ahead)) >= CONFIRMING:
            continue
        limit_ns = ends_ns[0] if sign > 0 else -ends_ns[1]
        start_ns = sign * (_latest(few, limit_ns[many], ambiguous) - conflict_ns)
        ends = (start_ns, np.inf) if sign > 0 else (-np.inf, start_ns)
        found += [Adjustment(clock, *ends, 0.0) for clock in points.pair]
    return [
        adjustment
        if np.isfinite(adjustment.from_ns)
        else _with_offset_range(adjustment, points, ambiguous[own])
        for adjustment in found
    ]


def _latest(few: Ints, limits_ns: Floats, ambiguous: Bools) -> float:
    """Return the earliest moment from which an adjustment is possible, according to the few observations.

    Each of them allows it after the last one that it contradicts. The minimum over all counts, because some may be
    outliers, whose contradictions mean nothing.
    """
    is_ambiguous = ambiguous[few]
    if is_ambiguous.any():
        few, limits_ns = few[is_ambiguous], limits_ns[is_ambiguous]
    names, number = np.unique(few, return_inverse=True)
    latest_ns = np.full(len(names), -np.inf)
    np.maximum.at(latest_ns, number, limits_ns)
    return float(latest_ns.min())


def _with_offset_range(adjustment: Adjustment, points: Points, ambiguous: Bools) -> Adjustment:
    """Return a stretch at the beginning with the range of the other clock's offset in it.

    The range holds if the ambiguous observations are correct: each of them bounds one side, and the tightest
    observation of the opposite direction that it does not contradict bounds the other.
    """
    evidence = points.evidence
    delay_ns, ahead = evidence.delay_ns, evidence.source == points.pair[0]
    inside = points.at_ns <= adjustment.to_ns
    least_ns, most_ns = adjustment.ahead_ns
    for place in np.flatnonzero(inside & ambiguous).tolist():
        opposite_ns = delay_ns[inside & (ahead != ahead[place])]
        opposite_ns = opposite_ns[opposite_ns + delay_ns[place] >= 0]
        if len(opposite_ns):
            both_ns = float(delay_ns[place]), float(opposite_ns.min())
            forth_ns, back_ns = both_ns if ahead[place] else both_ns[::-1]
            least_ns, most_ns = min(least_ns, -back_ns), max(most_ns, forth_ns)
    if adjustment.clock == points.pair[0]:
        return replace(adjustment, other=points.pair[1], ahead_ns=(least_ns, most_ns))
    return replace(adjustment, other=points.pair[0], ahead_ns=(-most_ns, -least_ns))
