"""Idle intervals: when a rank was idle, and what it waited for, to the nanosecond.

An idle interval is a time inside the pipeline's window in which nothing ran on the rank's compute lane, as in
`step_bubbles`. For the action that ends it, the input that arrived latest counts. With the start e of the interval, the
end q of the action that computed this input, the time g at which it could be sent, its arrival y and the end s of the
interval, all clipped to the interval, it is cut into

    [e, q)  compute    the producer had not finished, or not even started
    [q, g)  reduction  the producer's rank waited for a reduction of gradients before it sent the input
    [g, r)  reduction  the rank itself waited for a reduction of gradients until r, and could not receive
    [r, y)  transfer   the input was in transit; also: the receive was not posted or not noticed yet
    [y, s)  launch     all inputs had arrived; the host had not launched the action yet

and the pieces of all intervals sum to the rank's idle time. Nothing is guessed: without an
arrival [q, s) is `transfer_or_launch`. If the action needed another input that was not recorded, the rest after the
known inputs is `unknown`. An interval before other compute (a loss, an optimizer step, an action of the next step) is
`other_work`: what such work waits for is not recorded. An interval after the rank's last action is `nothing`: the rank
is done, and only other ranks still run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.latest_inputs import NO_ACTION
from stagescope.analysis.idle.window_intervals import find_idle_in_windows
from stagescope.model.segments import search_segments
from stagescope.model.tables import Column, Table
from stagescope.vocabulary.causes import CAUSES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.latest_inputs import LatestInputs

    Integers = NDArray[np.int64]

WAITS = (
    "compute",
    "reduction",
    "transfer",
    "launch",
    "transfer_or_launch",
    "unknown",
    "other_work",
    "nothing",
)
COMPUTE, REDUCTION, TRANSFER, LAUNCH, TRANSFER_OR_LAUNCH, UNKNOWN, OTHER_WORK, NOTHING = range(len(WAITS))
WaitType = pl.Enum(list(WAITS))
CauseType = pl.Enum([cause.name for cause in CAUSES])
POSITIONS = ("leading", "inner", "trailing")
LEADING, INNER, TRAILING, NOWHERE = range(len(POSITIONS) + 1)
PositionType = pl.Enum(list(POSITIONS))
WAIT_NAMES = pl.Series(WAITS, dtype=WaitType)
POSITION_NAMES = pl.Series([*POSITIONS, None], dtype=PositionType)

IDLE_INTERVALS = Table(
    "idle_intervals",
    "one piece of an idle interval, in which the rank waited for one thing; the pieces of an interval are contiguous",
    ("step", "rank", "start_ns"),
    (
        Column("interval", pl.UInt32, "", "Number of the interval that the piece belongs to."),
        Column("pipeline", pl.Int32, "", "Smallest recorded rank of the rank's pipeline."),
        Column("step", pl.Int32, "", "Training step of the window."),
        Column("rank", pl.Int32, "", "Global rank that was idle."),
        Column(
            "position",
            PositionType,
            "",
            "leading: before the rank's first action of the step; trailing: after its last; null: no action.",
            nullable=True,
        ),
        Column(
            "waiting_for", WaitType, "", "What the rank waited for, as defined in analysis/idle/intervals.py."
        ),
        Column("start_ns", pl.Int64, "ns", "Start of the piece."),
        Column("end_ns", pl.Int64, "ns", "End of the piece."),
        Column("waits_for_rank", pl.Int32, "", "Rank of the action waited for.", nullable=True),
        Column(
            "waits_for_action", pl.UInt32, "", "Action that computes the input waited for.", nullable=True
        ),
        Column("waits_for_row", pl.UInt32, "", "Its row in the spans of the run.", nullable=True),
        Column("before_action", pl.UInt32, "", "Action that ended the interval.", nullable=True),
        Column("before_row", pl.UInt32, "", "Its row in the spans of the run.", nullable=True),
        Column(
            "cause",
            CauseType,
            "",
            "Cause of the largest part of the piece, as defined in analysis/idle/interval_culprits.py.",
            nullable=True,
        ),
        Column(
            "culprit_rank",
            pl.Int32,
            "",
            "Rank that causes it, of a transfer the sender; null: none.",
            nullable=True,
        ),
        Column(
            "culprit_action",
            pl.UInt32,
            "",
            "Action that takes or starts late by that cause; of a transfer the one that needed it.",
            nullable=True,
        ),
        Column("culprit_row", pl.UInt32, "", "Its row in the spans of the run.", nullable=True),
    ),
)
"""The last four columns are null until name_interval_culprits fills them in, which takes a multiple of the time."""

LINKED_PIECES = (0, 1, 3)
"""Pieces in which another rank is waited for."""

WAITS_OF_PIECES = (COMPUTE, REDUCTION, REDUCTION, TRANSFER)
PIECES = len(WAITS_OF_PIECES) + 1
"""Pieces per interval at most: these, and the rest."""


class _Intervals(NamedTuple):
    """Idle intervals sorted by step, rank and start: their window, bounds, and the action that follows."""

    window: Integers
    start_ns: Integers
    end_ns: Integers
    following: Integers
    position: NDArray[np.uint8]
    rest: NDArray[np.uint8]


def find_idle_intervals(
    bubbles: pl.DataFrame, busy: pl.DataFrame, actions: Actions, inputs: LatestInputs
) -> pl.DataFrame:
    """Return the table IDLE_INTERVALS: every idle nanosecond of every rank and step, cut by waiting_for.

    `bubbles` is from step_bubbles, `busy` the union of all spans on the compute lane, `actions` from find_actions and
    `inputs` from find_latest_inputs. The pieces of a step and rank sum to its `idle_ns` exactly, even with wrong
    clocks. If the windows of two steps overlap, each has its own intervals, as it has its own idle time.
    """
    intervals = _find_intervals(bubbles, busy, actions, inputs)
    return _table(intervals, inputs, bubbles, actions)


def _find_intervals(
    bubbles: pl.DataFrame, busy: pl.DataFrame, actions: Actions, inputs: LatestInputs
) -> _Intervals:
    """Return the idle intervals of all windows, each with the action that ends it."""
    window, start_ns, end_ns = find_idle_in_windows(bubbles, busy)
    first, stop = _actions_of(bubbles, actions)
    action_start_ns = actions.table["start_ns"].to_numpy()
    following = search_segments(action_start_ns, first[window], stop[window], end_ns)
    is_last = following == stop[window]
    position = np.where(is_last, TRAILING, np.where(following == first[window], LEADING, INNER)).astype(
        np.uint8
    )
    # An action ends the interval only if it starts there; otherwise other compute ended it.
    is_ended = np.zeros(len(window), dtype=np.bool_)
    is_ended[~is_last] = action_start_ns[following[~is_last]] == end_ns[~is_last]
    rest = np.where(is_last, NOTHING, OTHER_WORK).astype(np.uint8)
    ending = following[is_ended]
    rest[is_ended] = np.where(
        inputs.is_lost[ending], UNKNOWN, np.where(inputs.is_timed[ending], LAUNCH, TRANSFER_OR_LAUNCH)
    )
    has_no_action = (first == stop)[window]
    rest[has_no_action] = UNKNOWN
    position[has_no_action] = NOWHERE
    following[~is_ended] = NO_ACTION
    return _Intervals(window, start_ns, end_ns, following, position, rest)


def _actions_of(bubbles: pl.DataFrame, actions: Actions) -> tuple[Integers, Integers]:
    """Return the range of actions of each window's step and rank; 0 and 0 if there are none."""
    bounds = actions.table.group_by("step", "rank").agg(
        pl.min("action").alias("first"), pl.len().alias("count")
    )
    rows = bubbles.select("step", "rank").join(bounds, on=["step", "rank"], how="left", maintain_order="left")
    first = rows["first"].fill_null(0).to_numpy().astype(np.int64)
    return first, first + rows["count"].fill_null(0).to_numpy().astype(np.int64)


def _cut(intervals: _Intervals, inputs: LatestInputs, actions: Actions) -> Integers:
    """Return the six bounds of the five pieces of each interval; pieces may be empty."""
    is_ended = intervals.following != NO_ACTION
    ending = intervals.following[is_ended]
    bounds = np.stack([*[intervals.start_ns] * PIECES, intervals.end_ns], axis=1)
    for column, moment_ns in ((1, inputs.made_ns), (2, inputs.sent_ns), (4, inputs.there_ns)):
        bounds[is_ended, column] = moment_ns[ending]
    # Clipping keeps the pieces inside the interval even if clocks put an arrival before the end of its producer.
    np.clip(bounds, intervals.start_ns[:, None], intervals.end_ns[:, None], out=bounds)
    bounds[:, 3] = bounds[:, 2]
    if not actions.reductions.every.is_empty():
        sent_ns, end_ns = (bounds[is_ended, column] for column in (2, PIECES))
        rank = actions.table["rank"].gather(ending)
        bounds[is_ended, 3] = actions.reductions.last_end_ns(rank, sent_ns, end_ns)
        np.maximum(bounds[:, 3], bounds[:, 4], out=bounds[:, 4])
    return bounds


def _table(
    intervals: _Intervals, inputs: LatestInputs, bubbles: pl.DataFrame, actions: Actions
) -> pl.DataFrame:
    """Return the non-empty pieces as the declared table."""
    bounds = _cut(intervals, inputs, actions)
    start_ns, end_ns = bounds[:, :-1].ravel(), bounds[:, 1:].ravel()
    pieces = np.flatnonzero(end_ns > start_ns)
    interval, number = pieces // PIECES, (pieces % PIECES).astype(np.uint8)
    names = np.array([*WAITS_OF_PIECES, NOTHING], dtype=np.uint8)
    waiting_for = np.where(number == PIECES - 1, intervals.rest[interval], names[number])
    following = intervals.following[interval]
    waits = np.isin(number, LINKED_PIECES) | (waiting_for == TRANSFER_OR_LAUNCH)
    producer = np.full(len(interval), NO_ACTION, dtype=np.int64)
    producer[waits] = inputs.producer[following[waits]]
    table = actions.table
    waits_for_action, before_action = _numbers(producer), _numbers(following)
    columns = {
        "interval": pl.Series(interval, dtype=pl.UInt32),
        **bubbles.select("pipeline", "step", "rank")[intervals.window[interval]].to_dict(),
        "position": POSITION_NAMES.gather(intervals.position[interval]),
        "waiting_for": WAIT_NAMES.gather(waiting_for),
        "start_ns": start_ns[pieces],
        "end_ns": end_ns[pieces],
        "waits_for_rank": table["rank"].gather(waits_for_action),
        "waits_for_action": waits_for_action,
        "waits_for_row": table["row"].gather(waits_for_action),
        "before_action": before_action,
        "before_row": table["row"].gather(before_action),
    }
    named = {name: dtype for name, dtype in IDLE_INTERVALS.schema.items() if name in columns}
    unnamed = {
        name: pl.lit(None, dtype) for name, dtype in IDLE_INTERVALS.schema.items() if name not in columns
    }
    return pl.DataFrame(columns, schema=named).with_columns(**unnamed)


def _numbers(actions: Integers) -> pl.Series:
    """Return action numbers with null for NO_ACTION."""
    number = pl.col("number")
    frame = pl.DataFrame({"number": actions})
    return frame.select(pl.when(number != NO_ACTION).then(number).cast(pl.UInt32)).to_series()
