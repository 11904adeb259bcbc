"""Divides the content of a long recording by steps, so that a part of a run is never in memory as a whole.

What has no step belongs to the last steps that had begun before it. A recording without steps is divided by time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stagescope.ingest.recording.columns import no_columns
from stagescope.record.frameworks.host_activities import DATA_LOADING
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from stagescope.ingest.recording.columns import Columns
    from stagescope.ingest.recording.frames import Contents
    from stagescope.ingest.recording.process import Process

FOREVER_NS = 2**63 - 1
CANDIDATES = 64
"""Spans from the place of a slice on, of which the first one that it can begin with begins it."""


def first_steps(processes: Sequence[Process], count: int) -> tuple[int, ...]:
    """Return the first step of each slice of a part, except the first one, for about `count` slices of equal length.

    There are none without steps.
    """
    steps = np.unique(np.concatenate([process.facts.steps for process in processes]))
    places = np.linspace(0, len(steps), min(count, max(1, len(steps))), endpoint=False).astype(np.int64)
    return tuple(int(step) for step in steps[places[1:]])


class Slices:
    """The content of a recording divided by steps into one slice more than there are `firsts`.

    Without `firsts`, it is divided by time into `count` slices with about as many spans each.
    """

    def __init__(self, contents: Contents, firsts: Sequence[int], count: int) -> None:
        self._contents = contents
        self._firsts = firsts
        self._begun_ns = _begun_ns(contents, firsts) if firsts else _moments_between(contents, count)

    def spans(self) -> Iterator[tuple[int, Columns]]:
        """Yield parts of the spans in order, each with the number of its slice."""
        for block in self._contents.blocks():
            numbers = _slices(block["step"], block["start_ns"], self._firsts, self._begun_ns)
            for number in np.unique(numbers).tolist():
                yield number, block.where(numbers == number)

    def others(self) -> Iterator[Contents]:
        """Yield the content of each slice without its spans; each has all readings of clocks."""
        counters = self._contents.counters
        numbers = _slices(counters["step"], counters["time_ns"], self._firsts, self._begun_ns)
        for number in range(len(self._begun_ns) + 1):
            own = counters[numbers == number]
            yield replace(self._contents, spans=no_columns(), long=None, counters=own)


def _begun_ns(contents: Contents, firsts: Sequence[int]) -> list[int]:
    """Return when the first of the steps from each of `firsts` on began."""
    begun_ns = np.full(len(firsts) + 1, FOREVER_NS, np.int64)  # of the steps of each slice
    for spans in contents.blocks():
        has_step = spans["step"] >= 0
        number = np.searchsorted(np.array(firsts, np.int64), spans["step"][has_step], side="right")
        np.minimum.at(begun_ns, number, spans["start_ns"][has_step])
    from_then_on: npt.NDArray[np.int64] = np.minimum.accumulate(begun_ns[::-1])[::-1]
    return [int(each) for each in from_then_on[1:]]


def _moments_between(contents: Contents, count: int) -> list[int]:
    """Return when each slice but the first one begins: at the start of a span.

    A forward and the loading of data that it begins with stay in one slice (leading_loads.py). Where that is not
    possible, a slice stays empty.
    """
    places = np.linspace(0, contents.span_count, count, endpoint=False).astype(np.int64)[1:]
    candidates: list[npt.NDArray[np.int64]] = []
    before = 0
    for spans in contents.blocks():
        own = places[(places >= before) & (places < before + len(spans))] - before
        candidates += [spans["start_ns"][place : place + CANDIDATES] for place in own.tolist()]
        before += len(spans)
    candidates += [np.empty(0, np.int64)] * (len(places) - len(candidates))  # without any span
    numbers = [number for number, name in contents.names.items() if name == DATA_LOADING]
    if numbers:
        candidates = _outside_of_loads(contents, candidates, numbers)
    first_ns = -FOREVER_NS
    moments_ns = []
    for own in candidates:
        first_ns = max(first_ns, int(own[0])) if len(own) else first_ns
        moments_ns.append(first_ns)
    return moments_ns


def _outside_of_loads(
    contents: Contents, candidates: Sequence[npt.NDArray[np.int64]], names: Sequence[int]
) -> list[npt.NDArray[np.int64]]:
    """Return the moments at which neither a forward nor the loading of data is in progress."""
    moments_ns = np.unique(np.concatenate(candidates))
    changes = np.zeros(len(moments_ns) + 1, np.int64)
    for spans in contents.blocks():
        is_load = (spans["kind"] == BY_NAME["other"].code) & np.isin(spans["name"], names)
        chosen = is_load | (spans["kind"] == BY_NAME["forward"].code)
        np.add.at(changes, np.searchsorted(moments_ns, spans["start_ns"][chosen], side="right"), 1)
        ended = np.searchsorted(moments_ns, spans["end_ns"][chosen], side="left")
        started = np.searchsorted(moments_ns, spans["start_ns"][chosen], side="right")
        np.add.at(changes, np.maximum(started, ended), -1)
    free_ns = moments_ns[np.cumsum(changes)[:-1] == 0]
    return [own[np.isin(own, free_ns)] for own in candidates]


def _slices(
    step: npt.NDArray[np.int32],
    time_ns: npt.NDArray[np.int64],
    firsts: Sequence[int],
    begun_ns: Sequence[int],
) -> npt.NDArray[np.intp]:
    """Return the number of the slice of each record."""
    by_step = np.searchsorted(np.array(firsts, np.int64), step, side="right")
    by_time = np.searchsorted(np.array(begun_ns, np.int64), time_ns, side="right")
    return np.where(step >= 0, by_step, by_time)
