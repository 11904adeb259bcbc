"""Observations that contradict each other, and which of them are outliers.

Two observations of opposite directions contradict each other if the sum of their delays, and of all drift that is
possible between them, is negative. An observation that contradicts others both before and after it is an outlier. One
that contradicts others on one side only may also be the first to show that a clock was set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stagescope.clocks.evidence import COLLECTIVE
from stagescope.clocks.grid import TOLERANCE_NS

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints

REACH = 24
"""Each observation is compared with this many of the opposite direction before and after it; comparing all would be
quadratic."""

CONFIRMING = 2
"""This many observations on either side have to contradict one before it is an outlier, not a clock adjustment."""


@dataclass(frozen=True)
class Conflicts:
    """Pairs of observations (indices of the earlier and the later) that contradict each other by `conflict_ns`."""

    early: Ints
    late: Ints
    conflict_ns: Floats

    def __len__(self) -> int:
        return len(self.early)

    def without(self, places: Bools) -> Conflicts:
        """Return the conflicts that involve none of these observations."""
        kept = ~(places[self.early] | places[self.late])
        return Conflicts(self.early[kept], self.late[kept], self.conflict_ns[kept])


def moments(evidence: Evidence) -> Floats:
    """Return the moment of each observation: halfway between its two events."""
    return np.asarray((evidence.sent_ns + evidence.received_ns) / 2)


def tight(evidence: Evidence, clocks: int, *, by_channel: bool = False) -> Bools:
    """Return which observations can have a short delay: their receiver waited, or no receiver of the pair did.

    With `by_channel`, messages and collectives of a pair are judged separately.
    """
    is_separate = (evidence.channel == COLLECTIVE) & by_channel
    pair = (evidence.source * clocks + evidence.target) * 2 + is_separate
    waits = np.zeros(2 * clocks * clocks, bool)
    waits[pair[evidence.waited]] = True
    return np.asarray(evidence.waited | ~waits[pair])


def find_conflicts(evidence: Evidence, budget: Floats) -> Conflicts:
    """Return every observation that contradicts one of the `REACH` nearest tight ones of the opposite direction."""
    clocks, count = len(budget), len(evidence)
    at_ns = moments(evidence)
    own, back = (
        evidence.source * clocks + evidence.target,
        evidence.target * clocks + evidence.source,
    )
    others = np.flatnonzero(tight(evidence, clocks))
    others = others[np.lexsort((at_ns[others], own[others]))]
    place, first, last = _places(own[others], at_ns[others], back, at_ns)
    # Drift only adds to the sum of both delays, so most observations contradict none of the nearest ones.
    shortest_ns = _shortest_around(evidence.delay_ns[others])[place]
    asked = np.flatnonzero(evidence.delay_ns + shortest_ns < -TOLERANCE_NS)
    place, first, last = place[asked], first[asked], last[asked]
    one, other, conflict_ns = [], [], []
    # One pass per neighbor over all observations at once, rather than a loop over the observations.
    for offset in range(-REACH, REACH):
        at = place + offset
        inside = np.flatnonzero((at >= first) & (at < last))
        mine, theirs = asked[inside], others[at[inside]]
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


def _shortest_around(delay_ns: Floats) -> Floats:
    """Return the shortest of the `REACH` delays before each place and of as many from it on; one place after the last.

    They may belong to others than the delays that are compared: what is found is no longer than the shortest of those.
    """
    found = np.full(len(delay_ns) + 2 * REACH, np.inf)
    found[REACH : REACH + len(delay_ns)] = delay_ns
    width = 1
    while width < 2 * REACH:  # each is the shortest of `width` from there on
        step = min(width, 2 * REACH - width)
        found = np.minimum(found[:-step], found[step:])
        width += step
    return found


def _places(groups: Ints, sorted_ns: Floats, wanted: Ints, at_ns: Floats) -> tuple[Ints, Ints, Ints]:
    """Return the place of each moment among the sorted moments of its group, and the group's first and last place."""
    first = np.searchsorted(groups, wanted, side="left")
    last = np.searchsorted(groups, wanted, side="right")
    # Group and moment combined into one number, so that one binary search covers all groups.
    start_ns = at_ns.min(initial=0.0)
    span_ns = at_ns.max(initial=0.0) - start_ns + 1.0
    names, number = np.unique(groups, return_inverse=True)
    of_wanted = np.searchsorted(names, wanted)
    place = np.searchsorted(
        number * span_ns + (sorted_ns - start_ns), of_wanted * span_ns + (at_ns - start_ns)
    )
    return np.clip(place, first, last), first, last


def margin_between(evidence: Evidence, mine: Ints, theirs: Ints, budget: Floats) -> Floats:
    """Return the margin of two observations of opposite directions: the sum of delays, plus the possible drift."""
    source, target = evidence.source[mine], evidence.target[mine]
    drift_ns = budget[source] * np.abs(evidence.sent_ns[mine] - evidence.received_ns[theirs])
    drift_ns = drift_ns + budget[target] * np.abs(evidence.received_ns[mine] - evidence.sent_ns[theirs])
    delay_ns = evidence.delay_ns
    return np.asarray(delay_ns[mine] + delay_ns[theirs] + drift_ns)


def find_outliers(conflicts: Conflicts, count: int) -> Bools:
    """Return which of `count` observations are contradicted from before and after, most contradicted first.

    A correct observation is contradicted only by the few outliers around it, an outlier by nearly all correct ones.
    So each round removes the local maxima, which clears most of their neighbors.
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
    """Return which outliers may be correct observations close to an end of the run.

    A clock that is set near an end shows this in a few observations only. Two outliers among them contradict the
    correct ones, and the correct ones contradict all from before. An observation with more evidence against it, or
    with uncontradicted others of its own direction beyond it, remains an outlier.
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
    """Return the largest conflict of each observation; 0 without conflicts."""
    conflict_ns = np.zeros(count)
    np.maximum.at(conflict_ns, conflicts.early, conflicts.conflict_ns)
    np.maximum.at(conflict_ns, conflicts.late, conflicts.conflict_ns)
    return conflict_ns
