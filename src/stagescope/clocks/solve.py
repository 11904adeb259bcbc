"""From observations to corrections with bounds: the simplest explanation that leaves no contradiction.

First every observation that others exclude is dropped, and the moments at which a clock was set are found. If
anything was false, a share of what is left is taken to be false without being noticed. Where contradictions remain
the share is raised; where none will do, the pairs of clocks that contradict themselves are withheld and the rest is
solved without them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array  # type: ignore[import-untyped]
from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

from stagescope.clocks.adjustments import Blamed, blame, pair_steps
from stagescope.clocks.bounds import Bounds, bound
from stagescope.clocks.conflicts import CONFIRMING, exclusion_ns, false_ones, find_conflicts, unproven
from stagescope.clocks.estimate import fit
from stagescope.clocks.frame import TOLERANCE_NS, Frame, frame_of, knots_for
from stagescope.clocks.limits import contradicting_pairs, facts_of, limits_of, no_faster
from stagescope.clocks.reference_bounds import rooms_of

if TYPE_CHECKING:
    from stagescope.clocks.conflicts import Conflicts
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints

SHARES = (0.04, 0.12)
"""Shares of unnoticed false stamps to try where the one that the noticed ones suggest leaves contradictions."""

FEW_FALSE, MOST_FALSE = 4, 0.25
"""More than so many observations of one direction, and than this share of them, are not false by chance."""

UNNOTICED = 4.0
"""For each observation that is false by little, so many more may be false by too little to be noticed."""


@dataclass(frozen=True)
class Contradiction:
    """Two clocks whose observations exclude each other by `by_ns`, whatever is believed; `rows` are the worst two."""

    one: int
    other: int
    by_ns: float
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Solution:
    """Corrections `x_ns` at every knot of every clock in coarse time, their bounds, and how they came about."""

    frame: Frame
    reference: Ints
    bounds: Bounds
    x_ns: Floats
    share: float
    blamed: tuple[Blamed, ...]
    rejected: dict[int, float]
    contradictions: tuple[Contradiction, ...] = ()
    withheld: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Explained:
    """What was taken to be wrong: steps, stretches in which one may have been, false ones; `kept` is the rest."""

    kept: Evidence
    frame: Frame
    blamed: tuple[Blamed, ...]
    rejected: dict[int, float]
    share: float


def solve(evidence: Evidence, clocks: int, max_ppm: float) -> Solution:
    """Return the corrections of every clock against its group's reference, with bounds that hold if max_ppm does.

    A group are clocks that evidence bounds from both sides; what lies between groups is not used here.
    """
    contradictions: list[Contradiction] = []
    while True:
        reference = references(evidence, clocks)
        inside = evidence.where(reference[evidence.source] == reference[evidence.target])
        budget = np.where(reference == np.arange(clocks), 0.0, max_ppm * 1e-6)
        frame = frame_of(knots_for(inside, clocks), budget, ())
        explained = explain(inside, frame, reference)
        worst = overly_false(inside, explained.rejected)
        for share in (explained.share, *(s for s in SHARES if s > explained.share)):
            if worst:
                break
            limits = limits_of(facts_of(explained.kept, explained.frame, share), explained.frame)
            rooms = rooms_of(limits, explained.kept, explained.frame, share)
            found = bound(limits, explained.frame, reference, rooms)
            if not contradicting_pairs(limits) and not found.contradictory.any():
                found = _without_lonely(found, reference, contradictions)
                return _solution(replace(explained, share=share), reference, found, tuple(contradictions))
        if not worst:
            strict = limits_of(facts_of(inside, frame, 0.0), frame)
            worst = sorted(contradicting_pairs(strict), key=lambda pair: -pair[2])[:1]
        if not worst:
            return _nothing(frame, reference, tuple(contradictions), inside)
        contradictions += [Contradiction(*pair, _witnesses(inside, pair[0], pair[1])) for pair in worst]
        keys = [key for one, other, _ in worst for key in (one * clocks + other, other * clocks + one)]
        evidence = evidence.where(~np.isin(evidence.source * clocks + evidence.target, keys))


def _without_lonely(found: Bounds, reference: Ints, contradictions: list[Contradiction]) -> Bounds:
    """Return the bounds without those of clocks that were compared in vain only: they may be what contradicts all."""
    alone = np.bincount(reference, minlength=len(reference))[reference] == 1
    blamed = [clock for each in contradictions for clock in (each.one, each.other)]
    lonely = alone & np.isin(np.arange(len(reference)), blamed)
    return Bounds(np.where(lonely, -np.inf, found.lower_ns), np.where(lonely, np.inf, found.upper_ns))


def overly_false(evidence: Evidence, rejected: dict[int, float]) -> list[tuple[int, int, float]]:
    """Return the pairs of clocks of which more observations are false than chance explains, and by how much."""
    if not rejected:
        return []
    clocks = int(max(evidence.source.max(), evidence.target.max())) + 1
    way = evidence.source * clocks + evidence.target
    ways, counts = np.unique(way, return_counts=True)
    false = np.isin(evidence.row, list(rejected))
    bad = np.bincount(np.searchsorted(ways, way[false]), minlength=len(ways))
    found: dict[tuple[int, int], float] = {}
    for index in np.flatnonzero(bad > np.maximum(FEW_FALSE, MOST_FALSE * counts)).tolist():
        by_ns = max(rejected[row] for row in evidence.row[false & (way == ways[index])].tolist())
        source, target = divmod(int(ways[index]), clocks)
        pair = (min(source, target), max(source, target))
        found[pair] = max(by_ns, found.get(pair, 0.0))
    return [(one, other, by_ns) for (one, other), by_ns in found.items()]


def references(evidence: Evidence, clocks: int) -> Ints:
    """Return for each clock the reference of its group: the first clock that evidence bounds it to from both sides."""
    places = np.unique(evidence.source * clocks + evidence.target)
    links = coo_array((np.ones(len(places)), (places // clocks, places % clocks)), shape=(clocks, clocks))
    group = connected_components(links.tocsr(), directed=True, connection="strong")[1]
    _, first, back = np.unique(group, return_index=True, return_inverse=True)
    return np.asarray(first[back], np.int64)


def explain(evidence: Evidence, bare: Frame, reference: Ints) -> Explained:
    """Return what is wrong with the observations, if some exclude each other, and the rest of them."""
    conflicts = find_conflicts(evidence, bare.budget)
    if not len(conflicts):
        return Explained(evidence, bare, (), {}, 0.0)
    false = false_ones(conflicts, len(evidence))
    least = CONFIRMING + 1 if false.any() else CONFIRMING
    false &= ~unproven(evidence, conflicts, false, len(bare.budget))
    steps, doubtful = pair_steps(evidence.where(~false), _renumbered(conflicts, ~false), bare.budget, least)
    places = np.flatnonzero(~false)[doubtful.places]
    by_ns = exclusion_ns(conflicts, len(evidence))
    false[places] = True
    kept = evidence.where(~false)
    blamed = blame(steps, kept, bare.budget, np.unique(reference))
    cuts = tuple(cut for each in blamed for cut in each.cuts)
    frame = frame_of(bare.knots_ns, bare.budget, cuts, doubtful.blind)
    rejected = dict(zip(evidence.row[false].tolist(), by_ns[false].tolist(), strict=True))
    return Explained(kept, frame, tuple(blamed), rejected, _unnoticed(kept, frame, by_ns[false]))


def _renumbered(conflicts: Conflicts, kept: Bools) -> Conflicts:
    left = conflicts.without(~kept)
    number = np.cumsum(kept) - 1
    return replace(left, early=number[left.early], late=number[left.late])


def _unnoticed(kept: Evidence, frame: Frame, by_ns: Floats) -> float:
    """Return the share of observations that may be false by too little to be noticed.

    What is false by less than the room between the two directions of a pair is not. About as many will be as are
    false by up to as much again, and those were noticed.
    """
    if not len(by_ns):
        return 0.0
    limits = limits_of(facts_of(kept, frame, 0.0), frame)
    room_ns = limits.tightest_ns + np.where(limits.back >= 0, limits.tightest_ns[:, limits.back], np.inf)
    usual_ns = np.median(room_ns[np.isfinite(room_ns)]) if np.isfinite(room_ns).any() else 0.0
    near = int(np.sum(by_ns < usual_ns))
    return float(min(SHARES[-1], UNNOTICED * (near + 1) / max(1, len(kept))))


def _solution(
    explained: Explained, reference: Ints, found: Bounds, contradictions: tuple[Contradiction, ...]
) -> Solution:
    """Return the solution: the estimate at every knot, moved into its interval where it lies outside."""
    frame = explained.frame
    count, clocks = found.upper_ns.shape
    anchored = reference == np.arange(clocks)
    # What was kept in a stretch that is not bounded is likely right all the same: good enough for a guess.
    fitted = fit(explained.kept, frame.seen, anchored, believed=not explained.share)
    clock = np.tile(np.arange(clocks), count)
    x_ns = fitted.at(frame, clock, np.repeat(frame.knots_ns, clocks)).reshape(count, clocks)
    jumps = dict(zip(frame.cuts, np.abs(fitted.jumps_ns).tolist(), strict=True))
    blamed = tuple(Blamed(tuple(sorted(each.cuts, key=lambda cut: -jumps[cut]))) for each in explained.blamed)
    return Solution(
        frame=frame,
        reference=reference,
        bounds=found,
        x_ns=_believable(x_ns, found, frame),
        share=explained.share,
        blamed=blamed,
        rejected=explained.rejected,
        contradictions=contradictions,
    )


def _believable(x_ns: Floats, found: Bounds, frame: Frame) -> Floats:
    """Return corrections within their intervals that change no faster than clocks drift, but where one was set.

    A false stamp that is believed can bend the estimate, or narrow the interval for a while, by more than that.
    """
    along_ns = np.where(frame.seen.continuous(), frame.budget * frame.gap_ns, np.inf)
    inside_ns = np.clip(x_ns, found.lower_ns, found.upper_ns)
    too_fast = (np.abs(np.diff(inside_ns, axis=0)) > along_ns + TOLERANCE_NS).any(axis=0)
    lowest_ns, highest_ns = -no_faster(-found.lower_ns, along_ns), no_faster(found.upper_ns, along_ns)
    smooth_ns = np.clip((no_faster(x_ns, along_ns) - no_faster(-x_ns, along_ns)) / 2, lowest_ns, highest_ns)
    # Where not even the ends of the intervals can be joined, halfway between them changes slowly as well.
    crossed = lowest_ns > highest_ns
    middle_ns = np.where(crossed, lowest_ns, 0.0) / 2 + np.where(crossed, highest_ns, 0.0) / 2
    return np.where(too_fast, np.where(crossed, middle_ns, smooth_ns), inside_ns)


def _witnesses(evidence: Evidence, one: int, other: int) -> tuple[int, ...]:
    """Return the observation of each direction with the shortest delay that the clocks show."""
    rows = []
    for source, target in ((one, other), (other, one)):
        own = np.flatnonzero((evidence.source == source) & (evidence.target == target))
        if len(own):
            rows.append(int(evidence.row[own[np.argmin(evidence.delay_ns[own])]]))
    return tuple(rows)


def _nothing(
    frame: Frame, reference: Ints, contradictions: tuple[Contradiction, ...], evidence: Evidence
) -> Solution:
    """Return no correction for any clock: what is left contradicts itself only in circles of several machines."""
    start = np.broadcast_to(reference == np.arange(len(reference)), frame.segment.shape)
    used = np.unique(np.concatenate([evidence.source, evidence.target]))
    return Solution(
        frame=frame,
        reference=reference,
        bounds=Bounds(np.where(start, 0.0, -np.inf), np.where(start, 0.0, np.inf)),
        x_ns=np.zeros(frame.segment.shape),
        share=0.0,
        blamed=(),
        rejected={},
        contradictions=contradictions,
        withheld=frozenset(used.tolist()),
    )
