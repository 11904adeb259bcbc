"""One rank's jobs as numbers, so that two orders of the same jobs can be compared quickly.

A full backward is written as its two halves, I and right after it W: whether a trace or a schedule says
``B3.1`` or ``I3.1 W3.1`` makes no difference then. Where a trace shows no W at all, none are written.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from operator import le
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stagescope.schedules.action import Action

F, I, W = range(3)  # noqa: E741  # the field's letter
_STAGE_BITS, _KIND_BITS = 32, 2
_MICROBATCHES = (1 << (_STAGE_BITS - _KIND_BITS)) - 1
_KINDS = (1 << _KIND_BITS) - 1
_CODES = {"F": F, "B": I, "I": I, "W": W}


class NumberedAction(NamedTuple):
    """A job taken from its number; `kind` is F, I or W."""

    kind: int
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{'FBW'[self.kind]}{self.stage}.{self.microbatch}"


class Line(NamedTuple):
    """The jobs of one rank in their order, and which forward runs as a pair with which backward."""

    numbers: list[int]
    pairs: dict[int, int]


def number_of(kind: int, stage: int, microbatch: int) -> int:
    """Return the number of a job."""
    return stage << _STAGE_BITS | microbatch << _KIND_BITS | kind


def action_of(number: int) -> NumberedAction:
    """Return the job of a number."""
    return NumberedAction(number & _KINDS, number >> _STAGE_BITS, number >> _KIND_BITS & _MICROBATCHES)


def write_line(actions: Iterable[Action], *, weights: bool) -> Line:
    """Return the jobs of a rank as numbers, of a pair the forward first; without W unless `weights`."""
    numbers: list[int] = []
    pairs: dict[int, int] = {}
    for action in actions:
        kind, stage, microbatch, partner = action
        if partner is not None:
            forward, backward = sorted(action.parts, key=lambda job: job.kind != "F")
            first = number_of(_CODES[forward.kind], *forward[1:3])
            second = number_of(_CODES[backward.kind], *backward[1:3])
            pairs[first] = second
            numbers += [first, second]
            if weights and backward.kind == "B":
                numbers.append(second + W - I)
            continue
        number = stage << _STAGE_BITS | microbatch << _KIND_BITS | _CODES[kind]
        if kind != "W" or weights:
            numbers.append(number)
        if kind == "B" and weights:
            numbers.append(number + W - I)
    return Line(numbers, pairs)


def longest_rise(places: Sequence[int]) -> int:
    """Return the length of the longest rising row that is left when places are taken out.

    >>> longest_rise([0, 3, 1, 2, 4])
    4
    """
    if all(map(le, places, places[1:])):
        return len(places)
    ends: list[int] = []
    for place in places:
        at = bisect_left(ends, place)
        ends[at : at + 1] = [place]
    return len(ends)


def misplaced(measured: Line, theory: Line, *, paired: bool) -> int:
    """Return how many jobs of a measured line stand elsewhere than in theory.

    That is the fewest that one has to move or take out; jobs that were not measured do not count. With
    `paired`, each forward that runs in another pair than in theory, or in none, counts too.
    """
    place = {job: at for at, job in enumerate(measured.numbers)}
    places = [place[job] for job in theory.numbers if job in place]
    moved = len(measured.numbers) - longest_rise(places)
    if not paired:
        return moved
    expected = {f: b for f, b in theory.pairs.items() if f in place and b in place}
    return moved + len(dict(measured.pairs.items() ^ expected.items()))


def most_in_flight(line: Line) -> int:
    """Return how many activations a rank keeps at most, from each F to its W, or to its I where none is shown."""
    kinds = [number & _KINDS for number in line.numbers]
    end = W if W in kinds else I
    return max(accumulate((kind == F) - (kind == end) for kind in kinds), default=0)
