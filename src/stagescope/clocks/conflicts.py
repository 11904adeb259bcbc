"""Observations that exclude each other, and which of them are outliers.

Two observations of opposite directions exclude each other if their delays, and all drift that there can be between
them, add up to less than nothing. One that excludes others before it and after it is outliers. One that excludes
others on one side only may as well be the first to see that a clock was set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stagescope.clocks.grid import TOLERANCE_NS

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints

REACH = 24
"""So many observations of the other direction are compared with each, before it and after it."""

CONFIRMING = 2
"""So many observations on either side have to exclude one before it is outliers and no clock step."""


@dataclass(frozen=True)
class Conflicts:
    """Pairs of observations, the earlier and the later one (their places), that exclude each other by `conflict_ns`."""

    early: Ints
    late: Ints
    conflict_ns: Floats

    def __len__(self) -> int:
        return len(self.early)

    def without(self, places: Bools) -> Conflicts:
        """Return the conflicts that none of these observations takes part in."""
        kept = ~(places[self.early] | places[self.late])
        return Conflicts(self.early[kept], self.late[kept], self.conflict_ns[kept])


def moments(evidence: Evidence) -> Floats:
    """Return the moment of each observation: between its two events."""
    return np.asarray((evidence.sent_ns + evidence.received_ns) / 2)


def tight(evidence: Evidence, clocks: int) -> Bools:
    """Return which observations can have a short delay: receivers that waited, or all where none of the pair did."""
    pair = evidence.source * clocks + evidence.target
    waits = np.zeros(clocks * clocks, bool)
    waits[pair[evidence.waited]] = True
    return np.asarray(evidence.waited | ~waits[pair])


def find_conflicts(evidence: Evidence, budget: Floats) -> Conflicts:
    """Return every observation that excludes one of the `REACH` tight ones of the other way nearest to it."""
    clocks, count = len(budget), len(evidence)
    at_ns = moments(evidence)
    own, back = (
        evidence.source * clocks + evidence.target,
        evidence.target * clocks + evidence.source,
    )
    others = np.flatnonzero(tight(evidence, clocks))
    others = others[np.lexsort((at_ns[others], own[others]))]
    place, first, last = _places(own[others], at_ns[others], back, at_ns)
    one, other, conflict_ns = [], [], []
    for offset in range(-REACH, REACH):
        at = place + offset
        mine = np.flatnonzero((at >= first) & (at < last))
        theirs = others[at[mine]]
        margin_ns = margin_between(evidence, mine, theirs, budget)
        found = margin_ns < -TOLERANCE_NS
        one.append(mine[found])
        other.append(theirs[found])
        conflict_ns.append(-margin_ns[found])
    mine, theirs = np.concatenate(one), np.concatenate(other)
    later = at_ns[mine] > at_ns[theirs]
    early, late = np.where(later, theirs, mine), np.where(later, mine, theirs)
    unique = np.unique(early * count + late, return_index=True)[1]
    return Conflicts(early[unique], late[unique], np.concatenate(conflict_ns)[unique])


def _places(groups: Ints, sorted_ns: Floats, wanted: Ints, at_ns: Floats) -> tuple[Ints, Ints, Ints]:
    """Return where each moment belongs among the sorted ones of its group, and the group's first and last place."""
    first = np.searchsorted(groups, wanted, side="left")
    last = np.searchsorted(groups, wanted, side="right")
    # A group and a moment as one number, to search all groups at once.
    start_ns = at_ns.min(initial=0.0)
    span_ns = at_ns.max(initial=0.0) - start_ns + 1.0
    names, number = np.unique(groups, return_inverse=True)
    of_wanted = np.searchsorted(names, wanted)
    place = np.searchsorted(
        number * span_ns + (sorted_ns - start_ns), of_wanted * span_ns + (at_ns - start_ns)
    )
    return np.clip(place, first, last), first, last


def margin_between(evidence: Evidence, mine: Ints, theirs: Ints, budget: Floats) -> Floats:
    """Return what two observations of opposite directions leave: the delays, and the drift that there may be."""
    source, target = evidence.source[mine], evidence.target[mine]
    drift_ns = budget[source] * np.abs(evidence.sent_ns[mine] - evidence.received_ns[theirs])
    drift_ns = drift_ns + budget[target] * np.abs(evidence.received_ns[mine] - evidence.sent_ns[theirs])
    delay_ns = evidence.delay_ns
    return np.asarray(delay_ns[mine] + delay_ns[theirs] + drift_ns)


def find_outliers(conflicts: Conflicts, count: int) -> Bools:
    """Return which of `count` observations others before and after exclude: always the most excluded one first.

    A right one is excluded by the few outliers ones around it only, a outliers one by nearly all right ones.
    """
    outliers = np.zeros(count, bool)
    while len(conflicts):
        before = np.bincount(conflicts.late, minlength=count)
        after = np.bincount(conflicts.early, minlength=count)
        score = np.minimum(before, after)
        strongest = np.zeros(count, np.int64)
        np.maximum.at(strongest, conflicts.early, score[conflicts.late])
        np.maximum.at(strongest, conflicts.late, score[conflicts.early])
        found = (score >= CONFIRMING) & (score >= strongest)
        if not found.any():
            break
        outliers |= found
        conflicts = conflicts.without(found)
    return outliers


def unproven_outliers(evidence: Evidence, conflicts: Conflicts, outliers: Bools, clocks: int) -> Bools:
    """Return which of the outliers ones may as well be right, and those few outliers that exclude them on one side.

    A clock that is set near an end shows itself to a few observations only. Two of them that are outliers exclude those
    that are right, and these exclude all from before. With more witnesses against it, or with others of its own
    direction beyond it that nothing excludes, an observation is outliers.
    """
    unsure = np.zeros(len(evidence), bool)
    at_ns, way = moments(evidence), evidence.source * clocks + evidence.target
    kept = np.flatnonzero(~outliers & tight(evidence, clocks))
    kept = kept[np.lexsort((at_ns[kept], way[kept]))]
    places = np.flatnonzero(outliers)
    place, first, last = _places(way[kept], at_ns[kept], way[places], at_ns[places])
    sides = (
        (conflicts.early, conflicts.late, last - place),
        (conflicts.late, conflicts.early, place - first),
    )
    for own, others, beyond in sides:
        against = np.bincount(own[~outliers[others]], minlength=len(evidence))[places]
        unsure[places] |= (against <= CONFIRMING) & (beyond < CONFIRMING)
    return unsure


def exclusion_ns(conflicts: Conflicts, count: int) -> Floats:
    """Return by how much each observation is excluded at most; 0 where nothing does."""
    conflict_ns = np.zeros(count)
    np.maximum.at(conflict_ns, conflicts.early, conflicts.conflict_ns)
    np.maximum.at(conflict_ns, conflicts.late, conflicts.conflict_ns)
    return conflict_ns
