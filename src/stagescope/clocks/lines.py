"""Straight lines under the delays of pairs of clocks: for how long the offset of two clocks changed at one rate.

While two clocks run at constant rates, their offset is a straight line in time, and no delay of either direction is
below a line of that slope. The delays above it are about exponentially distributed, so the most likely slope is the one
with the smallest mean distance of the delays from their lines, all of which have to be below (a linear program). Where
one line fits clearly worse than several, the rate changed or a clock was set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.clocks.evidence import Floats, Ints

CHANNELS = 4
"""The delays of each direction of messages and of collectives have a line of their own, with a common slope."""
LARGEST_RATE = 0.12
"""No clock is slewed faster: chrony by 10 % at most."""
GOLDEN = (5**0.5 - 1) / 2
ROUNDS = 44
"""Rounds of the golden-section search, each of which narrows the slope to 62 %: to 0.2 ns in 1,000 s."""

LEAST_POINTS = 5
"""A block of fewer delays is on a line by chance."""
BLOCKS = 12
"""A stretch is divided into this many blocks; the blocks around each change are divided again."""
MOST_CHANGES, MOST_EDGES = 8, 64
"""Changes between the blocks of a whole pair, and ends of lines; more of them are no slews, but disturbed
timestamps."""
SHARP_RATE, SHARP_NS = 25e-6, 25_000.0
"""Lines whose slopes differ by more, or that are farther apart where one ends and the other begins."""
PENALTY = 30.0
"""One more line has to be this much more likely, in units of the natural logarithm. By chance that happens once in
e^30 / 480 divisions, if the delays of both directions are exponentially distributed: a line has three unknowns, and the
gain is about the sum of three exponential variables."""

SPREAD_POINTS = 12
SPREAD_QUANTILE = 0.5
LEAST_SPREAD_NS = 1_000.0
USUAL_SPREAD_NS = 30_000.0


@dataclass(frozen=True)
class Delays:
    """Delays in the order of time, one row each: when, how long, and of which direction and kind of evidence.

    `sign` is 1 if the delay grows with the offset of the second clock from the first, otherwise -1. `channel` is 0 to
    3, and `spread_ns` the typical excess of the delays of that channel over the shortest.
    """

    at_ns: Floats
    delay_ns: Floats
    sign: Floats
    channel: Ints
    spread_ns: Floats

    def __len__(self) -> int:
        return len(self.at_ns)

    def where(self, chosen: slice | Ints) -> Delays:
        """Return a subset of the delays."""
        names = self.__dataclass_fields__
        return Delays(**{name: getattr(self, name)[chosen] for name in names})


class Lines(NamedTuple):
    """The most likely line of each stretch: its slope, the height of every channel at `center_ns`, and the misfit.

    `rate` is the change of the offset per nanosecond. `level_ns` and `counts` have one column per channel; the level is
    infinite without delays. `cost` is the sum of the distances in units of the spread. `error_ns` is the standard error
    of the offset at either end.
    """

    center_ns: Floats
    length_ns: Floats
    rate: Floats
    level_ns: Floats
    counts: Ints
    cost: Floats
    error_ns: Floats


class _Stretches:
    """The delays of several stretches, by channel: the misfit of lines of any slope under them."""

    def __init__(self, delays: Delays, first: Ints, last: Ints) -> None:
        size = last - first
        stretch = np.repeat(np.arange(len(first)), size)
        place = np.arange(len(stretch)) - np.repeat(np.cumsum(size) - size, size) + first[stretch]
        self.count = len(first)
        self.center_ns = (delays.at_ns[first] + delays.at_ns[last - 1]) / 2
        key = stretch * CHANNELS + delays.channel[place]
        order = np.argsort(key, kind="stable")
        self.stretch, place = stretch[order], place[order]
        self.keys, self.start, self.counts = np.unique(key[order], return_index=True, return_counts=True)
        self.group = self.keys // CHANNELS
        self.moved_ns = delays.sign[place] * (delays.at_ns[place] - self.center_ns[self.stretch])
        self.delay_ns = delays.delay_ns[place]
        self.weight = 1 / delays.spread_ns[place[self.start]]
        self.sums = np.add.reduceat(self.delay_ns, self.start), np.add.reduceat(self.moved_ns, self.start)

    def level(self, rate: Floats) -> Floats:
        """Return the height of the line under each channel, for the slope of each stretch."""
        return np.asarray(np.minimum.reduceat(self.delay_ns - rate[self.stretch] * self.moved_ns, self.start))

    def cost(self, rate: Floats) -> Floats:
        """Return the sum of the distances from the lines of each stretch, in units of the spread."""
        above = self.sums[0] - rate[self.group] * self.sums[1] - self.counts * self.level(rate)
        return self._sums(self.weight * above)

    def precision(self) -> Floats:
        """Return the number of delays of each stretch, in units of the spread."""
        return self._sums(self.weight * self.counts)

    def _sums(self, values: Floats) -> Floats:
        return np.asarray(np.bincount(self.group, values, minlength=self.count), float)


def fit_lines(delays: Delays, first: Ints, last: Ints) -> Lines:
    """Return the most likely line under the delays from each `first` to before each `last`."""
    stretches = _Stretches(delays, first, last)
    rate = _least(stretches.cost, len(first))
    levels_ns, counts = np.full(len(first) * CHANNELS, np.inf), np.zeros(len(first) * CHANNELS, np.int64)
    levels_ns[stretches.keys], counts[stretches.keys] = stretches.level(rate), stretches.counts
    length_ns = delays.at_ns[last - 1] - delays.at_ns[first]
    return Lines(
        stretches.center_ns,
        length_ns,
        rate,
        levels_ns.reshape(-1, CHANNELS),
        counts.reshape(-1, CHANNELS),
        stretches.cost(rate),
        np.hypot(END_ERROR / stretches.precision(), WANDER_RATE * np.minimum(length_ns, WANDER_NS)),
    )


def misfit(delays: Delays, first: Ints, last: Ints, rate: float) -> Floats:
    """Return the misfit of lines of a given slope."""
    return _Stretches(delays, first, last).cost(np.full(len(first), rate))


END_ERROR = 3.0
"""The error of a line at its ends, in units of the mean excess of the shortest of its delays."""
WANDER_RATE, WANDER_NS = 2.5e-6, 4e9
"""The rates of oscillators vary by a few ppm within seconds, so a long line is wrong at its ends by about that."""


def _least(cost: Callable[[Floats], Floats], count: int) -> Floats:
    """Return where a convex function of each stretch's slope is least, by golden-section search of all at once."""
    low, high = np.full(count, -LARGEST_RATE), np.full(count, LARGEST_RATE)
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = cost(left), cost(right)
    for _ in range(ROUNDS):
        is_left = at_left <= at_right
        low, high = np.where(is_left, low, left), np.where(is_left, right, high)
        inner = np.where(is_left, high - GOLDEN * (high - low), low + GOLDEN * (high - low))
        found = cost(inner)
        left, right = np.where(is_left, inner, right), np.where(is_left, left, inner)
        at_left, at_right = np.where(is_left, found, at_right), np.where(is_left, at_left, found)
    return np.asarray((low + high) / 2)


def with_spreads(delays: Delays, pair: Ints) -> Delays:
    """Return the delays of pairs (in their order) with the spread of each pair's channels.

    It is that of short blocks, in which the rate hardly changes.
    """
    bounds = np.append(np.flatnonzero(np.diff(pair, prepend=-1)), len(pair))
    first, last = blocks_of(bounds, np.maximum(np.diff(bounds) // SPREAD_POINTS, 1))
    lines = fit_lines(delays, first, last)
    number = np.repeat(np.arange(len(first)), last - first)
    base_ns = lines.level_ns[number, delays.channel] + lines.rate[number] * delays.sign * (
        delays.at_ns - lines.center_ns[number]
    )
    own = number * CHANNELS + delays.channel
    above_ns = delays.delay_ns - base_ns
    order = np.lexsort((above_ns, own))
    keys, start, count = np.unique(own[order], return_index=True, return_counts=True)
    known = count >= 3  # noqa: PLR2004  # the median of fewer is 0 or any
    keys, start, count = keys[known], start[known], count[known]
    median_ns = above_ns[order][start + count // 2]
    # A line goes through one or two of the delays, so the others are farther from it than from the true one.
    median_ns = median_ns / np.log(2) * count / (count - 1)
    of = pair[first[keys // CHANNELS]] * CHANNELS + keys % CHANNELS
    channels = (int(pair[-1]) + 1) * CHANNELS
    spread_ns = np.full(channels, USUAL_SPREAD_NS)
    order = np.lexsort((median_ns, of))
    found, start, count = np.unique(of[order], return_index=True, return_counts=True)
    spread_ns[found] = median_ns[order][start + (SPREAD_QUANTILE * count).astype(np.int64)]
    spread_ns = np.maximum(spread_ns, LEAST_SPREAD_NS)
    return Delays(
        delays.at_ns,
        delays.delay_ns,
        delays.sign,
        delays.channel,
        spread_ns[pair * CHANNELS + delays.channel],
    )


def blocks_of(bounds: Ints, number: Ints) -> tuple[Ints, Ints]:
    """Return first and last of blocks of about equally many delays: `number` of them between every two bounds."""
    edges = [
        np.linspace(low, high, int(count) + 1).astype(np.int64)
        for low, high, count in zip(bounds[:-1].tolist(), bounds[1:].tolist(), number.tolist(), strict=True)
    ]
    return np.concatenate([each[:-1] for each in edges]), np.concatenate([each[1:] for each in edges])


def stretches_of(delays: Delays) -> Ints:
    """Return the ends of the stretches of one pair in which a single line fits, as places among its delays.

    Returns the first place and the last alone where one line fits all, and where no lines fit.
    """
    whole = np.array([0, len(delays)])
    coarse = np.linspace(0, len(delays), min(BLOCKS, len(delays) // LEAST_POINTS) + 1).astype(np.int64)
    if _sharp(delays, _partition(delays, coarse)).sum() > MOST_CHANGES:
        return whole
    found = np.unique(np.concatenate([whole, _changes(delays, 0, len(delays))]).astype(np.int64))
    if len(found) > MOST_EDGES:
        return whole
    return _partition(delays, found)


def _sharp(delays: Delays, edges: Ints) -> np.ndarray:
    """Return at which of the inner edges the lines have a corner or a break, rather than a slowly varying rate."""
    lines = fit_lines(delays, edges[:-1], edges[1:])
    at_ns = delays.at_ns[edges[1:-1]]
    moved_ns = lines.rate[:, None] * np.stack([np.append(at_ns, 0.0), np.append(0.0, at_ns)], axis=1)
    moved_ns -= (lines.rate * lines.center_ns)[:, None]
    sign = np.where(np.arange(CHANNELS) % 2 == 0, 1.0, -1.0)
    before_ns = sign * lines.level_ns[:-1] + moved_ns[:-1, :1]
    after_ns = sign * lines.level_ns[1:] + moved_ns[1:, 1:]
    both = np.isfinite(before_ns) & np.isfinite(after_ns)
    with np.errstate(invalid="ignore"):
        jump_ns = np.abs(np.where(both, after_ns - before_ns, 0.0)).max(axis=1)
    return np.asarray((np.abs(np.diff(lines.rate)) >= SHARP_RATE) | (jump_ns >= SHARP_NS))


def _changes(delays: Delays, low: int, high: int) -> Ints:
    """Return the places between two where a new line begins, as exactly as the delays show."""
    count = min(BLOCKS, (high - low) // LEAST_POINTS)
    if count <= 1:
        return np.zeros(0, np.int64)
    edges = np.linspace(low, high, count + 1).astype(np.int64)
    ends = _partition(delays, edges)
    chosen = ends[1:-1]
    if not len(chosen) or (high - low) // count <= LEAST_POINTS:
        return chosen
    windows: list[tuple[int, int, Ints]] = []
    # The rates of oscillators vary slowly. Where exactly one line ends and another begins does not matter then.
    is_sharp = _sharp(delays, ends)
    for place in chosen[is_sharp].tolist():
        number = int(np.searchsorted(edges, place))
        start, end = int(edges[number - 1]), int(edges[number + 1])
        if windows and start < windows[-1][1]:
            start, before = windows[-1][0], windows.pop()[2]
            windows.append((start, end, np.append(before, place)))
        else:
            windows.append((start, end, np.array([place])))
    if len(windows) == 1 and (windows[0][1] - windows[0][0]) >= high - low:
        return chosen if count < BLOCKS else _halves(delays, (low, high), chosen)
    found = [chosen[~is_sharp]]
    for start, end, places in windows:
        finer = _changes(delays, start, end)
        found.append(finer if len(finer) else places)
    return np.concatenate(found)


def _halves(delays: Delays, ends: tuple[int, int], chosen: Ints) -> Ints:
    """Return the changes of a stretch that has some in all of its blocks, from those of its halves."""
    low, high = ends
    middle = (low + high) // 2
    return np.concatenate([_changes(delays, low, middle), [middle], _changes(delays, middle, high), chosen])


def _partition(delays: Delays, edges: Ints) -> Ints:
    """Return the edges at which the most likely lines begin and end (optimal partitioning by dynamic programming)."""
    count = len(edges)
    begin, end = np.triu_indices(count, 1)
    cost = np.full((count, count), np.inf)
    cost[begin, end] = fit_lines(delays, edges[begin], edges[end]).cost
    best, before = np.zeros(count), np.zeros(count, np.int64)
    for number in range(1, count):
        totals = best[:number] + cost[:number, number] + PENALTY
        before[number] = np.argmin(totals)
        best[number] = totals[before[number]]
    chosen = [count - 1]
    while chosen[-1]:
        chosen.append(int(before[chosen[-1]]))
    return edges[chosen[::-1]]
