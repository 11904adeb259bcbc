"""How far two clocks can be apart at each knot, by what was observed before it, and by what was observed after it.

Both are kept, because a clock may have been set by so little that nothing proves it: then what was observed before
holds until that moment, and what was observed after holds from there on. The wider of the two always holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from stagescope.clocks.conflicts import tight
from stagescope.clocks.frame import TOLERANCE_NS

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints
    from stagescope.clocks.frame import Frame

CHANCE = 1e-7
BLOCKS = (16, 64)
"""Observations in a row that are judged together: short blocks allow for less drift, long ones for fewer falsities."""

LATE = 3
"""So many of the outermost observations of a pair are not all long because they are false: a clock was set."""


@dataclass(frozen=True)
class Facts:
    """`x[source] - x[target] <= limit_ns` at `at_ns`, by what was observed from `from_ns` to `to_ns`; in one segment.

    `row` tells which clocks and segments: its source and target are `source` and `target`.
    """

    source: Ints
    target: Ints
    from_ns: Floats
    to_ns: Floats
    at_ns: Floats
    limit_ns: Floats
    before: Ints
    after: Ints


def facts_of(evidence: Evidence, frame: Frame, share: float, *, to_the_end: bool = False) -> Facts:
    """Return what the observations say if this share of them is false without being noticed; none inside of steps.

    `to_the_end`: of each pair as if right observations of it enclosed every step, be it among its outermost ones.
    """
    before = frame.segment_at(evidence.source, evidence.sent_ns)
    after = frame.segment_at(evidence.target, evidence.received_ns)
    usable = (before >= 0) & (after >= 0) & tight(evidence, len(frame.budget))
    chosen = evidence.where(usable)
    ends = np.stack([chosen.sent_ns, chosen.received_ns])
    drift_ns = frame.budget[chosen.target] * np.abs(ends[1] - ends[0])
    facts = Facts(
        chosen.source,
        chosen.target,
        ends.min(axis=0),
        ends.max(axis=0),
        chosen.sent_ns,
        chosen.delay_ns + drift_ns,
        before[usable],
        after[usable],
    )
    return _disbelieved(facts, frame, share, to_the_end=to_the_end) if share else facts


@cache
def most_false(count: int, share: float) -> int:
    """Return the most false ones of `count`, each false by chance `share`; more are less likely than `CHANCE`.

    >>> most_false(16, 0.0), most_false(64, 0.05)
    (0, 15)
    """
    below = 0.0
    for number in range(count + 1):
        below += math.comb(count, number) * share**number * (1 - share) ** (count - number)
        if 1 - below <= CHANCE:
            return number
    return count


def _disbelieved(facts: Facts, frame: Frame, share: float, *, to_the_end: bool) -> Facts:
    """Return one fact per block of those of one pair of clocks in a row, if it is large enough, and one per end."""
    steps = len(frame.cuts) + 1
    row = facts.source * len(frame.budget) + facts.target
    row = (row * steps + facts.before) * steps + facts.after
    order = np.lexsort((facts.at_ns, row))
    facts, row = _where(facts, order), row[order]
    parts = [_blocks(facts, row, frame, (size, shift), share) for size in BLOCKS for shift in (0, size // 2)]
    few = fewest_believed(share)
    parts += [_outermost(facts, row, frame, few, to_the_end=to_the_end)]
    backwards = _turned(_where(facts, np.arange(len(row))[::-1]))
    parts += [_turned(_outermost(backwards, row[::-1], frame, few, to_the_end=to_the_end))]
    names = Facts.__dataclass_fields__
    return Facts(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _where(facts: Facts, chosen: Ints) -> Facts:
    return Facts(**{name: getattr(facts, name)[chosen] for name in Facts.__dataclass_fields__})


def _blocks(facts: Facts, row: Ints, frame: Frame, cut: tuple[int, int], share: float) -> Facts:
    """Return for each block, as of its middle, the tightest limit but as many as may be false."""
    size, shift = cut
    place = np.arange(len(row)) - np.searchsorted(row, row)
    block = np.unique(np.stack([row, (place + shift) // size]), axis=1, return_inverse=True)[1].reshape(-1)
    counts = np.bincount(block)
    first = np.cumsum(counts) - counts
    at_ns = facts.at_ns[first + counts // 2]
    budget = frame.budget[facts.source] + frame.budget[facts.target]
    limit_ns = facts.limit_ns + budget * np.abs(facts.at_ns - at_ns[block])
    skipped = np.array([most_false(int(count), share) for count in counts], np.int64)
    usable = skipped < counts
    chosen = np.lexsort((limit_ns, block))[(first + skipped)[usable]]
    from_ns, to_ns = (
        np.minimum.reduceat(facts.from_ns, first) if len(first) else facts.from_ns,
        np.maximum.reduceat(facts.to_ns, first) if len(first) else facts.to_ns,
    )
    return Facts(
        facts.source[chosen],
        facts.target[chosen],
        from_ns[usable],
        to_ns[usable],
        at_ns[usable],
        limit_ns[chosen],
        facts.before[chosen],
        facts.after[chosen],
    )


def fewest_believed(share: float) -> int:
    """Return of how many observations the `LATE`-th longest is no tighter than the tightest one that is right.

    >>> fewest_believed(0.01), fewest_believed(0.05)
    (7, 9)
    """
    return next(count for count in range(LATE, 1_000) if count - most_false(count, share) >= LATE)


def _turned(facts: Facts) -> Facts:
    """Return the facts as of a time that goes backwards."""
    return replace(facts, from_ns=-facts.to_ns, to_ns=-facts.from_ns, at_ns=-facts.at_ns)


def _outermost(facts: Facts, row: Ints, frame: Frame, few: int, *, to_the_end: bool) -> Facts:
    """Return what the first few observations of each pair say together, even if a clock was set among them.

    A block's limit may be of the other side of a step inside of it, and before the first block nothing else tells.
    Of the few, the `LATE`-th longest counts: a false one may be long as well as short. It holds from that many on, or
    `to_the_end`; then of fewer observations too, of which one is right: the longest counts.
    """
    first = np.flatnonzero(np.concatenate([[True], row[1:] != row[:-1]]))[: len(row)]
    counts = np.diff(np.append(first, len(row)))
    if not to_the_end:
        first, counts = first[counts >= few], counts[counts >= few]
    places = first[:, None] + np.minimum(np.arange(few), counts[:, None] - 1)
    budget = (frame.budget[facts.source] + frame.budget[facts.target])[places]
    limit_ns = facts.limit_ns[places] + budget * np.abs(facts.at_ns[places] - facts.at_ns[first][:, None])
    longest = np.where(counts >= few, few - LATE, few - 1)
    known = places[:, : 1 if to_the_end else LATE]
    return replace(
        _where(facts, first),
        from_ns=facts.from_ns[places].min(axis=1),
        to_ns=facts.to_ns[known].max(axis=1),
        limit_ns=np.sort(limit_ns, axis=1)[np.arange(len(first)), longest],
    )


@dataclass(frozen=True)
class Limits:
    """Per directed pair of clocks (columns) and knot (rows): `x[one] - x[other]` is at most this, infinite if unknown.

    `back` is the column of the other direction, -1 where nothing was observed. `along_ns` is how much wider a limit
    gets from each knot to the next.
    """

    one: Ints
    other: Ints
    back: Ints
    past_ns: Floats
    future_ns: Floats
    along_ns: Floats

    @property
    def tightest_ns(self) -> Floats:
        """The limits if no clock was ever set but where the frame says so."""
        return np.minimum(self.past_ns, self.future_ns)

    @property
    def room_ns(self) -> Floats:
        """The usual room of each pair between the limits of its two directions; 0 where there is only one of them."""
        tightest_ns = self.tightest_ns
        both_ns = np.where(self.back >= 0, tightest_ns + tightest_ns[:, self.back], np.inf)
        known = np.isfinite(self.past_ns + self.future_ns)
        known &= known[:, self.back]
        # Where no knot lies between observations of both directions, the nearest to it will do.
        usual_ns = _median(both_ns, known)
        usual_ns = np.minimum(usual_ns, np.where(known.any(axis=0), np.inf, both_ns.min(axis=0)))
        return np.where(np.isfinite(usual_ns), np.maximum(usual_ns, 0.0), 0.0)

    @property
    def safe_ns(self) -> Floats:
        """The limits that hold although a clock may have been set by what nothing contradicts.

        Before the first observation and after the last one, only that one is sure to be of the same side of a step:
        what both sides say at the nearest knot is carried there, and the room between the two directions is added.
        """
        widest_ns = np.maximum(self.past_ns, self.future_ns)
        carried_ns = carried(widest_ns, self.along_ns)
        beyond_ns = np.where(np.isfinite(carried_ns), carried_ns, self.tightest_ns)
        return np.where(np.isfinite(widest_ns), widest_ns, beyond_ns + self.room_ns)


def carried(limits_ns: Floats, along_ns: Floats) -> Floats:
    """Return the limits with those that are missing carried over from both sides: the wider of what they say."""
    missing = ~np.isfinite(limits_ns)
    if not missing.any():
        return limits_ns
    past_ns, future_ns = limits_ns.copy(), limits_ns.copy()
    for knot in range(1, len(limits_ns)):
        past_ns[knot] = np.where(missing[knot], past_ns[knot - 1] + along_ns[knot - 1], past_ns[knot])
    for knot in range(len(limits_ns) - 2, -1, -1):
        future_ns[knot] = np.where(missing[knot], future_ns[knot + 1] + along_ns[knot], future_ns[knot])
    widest_ns = np.maximum(past_ns, future_ns)
    return np.asarray(np.where(np.isfinite(widest_ns), widest_ns, np.minimum(past_ns, future_ns)))


def no_faster(values_ns: Floats, along_ns: Floats) -> Floats:
    """Return the largest values below these of which none is more than `along_ns` above that of the knot beside it."""
    lowest_ns = values_ns.copy()
    for knot in range(1, len(lowest_ns)):
        np.minimum(lowest_ns[knot], lowest_ns[knot - 1] + along_ns[knot - 1], out=lowest_ns[knot])
    for knot in range(len(lowest_ns) - 2, -1, -1):
        np.minimum(lowest_ns[knot], lowest_ns[knot + 1] + along_ns[knot], out=lowest_ns[knot])
    return np.asarray(lowest_ns)


def _median(values: Floats, known: Bools) -> Floats:
    """Return the median of the known values of each column, infinite where there is none."""
    ordered = np.sort(np.where(known, values, np.inf), axis=0)
    middle = np.maximum(known.sum(axis=0) - 1, 0) // 2
    return np.asarray(ordered[middle, np.arange(values.shape[1])])


def limits_of(facts: Facts, frame: Frame) -> Limits:
    """Return the limits at every knot; each fact is carried along the knots by the budgets of its clocks."""
    clocks, knots = len(frame.budget), len(frame.knots_ns)
    key = facts.source * clocks + facts.target
    pairs, column = np.unique(key, return_inverse=True)
    one, other = pairs // clocks, pairs % clocks
    place = np.searchsorted(pairs, other * clocks + one)
    place = np.minimum(place, max(0, len(pairs) - 1))
    back = np.where(pairs[place] == other * clocks + one, place, -1) if len(pairs) else place
    along_ns = np.where(
        frame.continuous()[:, one] & frame.continuous()[:, other],
        (frame.budget[one] + frame.budget[other]) * frame.gap_ns,
        np.inf,
    )
    after = np.ceil((facts.to_ns - frame.knots_ns[0]) / frame.gap_ns)
    past_ns = _placed(facts, frame, np.maximum(after, 0).astype(np.int64), column)
    before = np.floor((facts.from_ns - frame.knots_ns[0]) / frame.gap_ns)
    future_ns = _placed(facts, frame, np.minimum(before, knots - 1).astype(np.int64), column)
    for knot in range(1, knots):
        np.minimum(past_ns[knot], past_ns[knot - 1] + along_ns[knot - 1], out=past_ns[knot])
    for knot in range(knots - 2, -1, -1):
        np.minimum(future_ns[knot], future_ns[knot + 1] + along_ns[knot], out=future_ns[knot])
    return Limits(one, other, back, past_ns, future_ns, along_ns)


def _placed(facts: Facts, frame: Frame, knot: Ints, column: Ints) -> Floats:
    """Return the tightest fact per knot and pair, each carried to the knot next to it, if that is of its segments."""
    limits_ns = np.full((len(frame.knots_ns), int(column.max(initial=-1)) + 1), np.inf)
    inside = np.flatnonzero((knot >= 0) & (knot < len(frame.knots_ns)))
    knot, column = knot[inside], column[inside]
    source, target = facts.source[inside], facts.target[inside]
    same = (frame.segment[knot, source] == facts.before[inside]) & (
        frame.segment[knot, target] == facts.after[inside]
    )
    budget = frame.budget[source] + frame.budget[target]
    carried_ns = facts.limit_ns[inside] + budget * np.abs(facts.at_ns[inside] - frame.knots_ns[knot])
    np.minimum.at(limits_ns, (knot[same], column[same]), carried_ns[same])
    return limits_ns


def contradicting_pairs(limits: Limits) -> list[tuple[int, int, float]]:
    """Return the pairs of clocks whose own limits exclude each other, and by how many nanoseconds."""
    tightest_ns = limits.tightest_ns
    found = []
    for index in np.flatnonzero((limits.one < limits.other) & (limits.back >= 0)):
        room_ns = float((tightest_ns[:, index] + tightest_ns[:, limits.back[index]]).min())
        if room_ns < -TOLERANCE_NS:
            found.append((int(limits.one[index]), int(limits.other[index]), -room_ns))
    return found
