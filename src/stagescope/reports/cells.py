"""Spans as character cells: the dominant kind of each cell, and the span that owns it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

IDLE = -1
EIGHTHS = 8
HALF = 4


class Line(NamedTuple):
    """The spans of one text line, sorted by start: edges in cells from the left, and the look of each.

    A look is a pair of kind and shade. `look_of_span` has the number of each span's look, `kind_of_look` the kind of
    each look.
    """

    start: Floats
    end: Floats
    look_of_span: Integers
    kind_of_look: Integers


class SplitCells(NamedTuple):
    """Cells with a boundary: look `left` fills the first `eighths` eighths, `right` the others; IDLE is no look."""

    left: Integers
    right: Integers
    eighths: Integers


def covered(start: Floats, end: Floats, edges: Floats) -> Floats:
    """Return the length of each bin between `edges` that the intervals cover, all in the same unit."""
    if not len(start):
        return np.zeros(len(edges) - 1)
    until = _time_since(np.sort(start), edges) - _time_since(np.sort(end), edges)
    return np.diff(until)


def _time_since(moments: Floats, edges: Floats) -> Floats:
    """Return for each edge the sum of (edge - moment) over the earlier moments."""
    sums = np.concatenate([[0.0], np.cumsum(moments)])
    count = np.searchsorted(moments, edges)
    since: Floats = count * edges - sums[count]
    return since


def split_cells(line: Line, cell_count: int) -> SplitCells:
    """Return cells, with a single boundary rounded to an eighth of the cell and several boundaries to a half."""
    edges = np.arange(cell_count * EIGHTHS + 1) / EIGHTHS
    share = np.array([covered(*_of_look(line, look), edges) for look in range(len(line.kind_of_look))])
    share = share.reshape(len(line.kind_of_look), cell_count, EIGHTHS)
    eighth = dominant(share, line.kind_of_look, 1 / EIGHTHS)
    change = np.diff(eighth, axis=1) != 0
    changes = change.sum(axis=1)
    halves = dominant(share.reshape(-1, cell_count, 2, HALF).sum(axis=3), line.kind_of_look, HALF / EIGHTHS)
    once = changes <= 1
    left = np.where(once, eighth[:, 0], halves[:, 0])
    right = np.where(once, eighth[:, -1], halves[:, 1])
    boundary = np.where(once, change.argmax(axis=1) + 1, HALF)
    return SplitCells(left, right, np.where(left == right, EIGHTHS, boundary))


def owners(line: Line, cell_count: int) -> Integers:
    """Return the span that owns each cell, IDLE if most of the cell is idle.

    A cell belongs to the kind that covers most of it, and to the span of that kind with the largest part. A span at
    least as wide as a cell owns the cells whose middle it covers, therefore always at least one.
    """
    edges = np.arange(cell_count + 1, dtype=np.float64)
    share = np.array([covered(*_of_look(line, look), edges) for look in range(len(line.kind_of_look))])
    look = dominant(share.reshape(-1, cell_count), line.kind_of_look, 1.0)
    kind = np.append(line.kind_of_look, 0)[look]
    owner = np.where(look == IDLE, IDLE, _largest_spans(line, cell_count)[kind, np.arange(cell_count)])
    first, last = np.ceil(line.start - 0.5).astype(int), np.ceil(line.end - 0.5).astype(int)
    for span in np.flatnonzero(line.end - line.start >= 1):
        owner[max(first[span], 0) : last[span]] = span
    return owner


def dominant(share: Floats, kind_of_look: Integers, whole: float) -> Integers:
    """Return the dominant look of each bin: the largest look of the kind that covers most of it.

    `share` has one plane per look. The result is IDLE if no kind covers as much of the bin as is idle; `whole` is the
    length of a bin.
    """
    if not len(share):
        return np.full(share.shape[1:], IDLE)
    kinds = np.unique(kind_of_look)
    by_kind = np.array([share[kind_of_look == kind].sum(axis=0) for kind in kinds])
    idle = whole - by_kind.sum(axis=0)
    is_dominant = kind_of_look.reshape(-1, *[1] * (share.ndim - 1)) == kinds[by_kind.argmax(axis=0)]
    look = np.where(is_dominant, share, -1.0).argmax(axis=0)
    return np.where(by_kind.max(axis=0) >= np.maximum(idle, 1e-9), look, IDLE)


def _of_look(line: Line, look: int) -> tuple[Floats, Floats]:
    own = line.look_of_span == look
    return line.start[own], line.end[own]


def _largest_spans(line: Line, cell_count: int) -> Integers:
    """Return per kind and cell the span of that kind with the largest part of the cell."""
    spans = np.arange(len(line.start))
    kinds = line.kind_of_look[line.look_of_span]
    largest = np.full((line.kind_of_look.max(initial=0) + 1, cell_count), IDLE)
    first = np.clip(np.floor(line.start).astype(int), 0, cell_count - 1)
    last = np.clip(np.ceil(line.end).astype(int) - 1, 0, cell_count - 1)
    cells, span = np.concatenate([first, last]), np.concatenate([spans, spans])
    part = np.minimum(line.end[span], cells + 1) - np.maximum(line.start[span], cells)
    order = np.argsort(part, kind="stable")
    # In order of size, so that the largest part is assigned last and remains.
    largest[kinds[span[order]], cells[order]] = span[order]
    return largest
