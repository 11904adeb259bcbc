"""What every rank does between its actions of one step and those of the next one.

    gap = from the end of the last action of all replicas of a rank to its first action that waited for no input

In schedules such as ZB-V a rank begins the next step while others still end this one. Then an iteration is shorter than
a window, and only the gaps of the ranks show what lies between two steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.graph.replay import ready_times
from stagescope.analysis.iteration.activities import ACTIVITIES, ActivityUnions, name_activities
from stagescope.model.coverage import covered_ns
from stagescope.vocabulary.kinds import ACTION_KINDS, COLLECTIVE, TRANSFERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay_basis import ReplayBasis
    from stagescope.analysis.graph.step_groups import StepGroups

    Integers = NDArray[np.int64]

LEAST_EARLY_FRACTION = 0.002
"""Steps overlap if the ranks that begin a step end the one before this part of an iteration before the others."""

NONE = -1
HALF = 0.5
"""In more steps than this part of all, ranks must go on a fixed time after their own end."""

MOST_NEGATIVE = 0.05
"""Replicas do not wait for each other if more of the gaps than this part would be negative."""


@dataclass(frozen=True)
class StepGaps:
    """The gaps of a run; all arrays have an entry per rank and step, as in `StepGroups.ranks`.

    `first` and `last` are the numbers of its first and last action, `following` its row in the next step, NONE if that
    was not recorded, `group` the number of its replicas in this step, and `is_source` whether its first action needs no
    other rank. `before_ns` is the gap before the step by part: the ACTIVITIES, `launch`, which is a delay of the first
    action, and `pause`, in which nothing was recorded. Without a step before, it begins with the iteration. `after_ns`
    is the gap after a step without a next one. `ended_ns` is when the last of the replicas has ended its actions.
    """

    first: Integers
    last: Integers
    following: Integers
    group: Integers
    is_source: NDArray[np.bool_]
    before_ns: dict[str, Integers]
    after_ns: dict[str, Integers]
    ended_ns: Integers


def find_step_gaps(
    actions: Actions, basis: ReplayBasis, groups: StepGroups, spans: pl.DataFrame, steps: pl.DataFrame
) -> StepGaps:
    """Return the gaps; `basis` and `groups` are of these actions, `steps` is the table ITERATION_STEPS."""
    first = groups.first_of_rank
    last = np.append(first[1:], groups.actions) - 1
    start_ns, end_ns = (actions.table[name].to_numpy() for name in ("start_ns", "end_ns"))
    arrived_ns = ready_times(basis.plan, end_ns, basis.lag_ns)[first]
    following, begins_ns, ends_ns = _neighbors(groups, steps)
    group, ended_ns = _replicas(actions, last, following, start_ns[first])
    goes_on = following != NONE
    has_before = np.zeros(len(first), dtype=np.bool_)
    has_before[following[goes_on]] = True
    since_ns = begins_ns
    since_ns[following[goes_on]] = ended_ns[goes_on]
    waits = (*TRANSFERS, COLLECTIVE, *ACTION_KINDS)
    unions = ActivityUnions(name_activities(spans.filter(~pl.col("kind").is_in(waits))))
    ranks = groups.ranks["rank"]
    before = _activities(unions, ranks, since_ns, start_ns[first])
    before |= _idle_parts(start_ns[first], arrived_ns, since_ns + sum(before.values()), has_before)
    needs = np.zeros(groups.actions, dtype=np.bool_)
    needs[actions.needs["action"].to_numpy()] = True
    return StepGaps(
        first,
        last,
        following,
        group,
        ~needs[first],
        before,
        _activities(unions, ranks, ended_ns, ends_ns),
        ended_ns,
    )


def steps_overlap(
    gaps: StepGaps, groups: StepGroups, spans: pl.DataFrame, steps: pl.DataFrame, meetings: pl.DataFrame
) -> bool:
    """Return whether the ranks that begin a step do so without waiting for the last end of the one before.

    `steps` is the table ITERATION_STEPS, `meetings` the table MEETINGS. Where no window reaches into the next step, as
    before a long reduction, only ranks that each optimize a fixed time after their own end show that they do not wait
    for all others. After a step whose ranks meet at a collective between the optimizer and the next step, they do wait.
    """
    rows = np.flatnonzero(gaps.following != NONE)
    ends = groups.ranks[rows].with_columns(
        ended=pl.Series(gaps.ended_ns[rows]), is_source=pl.Series(gaps.is_source[gaps.following[rows]])
    )
    optimized = spans.filter(pl.col("kind") == "optimizer").select("rank", "start_ns", optimized="start_ns")
    known = ends.sort("ended").join_asof(
        optimized.sort("start_ns"),
        left_on="ended",
        right_on="start_ns",
        by="rank",
        strategy="forward",
        check_sortedness=False,
    )
    gap = pl.col("optimized") - pl.col("ended")
    of_steps = (
        known.join(steps.rename({"start_ns": "begin_ns"}), on="step")
        .join(_meeting_steps(groups.ranks, meetings), on="step", how="left")
        .group_by("step")
        .agg(
            length=pl.first("end_ns") - pl.first("begin_ns"),
            early=pl.first("last_end_ns") - pl.col("ended").filter("is_source").max(),
            overlap=pl.first("last_end_ns") - pl.first("end_ns"),
            goes_on=(gap.max() - gap.min() < pl.max("optimized") - pl.min("optimized")).fill_null(value=False)
            & pl.col("meets").is_null().all(),
        )
    )
    least_ns = LEAST_EARLY_FRACTION * _mean(of_steps["length"])
    if not of_steps.height or _mean(of_steps["early"]) <= least_ns:
        return False
    return _mean(of_steps["overlap"]) > least_ns or _mean(of_steps["goes_on"]) > HALF


def _meeting_steps(ranks: pl.DataFrame, meetings: pl.DataFrame) -> pl.DataFrame:
    """Return the steps after which all ranks of every pipeline met at a collective and waited for the last one there.

    Columns: step and meets, which is true. `ranks` has a row per rank and step.
    """
    keys = ["step", "pipeline"]
    waited = meetings.filter(pl.col("waited") & (pl.col("done_ns") >= pl.col("last_ns")))
    together = waited.join(ranks.select(*keys, "rank"), on=["step", "rank"])
    present = together.group_by(*keys, "group", "sequence").agg(present=pl.col("rank").n_unique())
    most = present.group_by(keys).agg(pl.max("present"))
    sizes = ranks.group_by(keys).agg(size=pl.col("rank").n_unique())
    met = (
        sizes.join(most, on=keys, how="left")
        .group_by("step")
        .agg(meets=(pl.col("present") == pl.col("size")).fill_null(value=False).all())
    )
    return met.filter("meets")


def _mean(values: pl.Series) -> float:
    return float(values.cast(pl.Float64).sum()) / max(len(values), 1)


def _idle_parts(
    start_ns: Integers, arrived_ns: Integers, free_ns: Integers, has_before: NDArray[np.bool_]
) -> dict[str, Integers]:
    """Return how long the first actions took to be launched, and the pauses before: as long as usual if hidden."""
    idle_ns = np.maximum(start_ns - np.maximum(arrived_ns, free_ns), 0)
    is_hidden = arrived_ns > free_ns
    usual_ns = int(np.median(idle_ns[is_hidden])) if is_hidden.any() else 0
    launch_ns = np.minimum(idle_ns, usual_ns)
    rest_ns, is_seen = idle_ns - launch_ns, has_before & ~is_hidden
    usual_ns = int(np.median(rest_ns[is_seen])) if is_seen.any() else 0
    hidden_ns = np.minimum(np.maximum(arrived_ns - free_ns, 0), usual_ns) * has_before
    return {"launch": launch_ns, "pause": np.where(is_seen, rest_ns, hidden_ns)}


def _neighbors(groups: StepGroups, steps: pl.DataFrame) -> tuple[Integers, Integers, Integers]:
    """Return the row of each rank in the next step, and when the iterations of its step begin and end."""
    rows = groups.ranks.with_row_index("row").join(
        steps.select("step", "start_ns", "end_ns", "is_whole"), on="step", how="left", maintain_order="left"
    )
    later = rows.select("rank", pl.col("row").cast(pl.Int64).alias("next_row"), step=pl.col("step") - 1)
    joined = rows.join(later, on=["rank", "step"], how="left", maintain_order="left")
    following = pl.when("is_whole").then("next_row").fill_null(NONE)
    found = joined.select(following.alias("following"), "start_ns", "end_ns")
    return tuple(found[name].to_numpy().astype(np.int64) for name in found.columns)  # type: ignore[return-value]


def _replicas(
    actions: Actions, last: Integers, following: Integers, start_ns: Integers
) -> tuple[Integers, Integers]:
    """Return the replicas of every row by number, and when the last of them has ended its actions.

    Without a common end before every next step, each rank is on its own.
    """
    stages = (
        actions.table.group_by("pipeline", "step", "rank", "stage", maintain_order=True)
        .agg()
        .sort("pipeline", "step", "rank", "stage")
        .group_by("pipeline", "step", "rank", maintain_order=True)
        .agg(stages="stage")
        .with_columns(pl.col("stages").cast(pl.List(pl.String)).list.join(" "))
    )
    own = np.arange(len(last))
    shared = (
        stages.select(pl.struct("step", "stages").rank("dense").cast(pl.Int64) - 1).to_series().to_numpy()
    )
    end_ns = actions.table["end_ns"].to_numpy()[last]
    latest_ns = np.full(int(shared.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(latest_ns, shared, end_ns)
    goes_on = following != NONE
    negative = start_ns[following[goes_on]] < latest_ns[shared[goes_on]]
    if len(negative) and negative.mean() > MOST_NEGATIVE:
        return own, end_ns
    return shared, latest_ns[shared]


def _activities(
    unions: ActivityUnions, ranks: pl.Series, since_ns: Integers, until_ns: Integers
) -> dict[str, Integers]:
    """Return how much of each interval each activity covers."""
    interval = pl.DataFrame({"rank": ranks, "window_start_ns": since_ns, "window_end_ns": until_ns})
    interval = interval.with_columns(
        pl.max_horizontal("window_start_ns", "window_end_ns").alias("window_end_ns")
    )
    reached = [covered_ns(interval, each).to_numpy() for each in unions.first_of_each()]
    return {name: more - less for name, more, less in zip(ACTIVITIES, reached, [0, *reached], strict=False)}
