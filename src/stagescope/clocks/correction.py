"""Corrections as linear pieces on the raw timestamps of each clock, with the error of each piece.

The error of a piece holds at every moment of it, not only at the knots. A clock may have been set in between by too
little to be noticed, so the bounds of either knot may hold up to the other one, widened by the drift budget.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from stagescope.clocks.grid import slewed_stretches
from stagescope.clocks.uncertainty import COVERING

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Coarse, Floats, Ints
    from stagescope.clocks.grid import Adjustment
    from stagescope.clocks.solution import Solution

LEAST_ERROR_NS = 300.0
"""The resolution of timestamps, below which nothing is claimed."""
ROUNDING_NS = 2.0
"""Offsets and timestamps are rounded to whole nanoseconds, once each."""


@dataclass(frozen=True)
class Correction:
    """The correction of one clock: from `start_ns` (raw) on, `offset_ns + rate * (timestamp - start_ns)` is added.

    The true correction is between that plus `lower_ns` and that plus `upper_ns`, infinite where unbounded, and differs
    by no more than `estimated_ns` in 99 % of all cases; nan without an estimate of the error.
    """

    start_ns: Ints
    offset_ns: Ints
    rate: Floats
    lower_ns: Floats
    upper_ns: Floats
    estimated_ns: Floats

    def widened(self, error_ns: float) -> Correction:
        """Return the correction with bounds that are wider by `error_ns` on both sides."""
        return replace(
            self,
            lower_ns=self.lower_ns - error_ns,
            upper_ns=self.upper_ns + error_ns,
            estimated_ns=self.estimated_ns + error_ns,
        )

    def with_estimate(self, factor: float) -> Correction:
        """Return the correction with an estimated error that is larger by a factor; nan for none."""
        return replace(self, estimated_ns=self.estimated_ns * factor)

    def without_bounds(self) -> Correction:
        """Return the correction without bounds and without an estimate of its error."""
        unknown = np.full(len(self.start_ns), np.inf)
        return replace(self, lower_ns=-unknown, upper_ns=unknown, estimated_ns=np.full(len(unknown), np.nan))

    def at(self, timestamps_ns: Ints) -> Ints:
        """Return the corrected timestamps."""
        place = np.maximum(np.searchsorted(self.start_ns, timestamps_ns, side="right") - 1, 0)
        since_ns = timestamps_ns - self.start_ns[place]
        return np.asarray(
            timestamps_ns + self.offset_ns[place] + np.rint(self.rate[place] * since_ns).astype(np.int64)
        )


def correction_of(solution: Solution, coarse: Coarse, clock: int, timestamps_ns: Ints) -> Correction:
    """Return the correction of one clock, over all its `timestamps_ns` (sorted), relative to its group's reference."""
    grid = solution.grid
    budget = float(grid.budget[clock])
    reference = int(solution.reference[clock])
    zero_ns = coarse.zero_ns + int(coarse.offset_ns[clock])
    # Without a consistent solution the timestamps are unchanged: a coarse offset would look like an alignment.
    guessed = clock not in solution.withheld
    shift_ns = int(coarse.offset_ns[reference] - coarse.offset_ns[clock]) if guessed else 0
    adjustments = sorted(
        (c for c in grid.adjustments if c.clock == clock), key=lambda adjustment: adjustment.from_ns
    )
    curve = _Curve(
        grid.knots_ns,
        solution.x_ns[:, clock],
        solution.bounds.lower_ns[:, clock],
        solution.bounds.upper_ns[:, clock],
        budget,
        _estimated_errors(solution, clock),
    )
    # The estimate is still the best guess where there are no bounds.
    segment = grid.seen.segment[:, clock]
    whole = np.flatnonzero(segment >= 0)
    if not len(whole):
        whole = np.array([0])
        curve = replace(curve, lower_ns=curve.lower_ns - np.inf, upper_ns=curve.upper_ns + np.inf)
    unbounded = [c for c in grid.unbounded if c.clock == clock] + _one_sided(adjustments, curve.at_ns[whole])
    rows = _before_first_knot(curve, whole, timestamps_ns, zero_ns)
    lines = _linear_pieces(curve, whole[:-1], whole[1:])
    for line, (left, right) in zip(lines, pairwise(whole.tolist()), strict=True):
        if segment[left] == segment[right]:
            rows.append(line)
        else:
            between = [
                c for c in adjustments if c.to_ns > grid.knots_ns[left] and c.from_ns < grid.knots_ns[right]
            ]
            rows += _pieces_around_adjustment(curve, (left, right), between, timestamps_ns - zero_ns)
    rows += _after_last_knot(curve, whole, timestamps_ns, zero_ns)
    start_ns, x_ns, rate, lower_ns, upper_ns, estimated_ns = (
        np.array(column) for column in zip(*rows, strict=True)
    )
    ends_ns = np.append(start_ns[1:], np.inf)
    for adjustment in unbounded:
        unknown = (ends_ns > adjustment.from_ns) & (start_ns < adjustment.to_ns)
        lower_ns, upper_ns = np.where(unknown, -np.inf, lower_ns), np.where(unknown, np.inf, upper_ns)
        estimated_ns = np.where(unknown, np.nan, estimated_ns)
    correction = Correction(
        np.rint(start_ns).astype(np.int64) + zero_ns,
        np.rint(x_ns).astype(np.int64) + shift_ns,
        rate,
        lower_ns - ROUNDING_NS * (budget > 0),
        upper_ns + ROUNDING_NS * (budget > 0),
        _within_bounds(estimated_ns, lower_ns, upper_ns),
    )
    return _monotonic(correction, timestamps_ns) if adjustments and len(timestamps_ns) else correction


def _within_bounds(estimated_ns: Floats, lower_ns: Floats, upper_ns: Floats) -> Floats:
    """Return estimated errors no larger than the guaranteed bounds; nan where these are missing."""
    widest_ns = np.maximum(-lower_ns, upper_ns)
    known = np.isfinite(lower_ns) & np.isfinite(upper_ns)
    return np.where(known, np.minimum(estimated_ns, np.maximum(widest_ns, LEAST_ERROR_NS)), np.nan)


def _one_sided(adjustments: list[Adjustment], known_ns: Floats) -> list[Adjustment]:
    """Return the adjustments without a knot on one side as unbounded stretches that reach to that end of the run."""
    after = [
        replace(adjustment, to_ns=np.inf) for adjustment in adjustments if adjustment.to_ns > known_ns[-1]
    ]
    return after + [
        replace(adjustment, from_ns=-np.inf) for adjustment in adjustments if adjustment.from_ns < known_ns[0]
    ]


@dataclass(frozen=True)
class _Curve:
    at_ns: Floats
    x_ns: Floats
    lower_ns: Floats
    upper_ns: Floats
    budget: float
    estimated_ns: Floats


_Row = tuple[float, float, float, float, float, float]


def _estimated_errors(solution: Solution, clock: int) -> Floats:
    """Return the estimated error at every knot of a clock; nan for references, which are exact by definition."""
    if solution.standard_error_ns is None or solution.reference[clock] == clock or clock in solution.withheld:
        return np.full(len(solution.grid.knots_ns), np.nan)
    errors_ns = COVERING * solution.standard_error_ns[:, clock] + LEAST_ERROR_NS
    if solution.unexplained_ns is not None:
        errors_ns = errors_ns + solution.unexplained_ns[:, clock]
    knots_ns = solution.grid.knots_ns
    for first_ns, last_ns in slewed_stretches(solution.grid, (clock, int(solution.reference[clock]))):
        errors_ns = np.where((knots_ns >= first_ns) & (knots_ns <= last_ns), np.nan, errors_ns)
    return np.asarray(errors_ns)


def _linear_pieces(curve: _Curve, left: Ints, right: Ints) -> list[_Row]:
    """Return the pieces between pairs of knots, each pair of one segment.

    A clock may have been set in between without being noticed, so the bounds of each end may hold up to the other
    end.
    """
    ends = np.array([left, right])
    gap_ns = curve.at_ns[right] - curve.at_ns[left]
    x_ns = curve.x_ns[ends]
    # Axes: the knot whose bounds apply; the end at which they apply, after growing by the drift in between; the pair.
    grown_ns = curve.budget * gap_ns * (1 - np.eye(2))[:, :, None]
    upper_ns = (curve.upper_ns[ends][:, None] + grown_ns - x_ns).max(axis=(0, 1))
    lower_ns = (curve.lower_ns[ends][:, None] - grown_ns - x_ns).min(axis=(0, 1))
    estimated_ns = curve.estimated_ns[ends].max(axis=0)
    rate = (x_ns[1] - x_ns[0]) / gap_ns
    columns = (curve.at_ns[left], x_ns[0], rate, lower_ns, upper_ns, estimated_ns)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _pieces_around_adjustment(
    curve: _Curve, knots: tuple[int, int], adjustments: list[Adjustment], timestamps_ns: Ints
) -> list[_Row]:
    """Return two constant pieces around a clock adjustment, each with an error that covers both sides of it.

    Between two adjustments without a knot nothing is known, so the error is unbounded.
    """
    left, right = knots
    moment = _moment(adjustments, timestamps_ns, float(curve.at_ns[left]), float(curve.at_ns[right]))
    drift_ns = curve.budget * float(curve.at_ns[right] - curve.at_ns[left])
    drift_ns += sum(adjustment.widen_ns for adjustment in adjustments)
    known = len(adjustments) == 1
    lower_ns = float(curve.lower_ns[[left, right]].min()) - drift_ns if known else -np.inf
    upper_ns = float(curve.upper_ns[[left, right]].max()) + drift_ns if known else np.inf
    if all(adjustment.is_rate for adjustment in adjustments):
        return [_around_rate_change(curve, knots, (lower_ns, upper_ns), adjustments)]
    return [
        (
            at_ns,
            float(curve.x_ns[knot]),
            0.0,
            lower_ns - float(curve.x_ns[knot]),
            upper_ns - float(curve.x_ns[knot]),
            np.nan,
        )
        for at_ns, knot in ((float(curve.at_ns[left]), left), (moment, right))
    ]


def _around_rate_change(
    curve: _Curve, knots: tuple[int, int], bounds_ns: tuple[float, float], changes: list[Adjustment]
) -> _Row:
    """Return the linear piece around changes of the rate, which were removed from the timestamps: nothing was set."""
    left, right = knots
    start_ns, x_ns, rate, *_, estimated_ns = _linear_pieces(curve, np.array([left]), np.array([right]))[0]
    ends_ns = curve.x_ns[[left, right]]
    error_ns = (
        estimated_ns + abs(float(np.diff(ends_ns)[0])) + sum(COVERING * each.error_ns for each in changes)
    )
    return (
        start_ns,
        x_ns,
        rate,
        bounds_ns[0] - float(ends_ns.max()),
        bounds_ns[1] - float(ends_ns.min()),
        error_ns,
    )


def _moment(adjustments: list[Adjustment], timestamps_ns: Ints, first: float, last: float) -> float:
    """Return where to place the break: a clock that is set forward skips times, so it is at the largest gap."""
    low = max(first + 1, min(c.from_ns for c in adjustments))
    high = min(last - 1, max(c.to_ns for c in adjustments))
    inside = timestamps_ns[(timestamps_ns > low) & (timestamps_ns < high)].astype(float)
    places = np.concatenate([[low], inside, [high]])
    if sum(c.size_ns for c in adjustments) < 0 or len(inside) == 0:
        return float((low + high) / 2)
    # At the end of the gap: with any earlier break, corrected times would overlap those before the gap.
    return float(places[int(np.argmax(np.diff(places))) + 1])


def _before_first_knot(curve: _Curve, whole: Ints, timestamps_ns: Ints, zero_ns: int) -> list[_Row]:
    """Return the piece before the first knot, if there are timestamps; its error grows with the distance."""
    first = int(whole[0])
    early = float(timestamps_ns[0] - zero_ns) if len(timestamps_ns) else np.inf
    return (
        [_level(curve, first, early, float(curve.at_ns[first]) - early)] if early < curve.at_ns[first] else []
    )


def _after_last_knot(curve: _Curve, whole: Ints, timestamps_ns: Ints, zero_ns: int) -> list[_Row]:
    last = int(whole[-1])
    late = float(timestamps_ns[-1] - zero_ns) if len(timestamps_ns) else -np.inf
    at_ns = float(curve.at_ns[last])
    return [_level(curve, last, at_ns, max(0.0, late - at_ns))]


def _level(curve: _Curve, knot: int, start_ns: float, distance_ns: float) -> _Row:
    x_ns, drift_ns = float(curve.x_ns[knot]), curve.budget * distance_ns
    lower_ns, upper_ns = float(curve.lower_ns[knot]) - drift_ns, float(curve.upper_ns[knot]) + drift_ns
    # The correction is constant beyond the outermost knots, although the clock goes on to drift.
    beside = knot + 1 if knot == 0 else knot - 1
    rate = (float(curve.x_ns[beside]) - x_ns) / (curve.at_ns[beside] - curve.at_ns[knot])
    estimated_ns = float(curve.estimated_ns[knot]) + abs(rate) * distance_ns
    return start_ns, x_ns, 0.0, lower_ns - x_ns, upper_ns - x_ns, estimated_ns


def _monotonic(correction: Correction, timestamps_ns: Ints) -> Correction:
    """Return a correction that keeps the order of the clock's own timestamps across adjustments.

    Where an adjustment is estimated slightly too large, the pieces after it are raised by what is missing. Each piece
    begins no later than its first timestamp, and after all earlier ones in corrected time; pieces without timestamps
    are removed.
    """
    place = np.maximum(np.searchsorted(correction.start_ns, timestamps_ns, side="right") - 1, 0)
    moved_ns = correction.at(timestamps_ns)
    kept, first = np.unique(place, return_index=True)
    last = np.append(first[1:], len(place)) - 1
    raised = np.zeros(len(kept), np.int64)
    for number in range(1, len(kept)):
        reached_ns = moved_ns[last[number - 1]] + raised[number - 1]
        raised[number] = max(0, reached_ns + 1 - moved_ns[first[number]])
    since_ns = timestamps_ns[first] - correction.start_ns[kept]
    # The first piece also applies to timestamps before its start, so it may begin after its first timestamp.
    since_ns[:1] = np.minimum(since_ns[:1], 0)
    return Correction(
        correction.start_ns[kept] + since_ns,
        correction.offset_ns[kept] + np.rint(correction.rate[kept] * since_ns).astype(np.int64) + raised,
        correction.rate[kept],
        correction.lower_ns[kept] - raised,
        correction.upper_ns[kept] - raised,
        correction.estimated_ns[kept] + raised,
    )
