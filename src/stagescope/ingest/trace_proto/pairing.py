"""Pair the beginnings and ends of slices."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from math import gcd
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Slice(NamedTuple):
    """One slice on a track, with its arguments, and the flows that begin and end in it."""

    track: int
    name: str
    category: str
    start_ns: int
    end_ns: int
    args: dict[str, Any]
    flows: tuple[int, ...] = ()
    ending_flows: tuple[int, ...] = ()

    def shifted(self, offset_ns: int) -> Slice:
        """Return the slice at other times."""
        return self._replace(start_ns=self.start_ns + offset_ns, end_ns=self.end_ns + offset_ns)


class SliceEvent(NamedTuple):
    """The beginning of a slice (`began` is the slice, without an end) or an end (None)."""

    time_ns: int
    track: int
    began: Slice | None


def without_copies(events: Sequence[SliceEvent]) -> tuple[Sequence[SliceEvent], int]:
    """Return the events of one copy of a trace that is in the file several times, and the number of slices left out.

    It is if every event is there a multiple of N times, the beginnings with the same arguments. Pairing would nest the
    copies in each other.
    """
    counts = Counter((one.track, one.time_ns, one.began and one.began.name) for one in events)
    if not counts or min(counts.values()) == 1:
        return events, 0
    exact = Counter(map(repr, events))
    copies = gcd(*exact.values())
    if copies == 1:
        return events, 0
    left = {event: count // copies for event, count in exact.items()}
    kept = []
    for event in events:
        key = repr(event)
        if left[key]:
            left[key] -= 1
            kept.append(event)
    return kept, sum(one.began is not None for one in events) - sum(one.began is not None for one in kept)


def paired(events: Sequence[SliceEvent]) -> tuple[list[Slice], int, int]:
    """Return the slices by start, and how many beginnings have no end and ends no beginning.

    The last slice that began on a track is the first to end, in the order of time; equal times keep the order of the
    file. torch's own encoder writes all beginnings of a group of slices and then all their ends, in the same order:
    there the n-th end belongs to the n-th beginning, whatever touches or overlaps.
    """
    slices: list[Slice] = []
    others: list[SliceEvent] = []
    for run in _runs(events):
        half = len(run) // 2
        if _is_in_columns(run, half):
            slices += [
                begin.began._replace(end_ns=end.time_ns)
                for begin, end in zip(run[:half], run[half:], strict=True)
                if begin.began is not None
            ]
        else:
            others += run
    by_track: defaultdict[int, list[SliceEvent]] = defaultdict(list)
    for event in others:
        by_track[event.track].append(event)
    unended = unbegun = 0
    for own in by_track.values():
        found, left, surplus = _nested(sorted(own, key=itemgetter(0)))
        slices += found
        unended, unbegun = unended + left, unbegun + surplus
    slices.sort(key=itemgetter(3, 4))
    return slices, unended, unbegun


def _runs(events: Iterable[SliceEvent]) -> Iterable[list[SliceEvent]]:
    """Yield the events in parts that each are beginnings followed by ends."""
    run: list[SliceEvent] = []
    for event in events:
        if event.began is not None and run and run[-1].began is None:
            yield run
            run = []
        run.append(event)
    if run:
        yield run


def _is_in_columns(run: Sequence[SliceEvent], half: int) -> bool:
    """Return whether a run has beginnings and then their ends in the same order, and is not simply ordered by time."""
    if len(run) != 2 * half or half == 0 or run[half - 1].began is None or run[half].began is not None:
        return False
    if all(one.time_ns <= other.time_ns for one, other in pairwise(run)):
        return False
    return all(
        begin.track == end.track and begin.time_ns <= end.time_ns
        for begin, end in zip(run[:half], run[half:], strict=True)
    )


def _nested(events: Iterable[SliceEvent]) -> tuple[list[Slice], int, int]:
    """Return the slices of one track, and the numbers of beginnings and ends that are left."""
    found: list[Slice] = []
    open_: list[Slice] = []
    surplus = 0
    for event in events:
        if event.began is not None:
            open_.append(event.began)
        elif open_:
            found.append(open_.pop()._replace(end_ns=event.time_ns))
        else:
            surplus += 1
    return found, len(open_), surplus
