"""Divides the content of a long recording by steps, so that a part of a run is never in memory as a whole.

What has no step belongs to the last steps that had begun before it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from stagescope.ingest.recording.frames import Columns, Contents
    from stagescope.ingest.recording.process import Process

FOREVER_NS = 2**63 - 1


def first_steps(processes: Sequence[Process], count: int) -> tuple[int, ...]:
    """Return the first step of each slice of a part, except the first one, for about `count` slices of equal length."""
    steps = np.unique(np.concatenate([process.facts.steps for process in processes]))
    places = np.linspace(0, len(steps), min(count, max(1, len(steps))), endpoint=False).astype(np.int64)
    return tuple(int(step) for step in steps[places[1:]])


def sliced(contents: Contents, firsts: Sequence[int]) -> Iterator[Contents]:
    """Yield the content of each slice of a recording: one more than the first steps that divide it.

    Each has all readings of clocks.
    """
    spans, counters = contents.spans, contents.counters
    begun_ns = [_begin_ns(spans, first) for first in firsts]
    of_span = _slices(spans["step"], spans["start_ns"], firsts, begun_ns)
    of_counter = _slices(counters["step"], counters["time_ns"], firsts, begun_ns)
    for number in range(len(firsts) + 1):
        yield replace(contents, spans=spans.where(of_span == number), counters=counters[of_counter == number])


def _begin_ns(spans: Columns, first: int) -> int:
    """Return when the first of the steps from `first` on began."""
    return int(spans["start_ns"][spans["step"] >= first].min(initial=FOREVER_NS))


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
