"""Clocks that were slewed: which one of a pair changed its rate, and timestamps without these changes.

For sources without readings of the raw clock (ingest/recording/slews.py removes the changes of others exactly). The
rate of a clock is constant between its changes; the rate at which it ran the longest is its usual one. Timestamps are
moved to a clock that always runs at that rate before clocks are aligned. Around each change, as far as it may be from
where it was located, no observation is combined with others, as around a clock that was set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from stagescope.clocks.correction import LEAST_ERROR_NS, ROUNDING_NS, Correction
from stagescope.clocks.grid import Adjustment
from stagescope.clocks.rate_changes import LEAST_DELAYS, LEAST_GAIN_NS, LEAST_IN_PAIR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.clocks.evidence import Coarse, Evidence, Floats, Ints
    from stagescope.clocks.rates import RateChange, RateChanges, Stretch

SAME_SIZE = 0.2
"""The changes of two pairs are one change of the clock that they share if their sizes differ by no more than this
fraction, or by no more than their errors."""
SURE = 4.0
PLAUSIBLE_RATE = 150e-6
"""Oscillators are within 100 ppm of their nominal rate, so that the rates of two rarely differ by more."""
ENOUGH = 2 * LEAST_DELAYS
"""Fewer delays of a pair next to an end of the run are in no line of their own."""
STEADY_RATE = 5e-6
"""Rates that differ by less are the same: those of oscillators vary that much."""


@dataclass(frozen=True)
class RateBreak:
    """A change of the rate of a clock at `at_ns`, between `from_ns` and `to_ns`, in its coarse time.

    `size` is the change of the logarithm of its rate, `size_error` its error, and `error_ns` the error of the offset.
    `rates` are its rates before and after, relative to the other clocks.
    `may_be_reference`: the reference may have changed its rate instead, by the opposite amount.
    """

    clock: int
    at_ns: float
    from_ns: float
    to_ns: float
    size: float
    size_error: float
    error_ns: float
    rates: tuple[float, float]
    may_be_reference: bool


@dataclass(frozen=True)
class Slew:
    """By how much a clock is ahead of one of constant rate: linear between the moments `at_ns` of its raw timestamps.

    `rate` is the excess rate from each moment to the next; that of the last one applies after it, and the first before
    it, too. `breaks` are the changes, one per moment but the first. A change before the first or after the second of
    the timestamps `shown_ns` would not have been found.
    """

    at_ns: Ints
    ahead_ns: Floats
    rate: Floats
    breaks: tuple[RateBreak, ...]
    shown_ns: tuple[int, int] | None = None

    def ahead_at(self, timestamps_ns: Ints) -> Floats:
        """Return by how much the clock is ahead when it shows these timestamps."""
        place = np.maximum(np.searchsorted(self.at_ns, timestamps_ns, side="right") - 1, 0)
        since_ns = (timestamps_ns - self.at_ns[place]).astype(float)
        return np.asarray(self.ahead_ns[place] + self.rate[place] * since_ns)

    def error_at_ends(self, first_ns: int, last_ns: int) -> tuple[Ints, Floats]:
        """Return moments, and what is missing at each if the clock was not slewed at the ends of the run.

        The error is linear between the moments. `first_ns` and `last_ns` are the first and the last timestamp.
        """
        from_ns, to_ns = self.shown_ns or (first_ns, last_ns)
        from_ns, to_ns = max(first_ns, from_ns), min(last_ns, to_ns)
        if len(self.at_ns) > 1:  # beyond the next change, the rate is another one
            from_ns, to_ns = min(from_ns, int(self.at_ns[1])), max(to_ns, int(self.at_ns[-1]))
        moments_ns = np.array([first_ns, max(first_ns, from_ns), min(last_ns, to_ns), last_ns], np.int64)
        before_ns = self.rate[0] * (moments_ns[1] - moments_ns[0])
        after_ns = self.rate[-1] * (moments_ns[3] - moments_ns[2])
        return moments_ns, np.array([-before_ns, 0.0, 0.0, after_ns])

    def removed(self, timestamps_ns: Ints) -> Ints:
        """Return timestamps on the clock of constant rate."""
        return np.asarray(timestamps_ns - np.rint(self.ahead_at(timestamps_ns)).astype(np.int64))

    def shown(self, timestamps_ns: Ints) -> Ints:
        """Return what the clock showed at these times of the clock of constant rate."""
        moments_ns = self.removed(self.at_ns)
        place = np.maximum(np.searchsorted(moments_ns, timestamps_ns, side="right") - 1, 0)
        since_ns = (timestamps_ns - moments_ns[place]) / (1 - self.rate[place])
        return np.asarray(self.at_ns[place] + np.rint(since_ns).astype(np.int64))


def find_slews(evidence: Evidence, coarse: Coarse, reference: Ints, rates: RateChanges) -> dict[int, Slew]:
    """Return the slew of each clock whose rate changed clearly, by the number of the clock.

    `rates` are what the observations show about changes of rates. `reference` is the reference of each clock's group,
    which is taken to have a constant rate if nothing shows which clock of a pair changed its rate.
    """
    breaks = attribute_changes(rates.changes, rates.stretches, reference)
    found = {}
    for clock in sorted({each.clock for each in breaks}):
        own = sorted((each for each in breaks if each.clock == clock), key=lambda each: each.at_ns)
        zero_ns = coarse.zero_ns + int(coarse.offset_ns[clock])
        slew = _slew(own, zero_ns, _extent(evidence, clock))
        if slew is not None:
            from_ns, to_ns = _shown(evidence, clock)
            found[clock] = replace(slew, shown_ns=(int(from_ns) + zero_ns, int(to_ns) + zero_ns))
    return found


def _shown(evidence: Evidence, clock: int) -> tuple[float, float]:
    """Return between which moments so much of a clock was observed by another one that a change would be found."""
    waited = evidence.where(evidence.waited)
    ends_ns = []
    for other in np.unique(
        np.append(waited.source[waited.target == clock], waited.target[waited.source == clock])
    ):
        sent_ns = waited.sent_ns[(waited.source == clock) & (waited.target == other)]
        received_ns = waited.received_ns[(waited.source == other) & (waited.target == clock)]
        times_ns = np.sort(np.append(sent_ns, received_ns))
        if len(times_ns) >= LEAST_IN_PAIR:
            ends_ns.append((float(times_ns[ENOUGH]), float(times_ns[-1 - ENOUGH])))
    from_ns, to_ns = zip(*ends_ns, strict=True)  # its changes were found in one of them
    return min(from_ns), max(to_ns)


def _extent(evidence: Evidence, clock: int) -> tuple[float, float]:
    """Return the first and the last moment at which a clock is observed."""
    times_ns = np.concatenate(
        [evidence.sent_ns[evidence.source == clock], evidence.received_ns[evidence.target == clock]]
    )
    return float(times_ns.min()), float(times_ns.max())


def attribute_changes(
    changes: Sequence[RateChange], stretches: Sequence[Stretch], reference: Ints
) -> list[RateBreak]:
    """Return the changes of the rates of single clocks that explain those of pairs, the clearest first.

    A clock is cleared if another of its pairs has a constant rate at that time. Of the rest, the clock that explains
    more pairs is the one. Between two equally likely clocks, the reference comes last.
    """
    by_clock: dict[int, list[Stretch]] = {}
    for stretch in stretches:
        for clock in (stretch.one, stretch.other):
            by_clock.setdefault(clock, []).append(stretch)
    remaining = list(changes)
    breaks = []
    while remaining:
        candidates = []
        for change in remaining:
            for clock in (change.one, change.other):
                agreeing = _agreeing(change, clock, remaining)
                partners = {each.one if each.other == clock else each.other for each in agreeing}
                is_cleared = any(
                    _is_steady(stretch, clock, change)
                    for stretch in by_clock.get(clock, ())
                    if not {stretch.one, stretch.other} - {clock} <= partners
                )
                score = (not is_cleared, len(agreeing), clock != reference[clock])
                candidates.append((score, clock, change, agreeing))
        # Scores are compared within a change first: the largest group of pairs is explained first.
        score, clock, change, agreeing = max(candidates, key=lambda each: (each[0], -each[1]))
        rivals = [each for each in candidates if each[2] is change and each[1] != clock]
        unsure = any(
            each[0][:2] == score[:2] and each[1] == reference[each[1]] and reference[clock] == each[1]
            for each in rivals
        )
        breaks.append(_break(clock, agreeing, may_be_reference=unsure))
        remaining = [each for each in remaining if not any(each is taken for taken in agreeing)]
    return breaks


def _agreeing(change: RateChange, clock: int, changes: Sequence[RateChange]) -> list[RateChange]:
    """Return the changes of a clock's pairs that can be one change of that clock, at most one of each pair."""
    first_ns, last_ns = _around(change, clock)
    size = change.size_of(clock)
    found = {(change.one, change.other): change}
    for each in changes:
        if clock not in (each.one, each.other) or (each.one, each.other) in found:
            continue
        from_ns, to_ns = _around(each, clock)
        allowed = max(SAME_SIZE * abs(size), SURE * (change.rate_error + each.rate_error))
        if from_ns <= last_ns and to_ns >= first_ns and abs(each.size_of(clock) - size) <= allowed:
            found[each.one, each.other] = each
    return list(found.values())


def _around(change: RateChange, clock: int) -> tuple[float, float]:
    """Return where a change may be, and half as much on either side: lines are less exact where little was observed."""
    _, from_ns, to_ns = change.when(clock)
    margin_ns = (to_ns - from_ns) / 2
    return from_ns - margin_ns, to_ns + margin_ns


def _is_steady(stretch: Stretch, clock: int, change: RateChange) -> bool:
    """Return whether a pair of a clock certainly did not change its rate with it."""
    margin_ns = LEAST_GAIN_NS / abs(change.size_of(clock))
    return stretch.contains(clock, change.when(clock)[0], margin_ns)


def _break(clock: int, agreeing: Sequence[RateChange], *, may_be_reference: bool) -> RateBreak:
    """Return the change of a clock: the mean of what its pairs show, weighted by their errors."""
    moments = np.array([each.when(clock) for each in agreeing])
    sizes = np.array([each.size_of(clock) for each in agreeing])
    errors_ns = np.array([each.error_ns for each in agreeing])
    weights, size_weights = errors_ns**-2.0, np.array([each.rate_error**-2.0 for each in agreeing])
    signs = np.array([1.0 if each.other == clock else -1.0 for each in agreeing])
    rates = np.median(signs[:, None] * np.array([each.rates for each in agreeing]), axis=0).tolist()
    first_ns, last_ns = moments[:, 1].max(), moments[:, 2].min()
    if first_ns > last_ns:
        first_ns, last_ns = moments[:, 1].min(), moments[:, 2].max()
    at_ns = float(np.average(moments[:, 0], weights=weights))
    return RateBreak(
        clock,
        at_ns,
        min(float(first_ns), at_ns),
        max(float(last_ns), at_ns),
        float(np.average(sizes, weights=size_weights)),
        float(size_weights.sum() ** -0.5),
        float(weights.sum() ** -0.5),
        (rates[0], rates[1]),
        may_be_reference,
    )


def _slew(breaks: list[RateBreak], zero_ns: int, extent_ns: tuple[float, float]) -> Slew | None:
    """Return the slew of a clock with these changes, in order; None if its rate is usual nearly all the time."""
    moments_ns = np.array([min(extent_ns[0], breaks[0].at_ns), *(each.at_ns for each in breaks)])
    lengths_ns = np.diff(np.append(moments_ns, max(extent_ns[1], breaks[-1].at_ns)))
    log_rate = np.concatenate([[0.0], np.cumsum([each.size for each in breaks])])
    errors = np.concatenate(
        [[0.0], np.hypot(*np.array([[each.size_error, breaks[0].size_error] for each in breaks]).T)]
    )
    # A clock may be slewed for most of a run, but its usual rate is that of an oscillator.
    known = np.abs([breaks[0].rates[0], *(each.rates[1] for each in breaks)])
    plausible = known <= PLAUSIBLE_RATE if (known <= PLAUSIBLE_RATE).any() else known >= 0
    log_rate -= log_rate[np.argmax(np.where(plausible, lengths_ns, -1.0))]
    log_rate = np.where(np.abs(log_rate) <= SURE * errors + STEADY_RATE, 0.0, log_rate)
    rate = -np.expm1(-log_rate)
    ahead_ns = np.concatenate([[0.0], np.cumsum(rate[:-1] * lengths_ns[:-1])])
    if not rate.any():
        return None
    return Slew(np.rint(moments_ns).astype(np.int64) + zero_ns, ahead_ns, rate, tuple(breaks))


def break_zones(slews: dict[int, Slew], before: Coarse, after: Coarse) -> tuple[Adjustment, ...]:
    """Return around each change the time in which it may be, as an adjustment of unknown size.

    `before` is the coarse time of the breaks, and `after` that of the timestamps without slews. Zones of one clock that
    overlap are joined.
    """
    zones: list[Adjustment] = []
    for clock, slew in slews.items():
        zero_ns = before.zero_ns + int(before.offset_ns[clock])
        own: list[Adjustment] = []
        for each in slew.breaks:
            ends_ns = np.rint([each.from_ns, each.to_ns]).astype(np.int64) + zero_ns
            from_ns, to_ns = (slew.removed(ends_ns) - after.zero_ns - int(after.offset_ns[clock])).tolist()
            # Between both ends the rate was that before or that after, whichever is farther from what was assumed.
            widen_ns = abs(each.size) * max(each.at_ns - each.from_ns, each.to_ns - each.at_ns)
            zone = Adjustment(
                clock,
                from_ns - 1.0,
                to_ns + 1.0,
                0.0,
                is_rate=True,
                widen_ns=widen_ns,
                error_ns=each.error_ns,
            )
            if own and zone.from_ns <= own[-1].to_ns:
                last = own.pop()
                widen_ns, error_ns = last.widen_ns + widen_ns, last.error_ns + each.error_ns
                zone = replace(zone, from_ns=last.from_ns, widen_ns=widen_ns, error_ns=error_ns)
            own.append(zone)
        zones += own
    return tuple(zones)


def with_slew(correction: Correction, slew: Slew) -> Correction:
    """Return the correction of raw timestamps, from one of timestamps without a slew."""
    corners_ns = slew.at_ns[slew.at_ns > slew.shown(correction.start_ns[:1])]
    place = np.maximum(np.searchsorted(correction.start_ns, slew.removed(corners_ns), side="right") - 1, 0)
    start_ns = np.concatenate([slew.shown(correction.start_ns), corners_ns])
    piece = np.concatenate([np.arange(len(correction.start_ns)), place])
    order = np.lexsort((piece, start_ns))
    start_ns, piece = start_ns[order], piece[order]
    moved_ns = slew.removed(start_ns)
    since_ns = moved_ns - correction.start_ns[piece]
    offset_ns = correction.offset_ns[piece] + np.rint(correction.rate[piece] * since_ns).astype(np.int64)
    stretch = np.maximum(np.searchsorted(slew.at_ns, start_ns, side="right") - 1, 0)
    return Correction(
        start_ns,
        moved_ns + offset_ns - start_ns,
        (1 - slew.rate[stretch]) * (1 + correction.rate[piece]) - 1,
        correction.lower_ns[piece] - ROUNDING_NS,
        correction.upper_ns[piece] + ROUNDING_NS,
        correction.estimated_ns[piece],
    )


def widened_for_unsure(
    corrections: list[Correction], slews: dict[int, Slew], reference: Ints, timestamps: list[Ints]
) -> list[Correction]:
    """Return the corrections with bounds that hold if a reference was slewed instead of the only other clock.

    All clocks of the group are then off by as much as that clock seemed to be ahead, and no error is estimated.
    """
    for clock, slew in slews.items():
        unsure = any(each.may_be_reference for each in slew.breaks)
        if not unsure or clock >= len(timestamps) or not len(timestamps[clock]):
            continue
        moments_ns = np.unique(np.concatenate([slew.at_ns, timestamps[clock][[0, -1]]]))
        common_ns, ahead_ns = corrections[clock].at(moments_ns), slew.ahead_at(moments_ns)
        group = np.flatnonzero(reference[: len(corrections)] == reference[clock]).tolist()
        for each in group:
            corrections[each] = _widened_by(corrections[each], common_ns, ahead_ns)
    return corrections


def widened_at_ends(
    corrections: list[Correction], slews: dict[int, Slew], reference: Ints, timestamps: list[Ints]
) -> list[Correction]:
    """Return the corrections with bounds that hold if a slew began or ended where too little was observed to show it.

    All clocks of the group may be off by as much, because the messages of that clock were corrected wrongly, too. The
    common time begins with that of the reference: if that one was not slewed at first, all that follows is off.
    """
    for clock, slew in slews.items():
        if clock >= len(timestamps) or not len(timestamps[clock]):
            continue
        moments_ns, error_ns = slew.error_at_ends(int(timestamps[clock][0]), int(timestamps[clock][-1]))
        if clock == reference[clock]:
            error_ns -= error_ns[0]
        if error_ns.any():
            common_ns = corrections[clock].at(moments_ns)
            for each in np.flatnonzero(reference[: len(corrections)] == reference[clock]).tolist():
                corrections[each] = _widened_by(corrections[each], common_ns, error_ns)
    return corrections


def _widened_by(correction: Correction, common_ns: Ints, ahead_ns: Floats) -> Correction:
    """Return the correction with bounds that contain a further error, which is linear between moments."""
    zero_ns = common_ns[0]
    starts_ns = (correction.start_ns + correction.offset_ns - zero_ns).astype(float)
    ends_ns = np.append(starts_ns[1:], np.inf)
    corners_ns = (common_ns - zero_ns).astype(float)
    at_start = np.interp(starts_ns, corners_ns, ahead_ns)
    least_ns, most_ns = np.minimum(0.0, at_start), np.maximum(0.0, at_start)
    at_end = np.interp(ends_ns, corners_ns, ahead_ns)
    least_ns, most_ns = np.minimum(least_ns, at_end), np.maximum(most_ns, at_end)
    for corner_ns, value_ns in zip(corners_ns.tolist(), ahead_ns.tolist(), strict=True):
        inside = (starts_ns <= corner_ns) & (ends_ns >= corner_ns)
        least_ns = np.where(inside, np.minimum(least_ns, value_ns), least_ns)
        most_ns = np.where(inside, np.maximum(most_ns, value_ns), most_ns)
    # The piece before the first start is part of the first one.
    is_off = np.maximum(most_ns, -least_ns) > LEAST_ERROR_NS
    return replace(
        correction,
        lower_ns=correction.lower_ns + least_ns,
        upper_ns=correction.upper_ns + most_ns,
        estimated_ns=np.where(is_off, np.nan, correction.estimated_ns),
    )
