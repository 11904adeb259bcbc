"""What an iteration waits for between two steps, where ranks meet at collectives: a path back over all ranks.

From the rank that begins the next step, the path goes back in time to the collective that this rank waited for, then to
the rank that came last to it, and so on until the last window of the step before has ended. Only what is on this path
made the iteration longer: an optimizer step or a checkpoint of a rank that others did not wait for did not. What
follows the last collective is not part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.iteration.activities import ACTIVITIES, OTHER, REDUCTION
from stagescope.model.coverage import covered_ns
from stagescope.model.segments import search_segments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stagescope.analysis.iteration.activities import ActivityUnions

    Integers = NDArray[np.int64]

UNATTRIBUTED = "unattributed"
SCHEMA = {
    "step": pl.Int32,
    "rank": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "is_reduction": pl.Boolean,
}


class BetweenSteps(NamedTuple):
    """The paths of all steps, and `unions`: what ranks did between steps, from name_activities, without waits.

    `parts` has step, rank (null: a collective of several ranks), cause and ns; `settled` has step and settled_ns, when
    the last collective on the path was done. What a step has in `parts` sums to the time from the end of its last
    window until then.
    """

    parts: pl.DataFrame
    settled: pl.DataFrame
    unions: ActivityUnions


def find_between_steps(
    meetings: pl.DataFrame, turns: pl.DataFrame, steps: pl.DataFrame, unions: ActivityUnions
) -> BetweenSteps:
    """Return the paths of the whole steps in `steps`, the table ITERATION_STEPS.

    `meetings` is the table MEETINGS, `turns` is from find_turns, `unions` are those of without_waits.
    """
    starts = turns.group_by("step").agg(rank=pl.col("rank").sort_by("began_ns", "rank").first())
    following = starts.select(pl.col("step") - 1, begins="rank")
    asked = steps.filter("is_whole", pl.col("last_end_ns") < pl.col("end_ns")).join(following, on="step")
    asked = asked.filter(pl.col("step").is_in(meetings["step"].unique().implode()))
    pieces = [pl.DataFrame(each, schema=SCHEMA) for each in _walk(meetings, asked)]
    path = pl.concat([pl.DataFrame(schema=SCHEMA), *pieces]).filter(pl.col("end_ns") > pl.col("start_ns"))
    settled = path.group_by("step").agg(settled_ns=pl.max("end_ns"))
    return BetweenSteps(_divide(path, unions), settled, unions)


def _walk(meetings: pl.DataFrame, steps: pl.DataFrame) -> Iterator[dict[str, object]]:
    """Yield pieces of all paths, from the last meeting backwards: that of the meeting, and the time before it."""
    ordered = meetings.sort("step", "rank", "arrived_ns")
    arrived, done, last_ns, last_rank, waited, reduces = (
        ordered[name].to_numpy() for name in ("arrived_ns", "done_ns", "last_ns", "last_rank", "waited", "is_reduction")
    )  # fmt: skip
    keys = _key(ordered["step"].to_numpy(), ordered["rank"].to_numpy())
    step, low_ns, at_ns, rank = (
        steps[name].to_numpy() for name in ("step", "last_end_ns", "end_ns", "begins")
    )
    is_first = True
    for _ in range(ordered.height + 1):
        key = _key(step, rank)
        first, stop = (np.searchsorted(keys, key, side=side) for side in ("left", "right"))
        meeting = search_segments(arrived, first, stop, at_ns) - 1
        has = meeting >= first
        own_since_ns = np.where(has, np.minimum(done[meeting], at_ns), low_ns) if len(done) else low_ns
        if not is_first:
            yield _piece(step, rank, np.maximum(own_since_ns, low_ns), at_ns)
        goes_on = has & (own_since_ns > low_ns)
        step, low_ns, rank, meeting = step[goes_on], low_ns[goes_on], rank[goes_on], meeting[goes_on]
        if not len(step):
            return
        is_first = False
        done_ns = np.minimum(done[meeting], at_ns[goes_on])
        # A rank that had gone on before the last one came did not wait for it.
        came_ns = np.minimum(np.where(waited[meeting], last_ns[meeting], arrived[meeting]), done_ns)
        piece = _piece(step, rank, np.maximum(came_ns, low_ns), done_ns)
        yield {**piece, "rank": [None] * len(step), "is_reduction": reduces[meeting]}
        rank = np.where(waited[meeting], last_rank[meeting], rank)
        at_ns = came_ns


def _key(step: np.ndarray, rank: np.ndarray) -> Integers:
    key: Integers = (step.astype(np.int64) << 32) + rank
    return key


def _piece(step: np.ndarray, rank: np.ndarray, start_ns: Integers, end_ns: Integers) -> dict[str, object]:
    none = np.zeros(len(step), dtype=np.bool_)
    return {"step": step, "rank": rank, "start_ns": start_ns, "end_ns": end_ns, "is_reduction": none}


def _divide(path: pl.DataFrame, unions: ActivityUnions) -> pl.DataFrame:
    """Return the pieces of paths by cause: what the rank was recorded to do, or unattributed."""
    own = path.filter(pl.col("rank").is_not_null())
    windows = own.select("rank", window_start_ns="start_ns", window_end_ns="end_ns")
    length_ns = own["end_ns"] - own["start_ns"]
    reached = [covered_ns(windows, united) for united in unions.first_of_each()]
    times = [each - before for each, before in zip(reached, [0 * length_ns, *reached], strict=False)]
    parts = [
        own.select("step", "rank", cause=pl.lit(name), ns=each)
        for name, each in zip((*ACTIVITIES, UNATTRIBUTED), [*times, length_ns - reached[-1]], strict=True)
    ]
    met = path.filter(pl.col("rank").is_null()).select(
        "step",
        "rank",
        cause=pl.when("is_reduction").then(pl.lit(REDUCTION)).otherwise(pl.lit(OTHER)),
        ns=pl.col("end_ns") - pl.col("start_ns"),
    )
    sums = pl.concat([*parts, met]).group_by("step", "rank", "cause").agg(pl.sum("ns"))
    return sums.filter(pl.col("ns") > 0).sort("step", "rank", "cause")
