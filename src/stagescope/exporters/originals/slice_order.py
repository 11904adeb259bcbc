"""The order of begins and ends of slices in which they nest, also where several are at one time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from stagescope.exporters.originals.events import OriginalEvents


def slice_order(events: OriginalEvents) -> npt.NDArray[np.int64]:
    """Return twice the row of a slice for its begin, and one more for its end, in order.

    At one time, ends come before begins, inner ends first and outer begins first. A slice without length begins and
    ends after all others that end then. The arrays need 34 bytes per begin or end.
    """
    count = len(events.slices)
    start_ns = np.fromiter((each.start_ns for each in events.slices), np.int64, count)
    end_ns = np.fromiter((each.end_ns for each in events.slices), np.int64, count)
    rows = np.arange(count)
    at_ns = np.stack([start_ns, end_ns], axis=1).ravel()
    has_length = start_ns != end_ns
    is_late = np.stack([np.ones(count, np.bool_), ~has_length], axis=1).ravel()
    depth = np.stack([rows, np.where(has_length, -_depths(events), rows)], axis=1).ravel()
    last = np.stack([np.zeros(count, np.int64), np.where(has_length, -rows, 1)], axis=1).ravel()
    return np.lexsort((last, depth, is_late, at_ns))


def _depths(events: OriginalEvents) -> npt.NDArray[np.int64]:
    """Return how many slices of its track are around each slice; slices come by start, outer ones first."""
    depths = np.zeros(len(events.slices), np.int64)
    open_ends: dict[int, list[int]] = {}
    for row, each in enumerate(events.slices):
        ends = open_ends.setdefault(each.track, [])
        while ends and ends[-1] <= each.start_ns:
            ends.pop()
        depths[row] = len(ends)
        ends.append(each.end_ns)
    return depths
