"""Corrections as pieces of straight lines on the raw stamps of each clock, with the error of each piece.

The error of a piece holds at every moment of it, not only at the knots: a clock may have been set in between by what
nothing proves, so that the interval of either knot may hold up to the other one, wider by the drift budget.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Coarse, Floats, Ints
    from stagescope.clocks.frame import Cut
    from stagescope.clocks.solve import Solution

ROUNDING_NS = 2.0


@dataclass(frozen=True)
class Pieces:
    """One clock's correction: from `start_ns` (raw) on it is `offset_ns + rate * (stamp - start_ns)`.

    The true correction lies between it + `lower_ns` and it + `upper_ns`, infinite where nothing says.
    """

    start_ns: Ints
    offset_ns: Ints
    rate: Floats
    lower_ns: Floats
    upper_ns: Floats

    def at(self, stamps_ns: Ints) -> Ints:
        """Return the corrected stamps."""
        place = np.maximum(np.searchsorted(self.start_ns, stamps_ns, side="right") - 1, 0)
        since_ns = stamps_ns - self.start_ns[place]
        return np.asarray(
            stamps_ns + self.offset_ns[place] + np.rint(self.rate[place] * since_ns).astype(np.int64)
        )


def pieces_of(solution: Solution, coarse: Coarse, clock: int, stamps_ns: Ints) -> Pieces:
    """Return the pieces of one clock, over all its `stamps_ns` (sorted), against the reference of its group."""
    frame = solution.frame
    budget = float(frame.budget[clock])
    reference = int(solution.reference[clock])
    zero_ns = coarse.zero_ns + int(coarse.offset_ns[clock])
    # Where all evidence is withheld the stamps stay as they are: a coarse guess would look like an alignment.
    guessed = clock not in solution.withheld
    shift_ns = int(coarse.offset_ns[reference] - coarse.offset_ns[clock]) if guessed else 0
    cuts = sorted((c for c in frame.cuts if c.clock == clock), key=lambda cut: cut.from_ns)
    curve = _Curve(
        frame.knots_ns,
        solution.x_ns[:, clock],
        solution.bounds.lower_ns[:, clock],
        solution.bounds.upper_ns[:, clock],
        budget,
    )
    # In a stretch that is not bounded the estimate is the best guess all the same.
    segment = frame.seen.segment[:, clock]
    whole = np.flatnonzero(segment >= 0)
    if not len(whole):
        whole = np.array([0])
        curve = replace(curve, lower_ns=curve.lower_ns - np.inf, upper_ns=curve.upper_ns + np.inf)
    blind = [c for c in frame.blind if c.clock == clock] + _one_sided(cuts, curve.at_ns[whole])
    rows = _outside_before(curve, whole, stamps_ns, zero_ns)
    for left, right in pairwise(whole.tolist()):
        if segment[left] == segment[right]:
            rows.append(_straight(curve, left, right))
        else:
            between = [
                c for c in cuts if c.to_ns > frame.knots_ns[left] and c.from_ns < frame.knots_ns[right]
            ]
            rows += _broken(curve, (left, right), between, stamps_ns - zero_ns)
    rows += _outside_after(curve, whole, stamps_ns, zero_ns)
    start_ns, x_ns, rate, lower_ns, upper_ns = (np.array(column) for column in zip(*rows, strict=True))
    ends_ns = np.append(start_ns[1:], np.inf)
    for cut in blind:
        unknown = (ends_ns > cut.from_ns) & (start_ns < cut.to_ns)
        lower_ns, upper_ns = np.where(unknown, -np.inf, lower_ns), np.where(unknown, np.inf, upper_ns)
    pieces = Pieces(
        np.rint(start_ns).astype(np.int64) + zero_ns,
        np.rint(x_ns).astype(np.int64) + shift_ns,
        rate,
        lower_ns - ROUNDING_NS * (budget > 0),
        upper_ns + ROUNDING_NS * (budget > 0),
    )
    return _in_order(pieces, stamps_ns) if cuts and len(stamps_ns) else pieces


def _one_sided(cuts: list[Cut], known_ns: Floats) -> list[Cut]:
    """Return the steps of which one side has no knot, as stretches from or to the end: nothing is known there."""
    after = [replace(cut, to_ns=np.inf) for cut in cuts if cut.to_ns > known_ns[-1]]
    return after + [replace(cut, from_ns=-np.inf) for cut in cuts if cut.from_ns < known_ns[0]]


@dataclass(frozen=True)
class _Curve:
    at_ns: Floats
    x_ns: Floats
    lower_ns: Floats
    upper_ns: Floats
    budget: float


_Row = tuple[float, float, float, float, float]


def _straight(curve: _Curve, left: int, right: int) -> _Row:
    """Return the piece between two knots of one segment.

    A clock may have been set in between by what nothing proves: each end's interval may hold up to the other end.
    """
    ends = [left, right]
    gap_ns = float(curve.at_ns[right] - curve.at_ns[left])
    x_ns = curve.x_ns[ends]
    # Rows: whose interval; columns: at which end, where that of the other end has grown by the drift in between.
    grown_ns = curve.budget * gap_ns * (1 - np.eye(2))
    upper_ns = float((curve.upper_ns[ends][:, None] + grown_ns - x_ns).max())
    lower_ns = float((curve.lower_ns[ends][:, None] - grown_ns - x_ns).min())
    return float(curve.at_ns[left]), float(x_ns[0]), float(x_ns[1] - x_ns[0]) / gap_ns, lower_ns, upper_ns


def _broken(curve: _Curve, knots: tuple[int, int], cuts: list[Cut], stamps_ns: Ints) -> list[_Row]:
    """Return two level pieces around a clock step, each with an error that covers both sides of it.

    Between two steps without a knot nothing is known: then the error is without bounds.
    """
    left, right = knots
    moment = _moment(cuts, stamps_ns, float(curve.at_ns[left]), float(curve.at_ns[right]))
    drift_ns = curve.budget * float(curve.at_ns[right] - curve.at_ns[left])
    known = len(cuts) == 1
    lower_ns = float(curve.lower_ns[[left, right]].min()) - drift_ns if known else -np.inf
    upper_ns = float(curve.upper_ns[[left, right]].max()) + drift_ns if known else np.inf
    return [
        (
            at_ns,
            float(curve.x_ns[knot]),
            0.0,
            lower_ns - float(curve.x_ns[knot]),
            upper_ns - float(curve.x_ns[knot]),
        )
        for at_ns, knot in ((float(curve.at_ns[left]), left), (moment, right))
    ]


def _moment(cuts: list[Cut], stamps_ns: Ints, first: float, last: float) -> float:
    """Return where to place a step: a clock that is set ahead has no stamps in between, so the largest gap is it."""
    low = max(first + 1, min(c.from_ns for c in cuts))
    high = min(last - 1, max(c.to_ns for c in cuts))
    inside = stamps_ns[(stamps_ns > low) & (stamps_ns < high)].astype(float)
    places = np.concatenate([[low], inside, [high]])
    if sum(c.size_ns for c in cuts) < 0 or len(inside) == 0:
        return float((low + high) / 2)
    # At its end: from any earlier on, corrected times would begin before the last of those before the gap.
    return float(places[int(np.argmax(np.diff(places))) + 1])


def _outside_before(curve: _Curve, whole: Ints, stamps_ns: Ints, zero_ns: int) -> list[_Row]:
    """Return the piece before the first knot, if there are stamps: the error grows with the distance."""
    first = int(whole[0])
    early = float(stamps_ns[0] - zero_ns) if len(stamps_ns) else np.inf
    return (
        [_level(curve, first, early, float(curve.at_ns[first]) - early)] if early < curve.at_ns[first] else []
    )


def _outside_after(curve: _Curve, whole: Ints, stamps_ns: Ints, zero_ns: int) -> list[_Row]:
    last = int(whole[-1])
    late = float(stamps_ns[-1] - zero_ns) if len(stamps_ns) else -np.inf
    at_ns = float(curve.at_ns[last])
    return [_level(curve, last, at_ns, max(0.0, late - at_ns))]


def _level(curve: _Curve, knot: int, start_ns: float, distance_ns: float) -> _Row:
    x_ns, drift_ns = float(curve.x_ns[knot]), curve.budget * distance_ns
    lower_ns, upper_ns = float(curve.lower_ns[knot]) - drift_ns, float(curve.upper_ns[knot]) + drift_ns
    return start_ns, x_ns, 0.0, lower_ns - x_ns, upper_ns - x_ns


def _in_order(pieces: Pieces, stamps_ns: Ints) -> Pieces:
    """Return pieces that keep the order of the stamps: after a step, none may fall before the last one of before it.

    Where the guess of a step is a little too large, a piece after it is raised by what is missing. Each piece with
    stamps begins at the first of them at the latest, later than all before it in corrected time too; others go.
    """
    place = np.maximum(np.searchsorted(pieces.start_ns, stamps_ns, side="right") - 1, 0)
    moved_ns = pieces.at(stamps_ns)
    kept, first = np.unique(place, return_index=True)
    last = np.append(first[1:], len(place)) - 1
    raised = np.zeros(len(kept), np.int64)
    for number in range(1, len(kept)):
        reached_ns = moved_ns[last[number - 1]] + raised[number - 1]
        raised[number] = max(0, reached_ns + 1 - moved_ns[first[number]])
    since_ns = stamps_ns[first] - pieces.start_ns[kept]
    # The first piece may begin after its first stamp; it holds for what is before it all the same.
    since_ns[:1] = np.minimum(since_ns[:1], 0)
    return Pieces(
        pieces.start_ns[kept] + since_ns,
        pieces.offset_ns[kept] + np.rint(pieces.rate[kept] * since_ns).astype(np.int64) + raised,
        pieces.rate[kept],
        pieces.lower_ns[kept] - raised,
        pieces.upper_ns[kept] - raised,
    )
