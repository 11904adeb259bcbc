"""Changes of the rate of two clocks relative to each other, from the shortest delays of the messages between them.

Where the rate changes, the lines under the delays before and after it (lines.py) meet. Only clear changes count:
by 50 ppm or more, and by as much as makes a difference of 50 us. Smaller ones are left to the estimate, whose rates may
vary. The delays of both directions have to show the change, with opposite signs: a path that becomes slower shows it in
one direction only. Pairs whose receivers waited in one direction only have to show twice as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.clocks.evidence import COLLECTIVE
from stagescope.clocks.grouped import distinct
from stagescope.clocks.lines import (
    CHANNELS,
    SHARP_NS,
    SHARP_RATE,
    Delays,
    Lines,
    blocks_of,
    fit_lines,
    misfit,
    stretches_of,
    with_spreads,
)
from stagescope.clocks.lines import PENALTY as CLEAR_GAIN
from stagescope.clocks.rates import Corner, RateChange, RateChanges, Stretch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints

LEAST_RATE = 50e-6
"""Smaller changes of the rate are left to the random walk of the estimate."""
LEAST_GAIN_NS = 50_000.0
"""Changes of the rate that move the clock by less in one of the stretches around them are left to the estimate."""
SURE = 4.0
"""A change has to be this many times as large as its error."""
CLEAR_OF_STEP = 10.0
"""A change of the rate has to be this much more likely than a clock that was set, in units of the natural logarithm."""
LEAST_DELAYS, LEAST_IN_PAIR = 8, 24
"""Delays of a stretch that is long enough for a line, and of a pair that is examined."""
LEAST_EXPLAINED = 0.85
"""If fewer of the delays of a pair are in such stretches, its timestamps are disturbed in other ways."""
QUARTERS = 4
USUAL_DELAY_NS = 25_000.0
AROUND, CANDIDATES = 16, 48
"""Where two lines meet is searched among this many delays next to a change, of which this many at a time."""
SETTLING = 2
BESIDE = 4
"""A corner of a pair is between this many of its delays on either side."""
NEAR = 64
AWAY = 10.0
"""Lines that meet by this many errors beside the delays between them do not meet: the clock was also set."""
MARGIN = 4.0
"""A change is located to within this many times the error of where the two lines meet."""


def rate_changes(evidence: Evidence, clocks: int) -> RateChanges:
    """Return what the delays of every pair of clocks show about changes of their rates."""
    waited = evidence.where(evidence.waited)
    key = np.minimum(waited.source, waited.target) * clocks + np.maximum(waited.source, waited.target)
    ahead = waited.source < waited.target
    at_ns = np.where(ahead, waited.sent_ns, waited.received_ns)
    order = np.lexsort((at_ns, key))
    key, ahead = key[order], ahead[order]
    _, _, pair, counts = distinct(key)
    delays = Delays(
        at_ns[order],
        waited.delay_ns[order],
        np.where(ahead, 1.0, -1.0),
        np.where(ahead, 0, 1) + 2 * (waited.channel[order] == COLLECTIVE),
        np.ones(len(order)),
    )
    enough = np.flatnonzero(counts[pair] >= LEAST_IN_PAIR)
    if not len(enough):
        return RateChanges([], [], [])
    delays, key = delays.where(enough), key[enough]
    pair = distinct(key).inverse
    delays = with_spreads(delays, pair)
    changes: list[RateChange] = []
    stretches: list[Stretch] = []
    corners: list[Corner] = []
    bounds = np.append(np.flatnonzero(np.diff(pair, prepend=-1)), len(pair))
    whole, is_bent = _bent(delays, bounds)
    for number in range(len(bounds) - 1):
        one, other = divmod(int(key[bounds[number]]), clocks)
        own = delays.where(slice(int(bounds[number]), int(bounds[number + 1])))
        if not is_bent[number]:
            from_ns, to_ns = float(own.at_ns[0]), float(own.at_ns[-1])
            rate = float(whole.rate[number])
            stretches.append(Stretch(one, other, from_ns, to_ns, _ahead(whole, number, from_ns), rate))
            continue
        edges = stretches_of(own)
        parts = _Found(own, one, other, edges[:-1], edges[1:])
        # Where lines meet is more exact than the blocks that they were found in, in which two rates are mixed.
        settled = _settled(parts.those(parts.last - parts.first >= LEAST_DELAYS))
        found = _settled(_clear(settled))
        changes += _changes_of(found)
        stretches += _stretches(found)
        corners += [*_corners(parts), *_corners(settled)]
    return RateChanges(changes, stretches, corners)


def _bent(delays: Delays, bounds: Ints) -> tuple[Lines, np.ndarray]:
    """Return the line of each pair, and for which pairs those of four parts could be clearly more likely."""
    whole = fit_lines(delays, bounds[:-1], bounds[1:])
    first, last = blocks_of(bounds, np.full(len(bounds) - 1, QUARTERS))
    parts = fit_lines(delays, first, last).cost.reshape(-1, QUARTERS).sum(axis=1)
    return whole, np.asarray(whole.cost - parts > CLEAR_GAIN)


def _corners(found: _Found) -> Iterator[Corner]:
    """Yield where the lines of two successive stretches clearly have a corner or a break."""
    if len(found.first) <= 1:
        return
    lines, at_ns = found.lines, found.delays.at_ns
    ends_ns = at_ns[found.last[:-1] - 1].tolist()
    jump_ns = [_ahead(lines, n + 1, end_ns) - _ahead(lines, n, end_ns) for n, end_ns in enumerate(ends_ns)]
    least_ns = np.maximum(SHARP_NS, SURE * np.hypot(lines.error_ns[1:], lines.error_ns[:-1]))
    is_bent = np.abs(np.diff(lines.rate)) >= np.maximum(SHARP_RATE, SURE * _errors(lines))
    for number in np.flatnonzero(is_bent | (np.abs(jump_ns) >= least_ns)).tolist():
        # Which of a few delays are the first of the next line is not certain.
        before, after = found.last[number] - BESIDE, found.first[number + 1] + BESIDE - 1
        from_ns, to_ns = float(at_ns[max(before, 0)]), float(at_ns[min(after, len(at_ns) - 1)])
        yield Corner(found.one, found.other, from_ns, to_ns)


class _Found(NamedTuple):
    """The delays of one pair, and the first and the last place of each of its stretches."""

    delays: Delays
    one: int
    other: int
    first: Ints
    last: Ints

    @property
    def lines(self) -> Lines:
        return fit_lines(self.delays, self.first, self.last)

    def those(self, chosen: Bools) -> _Found:
        return self._replace(first=self.first[chosen], last=self.last[chosen])

    def without(self, number: int) -> _Found:
        return self._replace(first=np.delete(self.first, number), last=np.delete(self.last, number))


def _clear(found: _Found) -> _Found:
    """Return the pair with those stretches that are long enough for their rates to be known.

    Around a change there may be a few delays that belong to neither side.
    """
    long = found.last - found.first >= LEAST_DELAYS
    if np.sum((found.last - found.first)[long]) < LEAST_EXPLAINED * len(found.delays):
        return found._replace(first=found.first[:0], last=found.last[:0])
    found = found._replace(first=found.first[long], last=found.last[long])
    while len(found.first) > 1:
        lines = found.lines
        size = np.abs(np.diff(lines.rate))
        shorter_ns = np.minimum(lines.length_ns[1:], lines.length_ns[:-1])
        unclear = (size >= LEAST_RATE) & (
            (size * shorter_ns < LEAST_GAIN_NS) | (size < SURE * _errors(lines))
        )
        if not unclear.any():
            unclear = np.array([_may_be_set(found, lines, number) for number in range(len(size))])
            unclear &= size >= LEAST_RATE
        if not unclear.any():
            break
        place = int(np.argmin(np.where(unclear, shorter_ns, np.inf)))
        found = found.without(place + int(lines.length_ns[place + 1] < lines.length_ns[place]))
    return found


def _may_be_set(found: _Found, lines: Lines, number: int) -> bool:
    """Return whether a clock that was set within the shorter of two stretches explains it about as well."""
    shorter, longer = (
        (number, number + 1)
        if lines.length_ns[number] < lines.length_ns[number + 1]
        else (number + 1, number)
    )
    low, high = int(found.first[shorter]), int(found.last[shorter])
    places = np.unique(np.linspace(low + 1, high - 1, min(high - low - 1, CANDIDATES)).astype(np.int64))
    first, last = np.append(np.full(len(places), low), places), np.append(places, np.full(len(places), high))
    costs = misfit(found.delays, first, last, float(lines.rate[longer])).reshape(2, -1).sum(axis=0)
    return bool(costs.min() < lines.cost[shorter] + CLEAR_OF_STEP)


def _errors(lines: Lines) -> Floats:
    """Return the error of the difference of the rates of successive lines."""
    own = 2 * lines.error_ns / np.maximum(lines.length_ns, 1.0)
    return np.asarray(np.hypot(own[1:], own[:-1]))


def _stretches(found: _Found) -> Iterator[Stretch]:
    if not len(found.first):
        return
    lines, at_ns = found.lines, found.delays.at_ns
    for number, (first, last) in enumerate(zip(found.first.tolist(), found.last.tolist(), strict=True)):
        from_ns, to_ns = float(at_ns[first]), float(at_ns[last - 1])
        rate = float(lines.rate[number])
        yield Stretch(found.one, found.other, from_ns, to_ns, _ahead(lines, number, from_ns), rate)


def _ahead(lines: Lines, number: int, at_ns: float) -> float:
    """Return by how much the second clock is ahead: half the difference of both directions."""
    there = lines.counts[number] > 0
    forth = np.flatnonzero(there & (np.arange(CHANNELS) % 2 == 0))
    back = np.flatnonzero(there & (np.arange(CHANNELS) % 2 == 1))
    level = lines.level_ns[number]
    if len(forth) and len(back):
        ahead_ns = (level[forth].min() - level[back].min()) / 2
    else:
        ahead_ns = level[forth].min() - USUAL_DELAY_NS if len(forth) else USUAL_DELAY_NS - level[back].min()
    return float(ahead_ns + lines.rate[number] * (at_ns - lines.center_ns[number]))


def _changes_of(found: _Found) -> Iterator[RateChange]:
    if len(found.first) <= 1:
        return
    lines = found.lines
    for number in np.flatnonzero(np.abs(np.diff(lines.rate)) >= LEAST_RATE).tolist():
        if not _agree(found, number):
            continue
        yield _change(found, number)


def _agree(found: _Found, number: int) -> bool:
    """Return whether every direction alone shows the change, or its only direction shows it twice as clearly."""
    lines = found.lines
    size = float(lines.rate[number + 1] - lines.rate[number])
    signs = []
    for channel in np.flatnonzero((lines.counts[number : number + 2] >= LEAST_DELAYS // 2).all(axis=0)):
        rates = []
        for side in (number, number + 1):
            places = np.arange(found.first[side], found.last[side])
            alone = found.delays.where(places[found.delays.channel[places] == channel])
            rates.append(float(fit_lines(alone, np.array([0]), np.array([len(alone)])).rate[0]))
        signs.append((int(channel) % 2, (rates[1] - rates[0]) / size))
    if len({sign for sign, _ in signs}) <= 1:
        shorter_ns = lines.length_ns[number : number + 2].min()
        return bool(signs) and abs(size) * shorter_ns >= 2 * LEAST_GAIN_NS
    return all(0.5 <= share <= 2.0 for _, share in signs)  # noqa: PLR2004  # within a factor of two


def _settled(found: _Found) -> _Found:
    """Return the pair with the ends of its stretches where their lines meet; each depends on those beside it."""
    if len(found.first) <= 1:
        return found
    for _ in range(SETTLING):
        for number in np.flatnonzero(np.abs(np.diff(found.lines.rate)) >= LEAST_RATE).tolist():
            found = _meeting(found, number)
    return found


def _meeting(found: _Found, number: int) -> _Found:
    """Return the pair with the delays between and around two stretches attributed to the line that they fit better.

    Not so if delays in between fit neither line: then something else happened there, such as a clock that was set.
    """
    lines = found.lines
    gap = max(0, int(found.first[number + 1] - found.last[number]))
    low, high = int(found.first[number]) + LEAST_DELAYS // 2, int(found.last[number + 1]) - LEAST_DELAYS // 2
    near, far = int(found.last[number]) - AROUND, int(found.first[number + 1]) + AROUND
    while True:
        places = np.unique(np.linspace(max(low, near), min(high, far), CANDIDATES).astype(np.int64))
        cost = _costs(found, number, places)
        best = int(np.argmin(cost))
        step = int(places[1] - places[0]) if len(places) > 1 else 1
        if step > 1:
            near, far = int(places[best]) - step, int(places[best]) + step
        elif (places[best] == near > low or places[best] == far < high) and cost[best] < cost.max():
            near, far = near - AROUND, far + AROUND
        else:
            break
    if cost[best] > lines.cost[number : number + 2].sum() + CLEAR_GAIN + gap:
        return found
    met = _moved(found, number, int(places[best]))
    # Next to the corner, delays fit both lines. Where these meet is more exact than which delays fit them best.
    at_ns = _crossing(*_near(met, number))[0]
    place = int(np.clip(np.searchsorted(found.delays.at_ns, at_ns), low, high))
    is_corner = _costs(found, number, np.array([place]))[0] <= cost[best] + CLEAR_GAIN
    return _moved(found, number, place) if is_corner else met


def _moved(found: _Found, number: int, place: int) -> _Found:
    """Return the pair with the end of a stretch, and the begin of the next one, at this delay."""
    first, last = found.first.copy(), found.last.copy()
    last[number], first[number + 1] = place, place
    return found._replace(first=first, last=last)


def _costs(found: _Found, number: int, places: Ints) -> Floats:
    """Return the misfit of two lines that meet at each of these places."""
    low, high = (np.full(len(places), each) for each in (found.first[number], found.last[number + 1]))
    lines = fit_lines(found.delays, np.append(low, places), np.append(places, high))
    return np.asarray(lines.cost[: len(places)] + lines.cost[len(places) :])


def _near(found: _Found, number: int) -> tuple[Lines, int]:
    """Return the lines of the delays next to the end of a stretch, on either side: rates vary slowly elsewhere."""
    first, last = int(found.last[number]), int(found.first[number + 1])
    begin = max(int(found.first[number]), first - NEAR)
    end = min(int(found.last[number + 1]), last + NEAR)
    return fit_lines(found.delays, np.array([begin, last]), np.array([first, end])), 0


def _crossing(lines: Lines, number: int) -> tuple[float, float]:
    """Return when two successive lines meet, and the error of that."""
    rate = lines.rate[number : number + 2]
    center_ns = lines.center_ns[number : number + 2]
    sign = np.where(np.arange(CHANNELS) % 2 == 0, 1.0, -1.0)
    both = np.minimum(lines.counts[number], lines.counts[number + 1])
    known = both > 0
    heights_ns = lines.level_ns[number + 1, known] - lines.level_ns[number, known]
    size = float(rate[1] - rate[0])
    # Heights are those at the centers of the lines; moved to the middle between them.
    middle_ns = float(center_ns.mean())
    apart_ns = float(np.average(sign[known] * heights_ns, weights=both[known])) if known.any() else 0.0
    apart_ns += float(rate[1] * (middle_ns - center_ns[1]) - rate[0] * (middle_ns - center_ns[0]))
    error_ns = float(np.hypot(*lines.error_ns[number : number + 2]))
    return middle_ns - apart_ns / size, error_ns / abs(size)


def _change(met: _Found, number: int) -> RateChange:
    lines = met.lines
    at_ns, error_ns = _crossing(*_near(met, number))
    before, after = (float(rate) for rate in lines.rate[number : number + 2])
    left_ns = float(met.delays.at_ns[met.last[number] - 1])
    right_ns = float(met.delays.at_ns[met.first[number + 1]])
    # Where the clock was also set, the lines meet elsewhere; it is set between the two stretches.
    margin_ns = AWAY * error_ns
    if not left_ns - margin_ns <= at_ns <= right_ns + margin_ns:
        at_ns = float(np.clip(at_ns, left_ns, right_ns))
    return RateChange(
        met.one,
        met.other,
        at_ns,
        min(left_ns, at_ns - MARGIN * error_ns),
        max(right_ns, at_ns + MARGIN * error_ns),
        (before, after),
        float(_errors(lines)[number]),
        _ahead(lines, number, at_ns),
        abs(after - before) * error_ns,
    )
