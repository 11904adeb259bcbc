"""Clock adjustments: when observations before a moment contradict those after it, and which clock was set.

Every conflict of two observations is an interval in which one of their clocks was set. The moments that lie in the
most intervals are the adjustments, and each is located where these intervals overlap. Which of the two clocks was set
follows from the other pairs of both: a pair that is consistent without an adjustment clears its clock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse import coo_array  # type: ignore[import-untyped]
from scipy.sparse.csgraph import maximum_bipartite_matching  # type: ignore[import-untyped]

from stagescope.clocks.ambiguous_edges import Ambiguous, Group, Points, conflict_cover, unbounded_ends
from stagescope.clocks.conflicts import CONFIRMING, REACH, moments, tight
from stagescope.clocks.grid import Adjustment

if TYPE_CHECKING:
    from stagescope.clocks.conflicts import Conflicts
    from stagescope.clocks.evidence import Evidence, Floats, Ints


CLEAR = 0.75
"""An adjustment is this much larger than a pair's margin if observations next to the conflicting ones confirm it."""

AGREEMENT = 0.75
"""The sizes that two pairs show for one adjustment differ by no more than this fraction: each is known to the pair's
margin only."""

MOSTLY = 0.75
"""With outliers, an adjustment may be wherever this fraction of its conflicts overlap."""

MANY = 4
"""This many independent conflicts are not all outliers in a run without any other outlier."""


class PairShift(NamedTuple):
    """An apparent shift of a pair of clocks: the second went ahead by `size_ns` between two moments.

    `size_ns` is 0 if unknown. `most_ns` is the largest possible size in either direction, according to its conflicts.
    """

    one: int
    other: int
    from_ns: float
    to_ns: float
    size_ns: float
    most_ns: float = 0.0

    @property
    def size_error_ns(self) -> float:
        """How far the size may be wrong."""
        return max(0.0, self.most_ns - abs(self.size_ns))


def pair_shifts(
    evidence: Evidence, conflicts: Conflicts, budget: Floats, least: int
) -> tuple[list[PairShift], Ambiguous]:
    """Return the shifts that at least `least` observations on either side show, and the ambiguous rest.

    The shifts are in order of time. That no observation was found to be an outlier does not prove that none is, so
    the other observations of the pair must not contradict a shift.
    """
    clocks = len(budget)
    # Which of the two events of an observation belongs to the clock that was set is not known yet.
    first_ns, at_ns, last_ns = np.sort([evidence.sent_ns, moments(evidence), evidence.received_ns], axis=0)
    key = np.minimum(evidence.source, evidence.target) * clocks + np.maximum(evidence.source, evidence.target)
    usable = tight(evidence, clocks)
    shifts: list[PairShift] = []
    ambiguous: list[Ints] = []
    unbounded: list[Adjustment] = []
    for pair in np.unique(key[conflicts.early]).tolist():
        own = np.flatnonzero(usable & (key == pair))
        points = Points(evidence.where(own), at_ns[own], (pair // clocks, pair % clocks))
        drift = float(budget[points.pair[0]] + budget[points.pair[1]])
        inside = key[conflicts.early] == pair
        excluded = np.zeros(len(evidence), bool)
        own_conflicts = Group(conflicts.early[inside], conflicts.late[inside], conflicts.conflict_ns[inside])
        # Largest group first: its observations explain most conflicts, and are then not used again in smaller
        # groups.
        groups = _group_by_moment(own_conflicts, at_ns)
        for group in sorted(groups, key=lambda each: -len(each.early)):
            remaining = ~(excluded[group.early] | excluded[group.late])
            if not remaining.any():
                continue
            rest = group.where(remaining)
            if _is_adjustment(points, rest, at_ns, own, (drift, least)):
                ends_ns = _place(at_ns[rest.early], at_ns[rest.late])
                shift = _shift(points, ends_ns, drift, float(rest.conflict_ns.max()))
                from_ns, to_ns = _place(first_ns[rest.early], last_ns[rest.late])
                shifts.append(shift._replace(from_ns=from_ns, to_ns=to_ns))
            else:
                excluded[conflict_cover(rest)] = True
                unbounded += unbounded_ends(points, rest, np.stack([first_ns, last_ns]), own, excluded)
        ambiguous.append(np.flatnonzero(excluded))
    places = np.unique(np.concatenate(ambiguous)) if ambiguous else np.zeros(0, np.int64)
    return _merged(sorted(shifts, key=lambda shift: shift.from_ns)), Ambiguous(places, tuple(unbounded))


def _independent(group: Group) -> int:
    """Return how many outliers would be needed to explain the conflicts: the size of a maximum matching."""
    early, row = np.unique(group.early, return_inverse=True)
    late, column = np.unique(group.late, return_inverse=True)
    graph = coo_array((np.ones(len(row)), (row, column)), shape=(len(early), len(late))).tocsr()
    return int(np.sum(maximum_bipartite_matching(graph, perm_type="column") >= 0))


def _is_adjustment(
    points: Points, group: Group, at_ns: Floats, own: Ints, constraints: tuple[float, int]
) -> bool:
    """Return whether conflicts show an adjustment: enough of them, and offsets that clearly differ before and after.

    In a run without outliers, many independent conflicts suffice. If the independent ones are too few, the other
    observations have to show the same without them.
    """
    drift, least = constraints
    sides = np.unique(group.early), np.unique(group.late)
    sides_ns = at_ns[sides[0]], at_ns[sides[1]]
    independent = _independent(group)
    if least <= CONFIRMING and independent >= MANY:
        return True
    if independent >= least:
        return _offset_changes(points, sides_ns, drift)
    if max(map(len, sides)) < least:
        return False
    few = min(sides, key=len)
    asked = ~np.isin(own, few if len(sides[0]) != len(sides[1]) else np.concatenate(sides))
    return _offset_changes(
        Points(points.evidence.where(asked), points.at_ns[asked], points.pair), sides_ns, drift
    )


def _offset_changes(points: Points, sides_ns: tuple[Floats, Floats], drift: float) -> bool:
    """Return whether the offset of the clocks clearly differs before and after a moment."""
    before_ns, after_ns = _offset_ranges(points, (float(sides_ns[0].max()), float(sides_ns[1].min())), drift)
    if not np.isfinite([*before_ns, *after_ns]).all():
        return False
    size_ns = abs(np.mean(after_ns) - np.mean(before_ns))
    margin_ns = max(after_ns[1] - after_ns[0], before_ns[1] - before_ns[0])
    return bool(size_ns > CLEAR * max(margin_ns, 0.0))


def _group_by_moment(conflicts: Group, at_ns: Floats) -> list[Group]:
    """Return groups of conflicts that share a moment, largest first (interval stabbing).

    This gives an outlier near an adjustment a group of its own, and keeps the conflicts of the adjustment together.
    """
    groups = []
    remaining = conflicts
    while len(remaining.early):
        # Sort ends before starts: intervals that only touch share no moment.
        ends_ns = np.concatenate([at_ns[remaining.late], at_ns[remaining.early]])
        order = np.argsort(ends_ns, kind="stable")
        open_now = np.cumsum(np.where(order < len(remaining.late), -1, 1))
        moment_ns = ends_ns[order[np.argmax(open_now)]]
        stabbed = (at_ns[remaining.early] <= moment_ns) & (at_ns[remaining.late] > moment_ns)
        groups.append(remaining.where(stabbed))
        remaining = remaining.where(~stabbed)
    return groups


def _place(early_ns: Floats, late_ns: Floats) -> tuple[float, float]:
    """Return the moments between which an adjustment is located: where nearly as many conflicts overlap as anywhere.

    All of them overlap only if none involves an outlier.
    """
    ends_ns = np.concatenate([early_ns, late_ns])
    order = np.argsort(ends_ns, kind="stable")
    open_now = np.cumsum(np.where(order < len(early_ns), 1, -1))
    most = np.flatnonzero(open_now >= MOSTLY * open_now.max())
    return float(ends_ns[order[most[0]]]), float(ends_ns[order[most[-1] + 1]])


def _shift(points: Points, ends_ns: tuple[float, float], drift: float, conflict_ns: float) -> PairShift:
    """Return the shift of a pair of clocks between two moments, with its size where both sides are bounded."""
    before_ns, after_ns = _offset_ranges(points, ends_ns, drift)
    known = np.isfinite([*before_ns, *after_ns]).all()
    if not known:
        return PairShift(*points.pair, *ends_ns, 0.0, conflict_ns)
    most_ns = max(abs(after_ns[1] - before_ns[0]), abs(after_ns[0] - before_ns[1]))
    return PairShift(*points.pair, *ends_ns, float(np.mean(after_ns) - np.mean(before_ns)), most_ns)


def _merged(shifts: list[PairShift]) -> list[PairShift]:
    """Return the shifts in order of time, with overlapping ones of the same pair merged into one."""
    joined: list[PairShift] = []
    for shift in shifts:
        same = [each for each in joined if each[:2] == shift[:2] and shift.from_ns < each.to_ns]
        if not same:
            joined.append(shift)
            continue
        last = same[-1]
        ends_ns = min(last.from_ns, shift.from_ns), max(last.to_ns, shift.to_ns)
        size_ns = (last.size_ns + shift.size_ns) / 2
        most_ns = max(last.most_ns, shift.most_ns)
        joined[joined.index(last)] = PairShift(shift.one, shift.other, *ends_ns, size_ns, most_ns)
    return joined


def _offset_ranges(
    points: Points, ends_ns: tuple[float, float], drift: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the least and greatest offset of the second clock before and after an adjustment."""
    ahead = points.evidence.source == points.pair[0]
    reference_limits = []
    for moment_ns, sign in ((ends_ns[0], -1), (ends_ns[1], 1)):
        distance_ns = sign * (points.at_ns - moment_ns)
        limits = []
        for way in (~ahead, ahead):
            own = np.flatnonzero(way & (distance_ns >= 0))
            near = own[np.argsort(distance_ns[own])][:REACH]
            limits.append(np.sort(points.evidence.delay_ns[near] + drift * distance_ns[near]))
        back_ns, forth_ns = _possible(limits[0], limits[1])
        reference_limits.append((-back_ns, forth_ns))
    return reference_limits[0], reference_limits[1]


def _possible(back_ns: Floats, forth_ns: Floats) -> tuple[float, float]:
    """Return the tightest of both directions (sorted) that do not contradict each other; infinite if there are none.

    Of two contradicting ones, the one farther from the next of its direction is taken for an outlier.
    """
    back_ns, forth_ns = np.append(back_ns, np.inf), np.append(forth_ns, np.inf)
    while back_ns[0] + forth_ns[0] < 0:
        if back_ns[1] - back_ns[0] > forth_ns[1] - forth_ns[0]:
            back_ns = back_ns[1:]
        else:
            forth_ns = forth_ns[1:]
    return float(back_ns[0]), float(forth_ns[0])


class AttributedAdjustment(NamedTuple):
    """An adjustment for each clock that may have been set, the most likely first.

    There are several if the pairs cannot decide.
    """

    adjustments: tuple[Adjustment, ...]


def attribute_adjustments(
    shifts: list[PairShift], evidence: Evidence, budget: Floats, reference: Ints
) -> list[AttributedAdjustment]:
    """Return the adjustments, each attributed to the clock for which most of its pairs show it.

    A clock is cleared if one of its other pairs leaves no margin for the adjustment. Between two equally likely
    clocks, the reference comes last, because the others are measured against it. If only these two exchange messages,
    `may_be_reference` states that the reference may have been set instead.
    """
    attributed = []
    remaining = list(shifts)
    while remaining:
        overlapping = _overlapping(remaining)
        clocks = sorted({clock for shift in overlapping for clock in (shift.one, shift.other)})
        shown = {clock: _agreeing(clock, overlapping) for clock in clocks}
        is_possible = {c: _is_possible(c, shown[c], evidence, budget) for c in clocks}
        order = sorted(clocks, key=lambda c: (-is_possible[c], -len(shown[c]), c in reference, c))
        best = order[0]
        partners = {clock for shift in shown[best] for clock in (shift.one, shift.other)} - {best}
        candidates = [
            c
            for c in order
            if c in partners and (is_possible[c], len(shown[c])) == (is_possible[best], len(shown[best]))
        ]
        ambiguous = bool(
            is_possible[best] and _linked(best, evidence) <= 1 and set(candidates) & set(reference.tolist())
        )
        if ambiguous:
            # No third clock can decide: the reference is taken to be unchanged, and the bounds hold either way.
            candidates = [c for c in candidates if c not in reference]
        first = replace(_adjustment(best, shown[best]), may_be_reference=ambiguous)
        attributed.append(AttributedAdjustment((first, *(_adjustment(c, shown[c]) for c in candidates))))
        taken = {shift for c in (best, *candidates) for shift in shown[c]}
        remaining = [shift for shift in remaining if shift not in taken]
    return attributed


def _agreeing(clock: int, shifts: list[PairShift]) -> list[PairShift]:
    """Return the shifts of a clock's pairs that can be one adjustment: same direction as the largest, not much smaller.

    Without that, a neighbor that was set at about the same time would be mixed in.
    """
    own = [shift for shift in shifts if clock in (shift.one, shift.other)]
    sizes_ns = np.array([_size_of(clock, shift) for shift in own])
    size_errors_ns = np.array([shift.size_error_ns for shift in own])
    largest = np.argmax(np.abs(sizes_ns))
    allowed_ns = np.maximum(AGREEMENT * abs(sizes_ns[largest]), size_errors_ns + size_errors_ns[largest])
    agree = (np.abs(sizes_ns - sizes_ns[largest]) <= allowed_ns) | (sizes_ns == 0)
    return [shift for shift, agrees in zip(own, agree.tolist(), strict=True) if agrees]


def _size_of(clock: int, shift: PairShift) -> float:
    """Return by how much a clock was set if it caused a pair's shift."""
    return shift.size_ns if shift.other == clock else -shift.size_ns


def _linked(clock: int, evidence: Evidence) -> int:
    """Return with how many clocks one has observations."""
    own = (evidence.source == clock) | (evidence.target == clock)
    return len(np.unique(np.concatenate([evidence.source[own], evidence.target[own]]))) - 1


def _is_possible(clock: int, shown: list[PairShift], evidence: Evidence, budget: Floats) -> bool:
    """Return whether all pairs of a clock leave a margin for the adjustment, which some of them show."""
    adjustment = _adjustment(clock, shown)
    known = {shift.one if shift.other == clock else shift.other for shift in shown}
    own = (evidence.source == clock) | (evidence.target == clock)
    own &= tight(evidence, len(budget))
    mine = evidence.where(own)
    partner = np.where(mine.source == clock, mine.target, mine.source)
    for other in np.setdiff1d(np.unique(partner), list(known)).tolist():
        pair = mine.where(partner == other)
        points = Points(pair, moments(pair), (other, clock))
        drift = float(budget[clock] + budget[other])
        before_ns, after_ns = _offset_ranges(points, (adjustment.from_ns, adjustment.to_ns), drift)
        # Half of the size may be an estimation error.
        least_ns, most_ns = after_ns[0] - before_ns[1], after_ns[1] - before_ns[0]
        half_ns = abs(adjustment.size_ns) / 2
        if adjustment.size_ns - half_ns > most_ns or adjustment.size_ns + half_ns < least_ns:
            return False
    return True


def _overlapping(shifts: list[PairShift]) -> list[PairShift]:
    """Return the first shift, and of every other pair the first that may have happened at the same moment."""
    chosen: list[PairShift] = []
    for shift in shifts:
        seen = any((shift.one, shift.other) == (s.one, s.other) for s in chosen)
        if not seen and shift.from_ns <= shifts[0].to_ns and shift.to_ns >= shifts[0].from_ns:
            chosen.append(shift)
    return chosen


def _adjustment(clock: int, shifts: list[PairShift]) -> Adjustment:
    """Return the adjustment of one clock: where all its pairs agree, otherwise anywhere that they show."""
    # Pairs that know the size much less precisely than the best one are ignored.
    sure_ns = 2 * min(shift.size_error_ns for shift in shifts)
    size_ns = float(np.median([_size_of(clock, shift) for shift in shifts if shift.size_error_ns <= sure_ns]))
    first, last = max(s.from_ns for s in shifts), min(s.to_ns for s in shifts)
    if first > last:
        first, last = min(s.from_ns for s in shifts), max(s.to_ns for s in shifts)
    # A clock that is set back shows the same times twice; those may belong to either side.
    most_ns = max(abs(size_ns), *(shift.most_ns for shift in shifts)) + 1
    return Adjustment(clock, first - most_ns, last + most_ns, size_ns)
