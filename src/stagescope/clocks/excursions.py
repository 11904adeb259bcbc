"""Clocks that were set and soon set back: a few outliers in a row that one clock alone explains.

Observations from in between contradict those before and those after, as outliers do. Nothing distinguishes such an
excursion from outliers that agree by chance, so the clock has no bounds in the stretch in which it may have been.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stagescope.clocks.conflicts import REACH, tight
from stagescope.clocks.grid import Adjustment

if TYPE_CHECKING:
    from stagescope.clocks.conflicts import Conflicts
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints

FEW = 2
"""This many outliers in a whole run may be an excursion each, even if they are alone."""

MOST_OF = 0.75
"""A clock is ruled out if another one explains its outliers and this much more: single ones may agree by chance."""


@dataclass(frozen=True)
class _Suspect:
    """An outlier, as an excursion of one of its clocks: ahead if that clock is the source, else behind.

    `at_ns` is its time on the other clock. The excursion was after `from_ns` and before `to_ns`, by at most `size_ns`.
    """

    place: int
    at_ns: float
    from_ns: float
    to_ns: float
    size_ns: float


def excursions(
    evidence: Evidence, conflicts: Conflicts, outliers: Bools, clocks: int
) -> tuple[Adjustment, ...]:
    """Return the stretches in which a clock may have been set and set back, as adjustments of unknown size.

    An excursion makes all messages of one direction early. Outliers of one clock are of one excursion if no observation
    between them rules that out: a correct one of the same direction of the pair, or one of the opposite direction that
    contradicts them. Of two clocks, one that explains clearly less than the other is ruled out.
    """
    places = np.flatnonzero(outliers)
    if not len(places):
        return ()
    suspects = _suspects(evidence, conflicts, outliers, clocks)
    groups = [
        (clock, sign, group)
        for (clock, sign), own in suspects.items()
        for group in _groups(own)
        if len(group) > 1 or len(places) <= FEW
    ]
    members = [frozenset(each.place for each in group) for _, _, group in groups]
    found = []
    for (clock, sign, group), own in zip(groups, members, strict=True):
        if any(own < other and len(own) <= MOST_OF * len(other) for other in members):
            continue
        from_ns, to_ns = min(each.from_ns for each in group), max(each.to_ns for each in group)
        # While the clock is ahead its timestamps are later by as much, and while it is behind, earlier.
        size_ns = max(each.size_ns for each in group)
        found.append(Adjustment(clock, from_ns - size_ns * (sign < 0), to_ns + size_ns * (sign > 0), 0.0))
    return tuple(found)


def _suspects(
    evidence: Evidence, conflicts: Conflicts, outliers: Bools, clocks: int
) -> dict[tuple[int, int], list[_Suspect]]:
    """Return the outliers by the clock and the sign of the excursion that would explain them."""
    way = evidence.source * clocks + evidence.target
    kept = np.flatnonzero(~outliers & tight(evidence, clocks))
    opposing = _opposing(conflicts, outliers)
    found: dict[tuple[int, int], list[_Suspect]] = {}
    for number in np.unique(way[outliers]).tolist():
        source, target = divmod(number, clocks)
        same = kept[way[kept] == number]
        for clock, sign, times_ns in (
            (source, 1, (evidence.received_ns, evidence.sent_ns)),
            (target, -1, (evidence.sent_ns, evidence.received_ns)),
        ):
            own_ns, back_ns = times_ns
            ordered = same[np.argsort(own_ns[same], kind="stable")]
            for place in np.flatnonzero(outliers & (way == number)).tolist():
                against = opposing.get(place, np.zeros(0, np.int64))
                at_ns = float(own_ns[place])
                middle = int(np.searchsorted(own_ns[ordered], at_ns))
                near = ordered[max(0, middle - REACH) : middle + REACH]
                places = np.concatenate([near, against])
                moments_ns = np.concatenate([own_ns[near], back_ns[against]])
                delays_ns = evidence.delay_ns[near]
                size_ns = float((delays_ns - evidence.delay_ns[place]).max(initial=0.0))
                from_ns, to_ns = _between(evidence, places, moments_ns, at_ns)
                found.setdefault((clock, sign), []).append(_Suspect(place, at_ns, from_ns, to_ns, size_ns))
    return found


def _opposing(conflicts: Conflicts, outliers: Bools) -> dict[int, Ints]:
    """Return the correct observations that each outlier contradicts."""
    own = np.concatenate([conflicts.early, conflicts.late])
    others = np.concatenate([conflicts.late, conflicts.early])
    chosen = outliers[own] & ~outliers[others]
    own, others = own[chosen], others[chosen]
    order = np.argsort(own, kind="stable")
    places, first = np.unique(own[order], return_index=True)
    parts = np.split(others[order], first[1:]) if len(first) else []
    return dict(zip(places.tolist(), parts, strict=True))


def _between(evidence: Evidence, places: Ints, moments_ns: Floats, at_ns: float) -> tuple[float, float]:
    """Return the moments of these observations between which nothing rules an excursion at `at_ns` out."""
    before, after = places[moments_ns <= at_ns], places[moments_ns > at_ns]
    begins_ns = np.minimum(evidence.sent_ns[before], evidence.received_ns[before])
    ends_ns = np.maximum(evidence.sent_ns[after], evidence.received_ns[after])
    return float(begins_ns.max(initial=-np.inf)), float(ends_ns.min(initial=np.inf))


def _groups(suspects: list[_Suspect]) -> list[list[_Suspect]]:
    """Return the outliers of one clock and sign in groups of which each may be one excursion."""
    groups: list[list[_Suspect]] = []
    for each in sorted(suspects, key=lambda suspect: suspect.at_ns):
        last = groups[-1][-1] if groups else None
        if last is not None and last.to_ns >= each.at_ns and each.from_ns <= last.at_ns:
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups
