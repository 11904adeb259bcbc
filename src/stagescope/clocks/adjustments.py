"""Clock steps: where what was observed before a moment excludes what was observed after it, and which clock was set.

Every conflict of two observations is an interval in which one of their clocks was set. The moments that stab most
intervals are the steps, and each lies where the intervals that it stabs overlap. Which clock it was, the other pairs
of both tell: those that leave no room for such a step clear a clock of it.
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
"""Steps are this much larger than the room that a pair leaves, if observations beside the witnesses show them."""

AGREEMENT = 0.75
"""The sizes that two pairs see of one step differ by no more than this part of it: each is known to the pair's room."""

MOSTLY = 0.75
"""As timestamps may be false, a step may lie wherever this part of its conflicts overlaps."""

MANY = 4
"""So many observations that witness the same step are not all false where no other is."""


class PairAdjustment(NamedTuple):
    """A step that a pair of clocks shows: the second went ahead by `size_ns` between two moments.

    `size_ns` is 0 where nothing tells it; `most_ns` is how large it may be, either way, as far as its conflicts tell.
    """

    one: int
    other: int
    from_ns: float
    to_ns: float
    size_ns: float
    most_ns: float = 0.0

    @property
    def size_error_ns(self) -> float:
        """By how much the size may be wrong."""
        return max(0.0, self.most_ns - abs(self.size_ns))


def pair_adjustments(
    evidence: Evidence, conflicts: Conflicts, budget: Floats, least: int
) -> tuple[list[PairAdjustment], Ambiguous]:
    """Return the steps that `least` observations on either side witness, in order of time, and the rest.

    That no observation was proved false does not tell that none is: the others must not deny a step.
    """
    clocks = len(budget)
    # Of the two events of an observation nobody knows yet which is of the clock that was set.
    first_ns, at_ns, last_ns = np.sort([evidence.sent_ns, moments(evidence), evidence.received_ns], axis=0)
    key = np.minimum(evidence.source, evidence.target) * clocks + np.maximum(evidence.source, evidence.target)
    usable = tight(evidence, clocks)
    steps: list[PairAdjustment] = []
    ambiguous: list[Ints] = []
    unbounded: list[Adjustment] = []
    for pair in np.unique(key[conflicts.early]).tolist():
        own = np.flatnonzero(usable & (key == pair))
        points = Points(evidence.where(own), at_ns[own], (pair // clocks, pair % clocks))
        drift = float(budget[points.pair[0]] + budget[points.pair[1]])
        inside = key[conflicts.early] == pair
        excluded = np.zeros(len(evidence), bool)
        own_conflicts = Group(conflicts.early[inside], conflicts.late[inside], conflicts.conflict_ns[inside])
        groups = _group_by_moment(own_conflicts, at_ns)
        for group in sorted(groups, key=lambda each: -len(each.early)):
            remaining = ~(excluded[group.early] | excluded[group.late])
            if not remaining.any():
                continue
            rest = group.where(remaining)
            if _is_step(points, rest, at_ns, own, (drift, least)):
                ends_ns = _place(at_ns[rest.early], at_ns[rest.late])
                step = _step(points, ends_ns, drift, float(rest.conflict_ns.max()))
                from_ns, to_ns = _place(first_ns[rest.early], last_ns[rest.late])
                steps.append(step._replace(from_ns=from_ns, to_ns=to_ns))
            else:
                excluded[conflict_cover(rest)] = True
                unbounded += unbounded_ends(points, rest, np.stack([first_ns, last_ns]), own, excluded)
        ambiguous.append(np.flatnonzero(excluded))
    places = np.unique(np.concatenate(ambiguous)) if ambiguous else np.zeros(0, np.int64)
    return _merged(sorted(steps, key=lambda step: step.from_ns)), Ambiguous(places, tuple(unbounded))


def _independent(group: Group) -> int:
    """Return how many false observations it would take: the most conflicts without one in common."""
    early, row = np.unique(group.early, return_inverse=True)
    late, column = np.unique(group.late, return_inverse=True)
    graph = coo_array((np.ones(len(row)), (row, column)), shape=(len(early), len(late))).tocsr()
    return int(np.sum(maximum_bipartite_matching(graph, perm_type="column") >= 0))


def _is_step(points: Points, group: Group, at_ns: Floats, own: Ints, constraints: tuple[float, int]) -> bool:
    """Tell whether conflicts are of a step: enough witnesses, and clocks that stay apart by what they say.

    Where no stamp is false, many witnesses do alone. If those that are independent of each other are too few, the
    others have to say the same without them.
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
    """Tell whether the clocks are clearly farther apart, or nearer, after a moment than before it."""
    before_ns, after_ns = _offset_ranges(points, (float(sides_ns[0].max()), float(sides_ns[1].min())), drift)
    if not np.isfinite([*before_ns, *after_ns]).all():
        return False
    size_ns = abs(np.mean(after_ns) - np.mean(before_ns))
    margin_ns = max(after_ns[1] - after_ns[0], before_ns[1] - before_ns[0])
    return bool(size_ns > CLEAR * max(margin_ns, 0.0))


def _group_by_moment(conflicts: Group, at_ns: Floats) -> list[Group]:
    """Return groups of conflicts that have a moment in common: each time as many as possible of those that are remaining.

    So a false observation beside a step has a group of its own, and what the step excludes stays overlapping.
    """
    groups = []
    remaining = conflicts
    while len(remaining.early):
        # At the same moment one ends before another begins: they have none in common.
        ends_ns = np.concatenate([at_ns[remaining.late], at_ns[remaining.early]])
        order = np.argsort(ends_ns, kind="stable")
        open_now = np.cumsum(np.where(order < len(remaining.late), -1, 1))
        moment_ns = ends_ns[order[np.argmax(open_now)]]
        stabbed = (at_ns[remaining.early] <= moment_ns) & (at_ns[remaining.late] > moment_ns)
        groups.append(remaining.where(stabbed))
        remaining = remaining.where(~stabbed)
    return groups


def _place(early_ns: Floats, late_ns: Floats) -> tuple[float, float]:
    """Return the moments between which a step lies: where nearly as many conflicts overlap as do at most.

    All of them do only if none is of a false observation.
    """
    ends_ns = np.concatenate([early_ns, late_ns])
    order = np.argsort(ends_ns, kind="stable")
    open_now = np.cumsum(np.where(order < len(early_ns), 1, -1))
    most = np.flatnonzero(open_now >= MOSTLY * open_now.max())
    return float(ends_ns[order[most[0]]]), float(ends_ns[order[most[-1] + 1]])


def _step(points: Points, ends_ns: tuple[float, float], drift: float, conflict_ns: float) -> PairAdjustment:
    """Return the step of a pair of clocks between two moments, with its size where both sides tell."""
    before_ns, after_ns = _offset_ranges(points, ends_ns, drift)
    known = np.isfinite([*before_ns, *after_ns]).all()
    if not known:
        return PairAdjustment(*points.pair, *ends_ns, 0.0, conflict_ns)
    most_ns = max(abs(after_ns[1] - before_ns[0]), abs(after_ns[0] - before_ns[1]))
    return PairAdjustment(*points.pair, *ends_ns, float(np.mean(after_ns) - np.mean(before_ns)), most_ns)


def _merged(steps: list[PairAdjustment]) -> list[PairAdjustment]:
    """Return the steps, in order of time, with those of one pair that may be the same as one."""
    joined: list[PairAdjustment] = []
    for step in steps:
        same = [each for each in joined if each[:2] == step[:2] and step.from_ns < each.to_ns]
        if not same:
            joined.append(step)
            continue
        last = same[-1]
        ends_ns = min(last.from_ns, step.from_ns), max(last.to_ns, step.to_ns)
        size_ns = (last.size_ns + step.size_ns) / 2
        most_ns = max(last.most_ns, step.most_ns)
        joined[joined.index(last)] = PairAdjustment(step.one, step.other, *ends_ns, size_ns, most_ns)
    return joined


def _offset_ranges(
    points: Points, ends_ns: tuple[float, float], drift: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return how far the second clock can be ahead, least and most, before and after a step."""
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
    """Return the tightest of both directions (sorted) that do not exclude each other; infinite where there is none.

    Of two that do, the one that is farther from the next of its direction is false.
    """
    back_ns, forth_ns = np.append(back_ns, np.inf), np.append(forth_ns, np.inf)
    while back_ns[0] + forth_ns[0] < 0:
        if back_ns[1] - back_ns[0] > forth_ns[1] - forth_ns[0]:
            back_ns = back_ns[1:]
        else:
            forth_ns = forth_ns[1:]
    return float(back_ns[0]), float(forth_ns[0])


class AttributedAdjustment(NamedTuple):
    """A step and the clocks that are adjustment for it, the likeliest first: more than one where the pairs do not tell.
    """

    adjustments: tuple[Adjustment, ...]


def attribute_adjustments(
    steps: list[PairAdjustment], evidence: Evidence, budget: Floats, reference: Ints
) -> list[AttributedAdjustment]:
    """Return the steps, each attributed on the clock that most of its pairs show it on.

    A clock is cleared if one of its other pairs leaves no room for the step. Of two clocks that nothing tells
    apart, a reference comes last: it is what the others are measured against. Where only the two know of each other
    the adjustment says that it may as well have been the reference.
    """
    attributed = []
    remaining = list(steps)
    while remaining:
        overlapping = _overlapping(remaining)
        clocks = sorted({clock for step in overlapping for clock in (step.one, step.other)})
        shown = {clock: _agreeing(clock, overlapping) for clock in clocks}
        is_possible = {c: _is_possible(c, shown[c], evidence, budget) for c in clocks}
        order = sorted(clocks, key=lambda c: (-is_possible[c], -len(shown[c]), c in reference, c))
        best = order[0]
        partners = {clock for step in shown[best] for clock in (step.one, step.other)} - {best}
        candidates = [
            c
            for c in order
            if c in partners and (is_possible[c], len(shown[c])) == (is_possible[best], len(shown[best]))
        ]
        ambiguous = bool(
            is_possible[best] and _linked(best, evidence) <= 1 and set(candidates) & set(reference.tolist())
        )
        if ambiguous:
            # Nobody else to ask: the reference goes on as it was, and the intervals hold either way.
            candidates = [c for c in candidates if c not in reference]
        first = replace(_cut(best, shown[best]), may_be_reference=ambiguous)
        attributed.append(AttributedAdjustment((first, *(_cut(c, shown[c]) for c in candidates))))
        taken = {step for c in (best, *candidates) for step in shown[c]}
        remaining = [step for step in remaining if step not in taken]
    return attributed


def _agreeing(clock: int, steps: list[PairAdjustment]) -> list[PairAdjustment]:
    """Return the steps of a clock's pairs that can be one of it: of the largest one's direction, and not far smaller.

    Its neighbor may have been set at about the same time.
    """
    own = [step for step in steps if clock in (step.one, step.other)]
    sizes_ns = np.array([_size_of(clock, step) for step in own])
    size_errors_ns = np.array([step.size_error_ns for step in own])
    largest = np.argmax(np.abs(sizes_ns))
    allowed_ns = np.maximum(AGREEMENT * abs(sizes_ns[largest]), size_errors_ns + size_errors_ns[largest])
    agree = (np.abs(sizes_ns - sizes_ns[largest]) <= allowed_ns) | (sizes_ns == 0)
    return [step for step, agrees in zip(own, agree.tolist(), strict=True) if agrees]


def _size_of(clock: int, step: PairAdjustment) -> float:
    """Return by how much a clock went ahead if it was the one that a pair's step shows."""
    return step.size_ns if step.other == clock else -step.size_ns


def _linked(clock: int, evidence: Evidence) -> int:
    """Return with how many clocks one has observations."""
    own = (evidence.source == clock) | (evidence.target == clock)
    return len(np.unique(np.concatenate([evidence.source[own], evidence.target[own]]))) - 1


def _is_possible(clock: int, shown: list[PairAdjustment], evidence: Evidence, budget: Floats) -> bool:
    """Tell whether all pairs of a clock leave room for the step, which some of them show."""
    adjustment = _cut(clock, shown)
    known = {step.one if step.other == clock else step.other for step in shown}
    own = (evidence.source == clock) | (evidence.target == clock)
    own &= tight(evidence, len(budget))
    mine = evidence.where(own)
    partner = np.where(mine.source == clock, mine.target, mine.source)
    for other in np.setdiff1d(np.unique(partner), list(known)).tolist():
        pair = mine.where(partner == other)
        points = Points(pair, moments(pair), (other, clock))
        drift = float(budget[clock] + budget[other])
        before_ns, after_ns = _offset_ranges(points, (adjustment.from_ns, adjustment.to_ns), drift)
        # Half of the step may be an error of the estimate of its size.
        least_ns, most_ns = after_ns[0] - before_ns[1], after_ns[1] - before_ns[0]
        half_ns = abs(adjustment.size_ns) / 2
        if adjustment.size_ns - half_ns > most_ns or adjustment.size_ns + half_ns < least_ns:
            return False
    return True


def _overlapping(steps: list[PairAdjustment]) -> list[PairAdjustment]:
    """Return the first step, and of every other pair the first that may have been at the same moment."""
    chosen: list[PairAdjustment] = []
    for step in steps:
        seen = any((step.one, step.other) == (s.one, s.other) for s in chosen)
        if not seen and step.from_ns <= steps[0].to_ns and step.to_ns >= steps[0].from_ns:
            chosen.append(step)
    return chosen


def _cut(clock: int, steps: list[PairAdjustment]) -> Adjustment:
    """Return the adjustment of one clock: where all its pairs agree, else all of where they say."""
    # A pair that hardly knows the size has no say in it.
    sure_ns = 2 * min(step.size_error_ns for step in steps)
    size_ns = float(np.median([_size_of(clock, step) for step in steps if step.size_error_ns <= sure_ns]))
    first, last = max(s.from_ns for s in steps), min(s.to_ns for s in steps)
    if first > last:
        first, last = min(s.from_ns for s in steps), max(s.to_ns for s in steps)
    # A clock that is set back shows the same times twice: those belong to either side.
    most_ns = max(abs(size_ns), *(step.most_ns for step in steps)) + 1
    return Adjustment(clock, first - most_ns, last + most_ns, size_ns)
