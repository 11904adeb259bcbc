"""What may be false and may be the first, or the last, of a clock step: too few observations to tell which.

Where they lie at an end of the run, nothing says which it was: from there to the end is a stretch without bounds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.clocks.conflicts import CONFIRMING
from stagescope.clocks.frame import Cut

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints


class Doubtful(NamedTuple):
    """Observations (places) that exclude others on one side, too few for a step; `blind` where they might be one."""

    places: Ints
    blind: tuple[Cut, ...]


class Points(NamedTuple):
    """The observations of one pair of clocks, and the moment of each."""

    evidence: Evidence
    at_ns: Floats
    pair: tuple[int, int]


class Group(NamedTuple):
    """Conflicts that have a moment in common: the earlier and the later observation of each, and by how much."""

    early: Ints
    late: Ints
    by_ns: Floats

    def where(self, chosen: Bools | Ints) -> Group:
        """Return some of the conflicts."""
        return Group(self.early[chosen], self.late[chosen], self.by_ns[chosen])


def cover(group: Group) -> Ints:
    """Return observations without which no conflict remains: those with the most, and both of the last ones."""
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


def stretches(points: Points, group: Group, ends_ns: Floats, own: Ints, doubted: Bools) -> list[Cut]:
    """Return the ends of the run in which a clock may have been set, with too little after (or before) to tell.

    `points` are the observations with the places `own`; `ends_ns` are the earlier and the later event of every
    observation; `doubted` are those that are left out. Where more of either direction was observed beyond the
    witnesses, and does not exclude what they do, they are false. Else they may as well be all that saw a step: as
    late, or as early, as the last of them allows, and as much earlier, or later, as it may have been a step back,
    for so long a clock shows times twice.
    """
    by_ns = float(group.by_ns.max())
    found = []
    for witnesses, others, sign in ((group.late, group.early, 1), (group.early, group.late, -1)):
        if len(np.unique(witnesses)) > len(np.unique(others)):
            continue
        at_ns = sign * ends_ns.mean(axis=0)
        beyond = sign * points.at_ns > at_ns[witnesses].max()
        ahead = points.evidence.source == points.pair[0]
        if min(np.sum(beyond & ahead), np.sum(beyond & ~ahead)) >= CONFIRMING:
            continue
        limit_ns = ends_ns[0] if sign > 0 else -ends_ns[1]
        start_ns = sign * (_latest(witnesses, limit_ns[others], doubted) - by_ns)
        ends = (start_ns, np.inf) if sign > 0 else (-np.inf, start_ns)
        found += [Cut(clock, *ends, 0.0) for clock in points.pair]
    return [cut if np.isfinite(cut.from_ns) else _read(cut, points, doubted[own]) for cut in found]


def _latest(witnesses: Ints, limits_ns: Floats, doubted: Bools) -> float:
    """Return since when a step may have been: each of the witnesses says since the last one that it excludes.

    Some may be false, and exclude others for no step: the earliest of what they say.
    """
    of_doubt = doubted[witnesses]
    if of_doubt.any():
        witnesses, limits_ns = witnesses[of_doubt], limits_ns[of_doubt]
    names, number = np.unique(witnesses, return_inverse=True)
    latest_ns = np.full(len(names), -np.inf)
    np.maximum.at(latest_ns, number, limits_ns)
    return float(latest_ns.min())


def _read(cut: Cut, points: Points, doubted: Bools) -> Cut:
    """Return a stretch at the beginning with how far the other clock was ahead in it, if the doubted are right.

    Each of them bounds one side, the tightest of the other way that it does not exclude bounds the other side.
    """
    evidence = points.evidence
    delay_ns, ahead = evidence.delay_ns, evidence.source == points.pair[0]
    inside = points.at_ns <= cut.to_ns
    least_ns, most_ns = cut.ahead_ns
    for place in np.flatnonzero(inside & doubted).tolist():
        opposite_ns = delay_ns[inside & (ahead != ahead[place])]
        opposite_ns = opposite_ns[opposite_ns + delay_ns[place] >= 0]
        if len(opposite_ns):
            both_ns = float(delay_ns[place]), float(opposite_ns.min())
            forth_ns, back_ns = both_ns if ahead[place] else both_ns[::-1]
            least_ns, most_ns = min(least_ns, -back_ns), max(most_ns, forth_ns)
    if cut.clock == points.pair[0]:
        return replace(cut, other=points.pair[1], ahead_ns=(least_ns, most_ns))
    return replace(cut, other=points.pair[0], ahead_ns=(-most_ns, -least_ns))
