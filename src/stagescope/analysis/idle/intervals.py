"""Why every idle stretch of a rank was idle: what it waited for, to the nanosecond.

A gap is a stretch inside the pipeline's window in which nothing ran on the rank's compute lane, as in `step_bubbles`.
Of the operation that ends it, the input counts that was there latest. Let e be the start of the gap, q the end
of the operation that made this input, y its arrival, s the end of the gap; all clipped to the gap, it is cut into

    [e, q)  wait_compute        the producer was not through, or had not even begun
    [q, y)  transfer            the input was on its way (also: the receive had not been posted or noticed)
    [y, s)  launch              everything was there; the host had not launched the operation yet

so that the pieces of all gaps add up to the rank's idle time. What is not recorded is not guessed: without an arrival
[q, s) is `transfer_or_launch`; where the operation needed something else of which nothing was recorded, what is left
after the inputs that are known is `not_known`. A gap before compute that is no operation of the step (a loss, an
optimizer step, the next step's job) is `other_work`: what such work waits for is not recorded. A gap after the
rank's last operation is `done`: it waits for nothing on this rank, only the others are not through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.latest_inputs import NO_OPERATION
from stagescope.analysis.idle.stretches import find_idle_stretches
from stagescope.model.segments import search_segments
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.latest_inputs import LatestInputs
    from stagescope.analysis.graph.operations import Operations

    Integers = NDArray[np.int64]

CAUSES = (
    "wait_compute",
    "transfer",
    "launch",
    "transfer_or_launch",
    "not_known",
    "other_work",
    "done",
)
WAIT_COMPUTE, TRANSFER, LAUNCH, TRANSFER_OR_LAUNCH, NOT_KNOWN, OTHER_WORK, DONE = range(len(CAUSES))
CauseType = pl.Enum(list(CAUSES))
POSITIONS = ("leading", "inner", "trailing")
LEADING, INNER, TRAILING, NOWHERE = range(len(POSITIONS) + 1)
PositionType = pl.Enum(list(POSITIONS))
CAUSE_NAMES = pl.Series(CAUSES, dtype=CauseType)
POSITION_NAMES = pl.Series([*POSITIONS, None], dtype=PositionType)

IDLE_GAPS = Table(
    "idle_gaps",
    "one piece of an idle gap that has one cause; the pieces of a gap follow each other",
    ("step", "rank", "start_ns"),
    (
        Column("gap", pl.UInt32, "", "Number of the gap that it is a piece of."),
        Column("pipeline", pl.Int32, "", "Smallest recorded rank of the rank's pipeline."),
        Column("step", pl.Int32, "", "Training step of the window."),
        Column("rank", pl.Int32, "", "Global rank that was idle."),
        Column(
            "position",
            PositionType,
            "",
            "leading: before the rank's first operation of the step; trailing: after its last; null: no operation.",
            nullable=True,
        ),
        Column("cause", CauseType, "", "Why it was idle, as defined in analysis/idle/intervals.py."),
        Column("start_ns", pl.Int64, "ns", "Start of the piece."),
        Column("end_ns", pl.Int64, "ns", "End of the piece."),
        Column("waits_for_rank", pl.Int32, "", "Rank of the operation waited for.", nullable=True),
        Column("waits_for_op", pl.UInt32, "", "Operation that made the input waited for.", nullable=True),
        Column("waits_for_row", pl.UInt32, "", "Row of it in the timeline's spans.", nullable=True),
        Column("before_op", pl.UInt32, "", "Operation that ended the gap.", nullable=True),
        Column("before_row", pl.UInt32, "", "Row of it in the timeline's spans.", nullable=True),
    ),
)

GAP_LINKS = Table(
    "gap_links",
    "one idle gap that waited for an operation",
    ("gap",),
    (
        Column("gap", pl.UInt32, "", "Number of the gap."),
        Column("waited_row", pl.UInt32, "", "Row in spans of the job that was waited for."),
        Column("waiting_row", pl.UInt32, "", "Row in spans of the job that waited."),
        Column("start_ns", pl.Int64, "ns", "Start of the gap's first piece that waits for it."),
        Column("wait_compute_ns", pl.Int64, "ns", "Waited for its end."),
        Column(
            "transfer_ns",
            pl.Int64,
            "ns",
            "Waited for its result to arrive; launch included if not told apart.",
        ),
    ),
)

WAITS = (WAIT_COMPUTE, TRANSFER, TRANSFER_OR_LAUNCH)
PIECES = 3
"""A gap has up to three: before the producer's end, before the arrival, and the rest."""


class _Gaps(NamedTuple):
    """Gaps, ordered by step, rank and start: their window, bounds, and the operation that comes next."""

    window: Integers
    start_ns: Integers
    end_ns: Integers
    following: Integers
    position: NDArray[np.uint8]
    rest: NDArray[np.uint8]


def find_idle_gaps(
    bubbles: pl.DataFrame, busy: pl.DataFrame, operations: Operations, inputs: LatestInputs
) -> pl.DataFrame:
    """Return the table IDLE_GAPS: every idle nanosecond of every rank and step, cut by cause.

    `bubbles` is what step_bubbles, `busy` what unite returns for all spans on the compute lane, `operations` what
    find_operations and `inputs` what find_latest_inputs returns. The pieces of a step and rank add up to its
    `idle_ns` exactly, whatever the clocks did. Where windows of two steps overlap, each has its own gaps, as it has
    its own idle time.
    """
    gaps = _find_gaps(bubbles, busy, operations, inputs)
    return _table(gaps, inputs, bubbles, operations)


def link_gaps(gaps: pl.DataFrame) -> pl.DataFrame:
    """Return the table GAP_LINKS: from which job's result each gap of IDLE_GAPS waited for which job."""
    length_ns = pl.col("end_ns") - pl.col("start_ns")
    is_compute = pl.col("cause") == CAUSES[WAIT_COMPUTE]
    waits = gaps.lazy().filter(pl.col("waits_for_row").is_not_null())
    links = waits.group_by("gap").agg(
        pl.first("waits_for_row").alias("waited_row"),
        pl.first("before_row").alias("waiting_row"),
        pl.min("start_ns"),
        length_ns.filter(is_compute).sum().alias("wait_compute_ns"),
        length_ns.filter(~is_compute).sum().alias("transfer_ns"),
    )
    return links.select(GAP_LINKS.names).sort(GAP_LINKS.order).collect()


def _find_gaps(
    bubbles: pl.DataFrame, busy: pl.DataFrame, operations: Operations, inputs: LatestInputs
) -> _Gaps:
    """Return the gaps of all windows, each with the operation that ends it."""
    window, start_ns, end_ns = find_idle_stretches(bubbles, busy)
    first, stop = _operations_of(bubbles, operations)
    op_start_ns = operations.ops["start_ns"].to_numpy()
    following = search_segments(op_start_ns, first[window], stop[window], end_ns)
    is_last = following == stop[window]
    position = np.where(is_last, TRAILING, np.where(following == first[window], LEADING, INNER)).astype(
        np.uint8
    )
    # An operation ends the gap only if it starts there: else it was compute that is no operation of this step.
    is_ended = np.zeros(len(window), dtype=np.bool_)
    is_ended[~is_last] = op_start_ns[following[~is_last]] == end_ns[~is_last]
    rest = np.where(is_last, DONE, OTHER_WORK).astype(np.uint8)
    ending = following[is_ended]
    rest[is_ended] = np.where(
        inputs.is_lost[ending], NOT_KNOWN, np.where(inputs.is_timed[ending], LAUNCH, TRANSFER_OR_LAUNCH)
    )
    has_no_operation = (first == stop)[window]
    rest[has_no_operation] = NOT_KNOWN
    position[has_no_operation] = NOWHERE
    following[~is_ended] = NO_OPERATION
    return _Gaps(window, start_ns, end_ns, following, position, rest)


def _operations_of(bubbles: pl.DataFrame, operations: Operations) -> tuple[Integers, Integers]:
    """Return where the operations of each window's step and rank begin and stop; 0 and 0 where there are none."""
    bounds = operations.ops.group_by("step", "rank").agg(pl.min("op").alias("first"), pl.len().alias("count"))
    rows = bubbles.select("step", "rank").join(bounds, on=["step", "rank"], how="left", maintain_order="left")
    first = rows["first"].fill_null(0).to_numpy().astype(np.int64)
    return first, first + rows["count"].fill_null(0).to_numpy().astype(np.int64)


def _cut(gaps: _Gaps, inputs: LatestInputs) -> Integers:
    """Return the four bounds of the three pieces of each gap, some of them empty."""
    is_ended = gaps.following != NO_OPERATION
    ending = gaps.following[is_ended]
    bounds = np.stack([gaps.start_ns, gaps.start_ns, gaps.start_ns, gaps.end_ns], axis=1)
    for column, moment_ns in ((1, inputs.made_ns), (2, inputs.there_ns)):
        bounds[is_ended, column] = moment_ns[ending]
    np.clip(bounds, gaps.start_ns[:, None], gaps.end_ns[:, None], out=bounds)
    return bounds


def _table(gaps: _Gaps, inputs: LatestInputs, bubbles: pl.DataFrame, operations: Operations) -> pl.DataFrame:
    """Return the pieces that are not empty as the declared table."""
    bounds = _cut(gaps, inputs)
    start_ns, end_ns = bounds[:, :-1].ravel(), bounds[:, 1:].ravel()
    pieces = np.flatnonzero(end_ns > start_ns)
    gap, number = pieces // PIECES, (pieces % PIECES).astype(np.uint8)
    cause = np.where(number == PIECES - 1, gaps.rest[gap], number)
    following = gaps.following[gap]
    waits = np.isin(cause, WAITS)
    producer = np.full(len(gap), NO_OPERATION, dtype=np.int64)
    producer[waits] = inputs.producer[following[waits]]
    ops = operations.ops
    waits_for_op, before_op = _numbers(producer), _numbers(following)
    columns = {
        "gap": pl.Series(gap, dtype=pl.UInt32),
        **bubbles.select("pipeline", "step", "rank")[gaps.window[gap]].to_dict(),
        "position": POSITION_NAMES.gather(gaps.position[gap]),
        "cause": CAUSE_NAMES.gather(cause),
        "start_ns": start_ns[pieces],
        "end_ns": end_ns[pieces],
        "waits_for_rank": ops["rank"].gather(waits_for_op),
        "waits_for_op": waits_for_op,
        "waits_for_row": ops["row"].gather(waits_for_op),
        "before_op": before_op,
        "before_row": ops["row"].gather(before_op),
    }
    return pl.DataFrame(columns, schema=dict(IDLE_GAPS.schema))


def _numbers(operations: Integers) -> pl.Series:
    """Return numbers of operations with null for NO_OPERATION."""
    number = pl.col("number")
    frame = pl.DataFrame({"number": operations})
    return frame.select(pl.when(number != NO_OPERATION).then(number).cast(pl.UInt32)).to_series()
