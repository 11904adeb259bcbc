"""Find the innermost range that encloses a call on its thread.

Kernels of a backward are launched by threads of the autograd engine, which have no ranges, while the thread with the
range waits. A call on a thread without ranges therefore belongs to the backward that is open on any thread of the
process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stagescope.ingest.device_ranges.trace import process_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import polars as pl

    Numbers = npt.NDArray[np.int64]

NO_RANGE = -1


class Intervals:
    """Intervals of one thread, which nest but do not cross, searchable by time."""

    def __init__(self, start_ns: Numbers, end_ns: Numbers, number: Numbers) -> None:
        order = np.lexsort((-end_ns, start_ns))
        start_ns, end_ns, number = start_ns[order], end_ns[order], number[order]
        depth = _depths(start_ns, end_ns)
        self._levels = [
            (start_ns[depth == level], end_ns[depth == level], number[depth == level])
            for level in range(int(depth.max(initial=-1)) + 1)
        ]

    def find(self, moment_ns: Numbers) -> Numbers:
        """Return the number of the innermost interval that contains each time; NO_RANGE if there is none."""
        found = np.full(len(moment_ns), NO_RANGE, np.int64)
        for (
            start_ns,
            end_ns,
            number,
        ) in self._levels:  # from the outermost level in, so that inner ones overwrite
            place = np.searchsorted(start_ns, moment_ns, side="right") - 1
            inside = (place >= 0) & (moment_ns <= end_ns[place])
            found[inside] = number[place[inside]]
        return found


class EnclosingRanges:
    """The ranges of a trace by thread; `actions` has action (its number), thread, start_ns, end_ns, is_backward."""

    def __init__(self, actions: pl.DataFrame) -> None:
        self._by_thread: dict[int, Intervals] = {}
        self._backwards: dict[int, Intervals] = {}
        process = process_of(actions["thread"].to_numpy())
        for (thread,), own in actions.group_by("thread"):
            self._by_thread[thread] = _intervals(own)
        backward = actions["is_backward"].to_numpy()
        for number in np.unique(process[backward]):
            self._backwards[int(number)] = _intervals(actions.filter((process == number) & backward))

    def find(self, thread: Numbers, moment_ns: Numbers) -> Numbers:
        """Return the action that encloses each call; NO_RANGE if there is none."""
        found = np.full(len(thread), NO_RANGE, np.int64)
        for one in np.unique(thread).tolist():
            intervals = self._by_thread.get(one) or self._backwards.get(int(process_of(np.int64(one))))
            if intervals is not None:
                own = thread == one
                found[own] = intervals.find(moment_ns[own])
        return found


def _intervals(actions: pl.DataFrame) -> Intervals:
    return Intervals(*(actions[name].to_numpy() for name in ("start_ns", "end_ns", "action")))


def _depths(start_ns: Numbers, end_ns: Numbers) -> Numbers:
    """Return the nesting depth of each of the sorted intervals."""
    depths = np.zeros(len(start_ns), np.int64)
    open_ends: list[int] = []
    for place, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        depths[place] = len(open_ends)
        open_ends.append(end)
    return depths
