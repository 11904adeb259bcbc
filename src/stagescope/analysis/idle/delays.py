"""The delay of every action: from when it could have started to when it did, divided by what its rank did meanwhile.

An action could have started when the action before it on its rank had ended and its last input had arrived. What its
rank was recorded to do until its start explains the delay: it loaded data, was blocked in a send, waited for gradients
to be reduced or for the last replica to come, still ran the optimizer step of the iteration before, or did other work.
Of the rest, what every action of the run takes to be launched is launch overhead, and only what is beyond that is
unattributed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.replay import ready_times
from stagescope.analysis.graph.replay_basis import TRANSFER_QUANTILE
from stagescope.analysis.iteration.activities import LOADING, OPTIMIZER, name_activities
from stagescope.model.coverage import BOUNDS, covered_ns, unite
from stagescope.vocabulary.kinds import ACTION_KINDS, ALL_SENDS, TRANSFERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.reduction_waits import ReductionWaits
    from stagescope.analysis.graph.replay_basis import ReplayBasis
    from stagescope.analysis.graph.step_groups import StepGroups

    Integers = NDArray[np.int64]

LAUNCH_RATIO = 3
"""A launch may take this many times the median delay of all actions; what is longer has another reason."""


class Delays(NamedTuple):
    """Parts of the delay of every action in nanoseconds, in the order of their causes.

    `sends_ns` is the transfer time of sends that blocked, which is exposed communication; `unexplained_ns` is what is
    left.
    """

    sends_ns: Integers
    gradient_reduction_ns: Integers
    data_parallel_wait_ns: Integers
    blocked_on_send_ns: Integers
    launch_overhead_ns: Integers
    data_loading_ns: Integers
    optimizer_ns: Integers
    other_work_ns: Integers
    unexplained_ns: Integers


class UsualDelays(NamedTuple):
    """What is usual in a run: the median delay without a recorded reason, and the shortest waits for sends.

    `sends` has rank and wait_ns, how long a blocking send of the rank usually takes at least.
    """

    launch_ns: int
    sends: pl.DataFrame


class Covered(NamedTuple):
    """For how many nanoseconds ranks did what delays them, in the order in which their spans are looked at.

    They loaded data, were blocked in sends, reduced gradients, waited for the last replica in that, ran the optimizer
    step, and did other recorded work.
    """

    loading_ns: Integers
    sends_ns: Integers
    reducing_ns: Integers
    replicas_ns: Integers
    optimizer_ns: Integers
    other_ns: Integers


def measure_delays(
    actions: Actions,
    basis: ReplayBasis,
    groups: StepGroups,
    spans: pl.DataFrame | None,
    usual: UsualDelays | None = None,
) -> tuple[Delays, UsualDelays]:
    """Return the explained parts of the delay of every action, and what is usual.

    Without `spans` only the launch overhead is known. `usual` is what is usual in the run; None: in these actions.
    """
    table = actions.table
    start_ns, end_ns = (table[name].to_numpy() for name in ("start_ns", "end_ns"))
    first_ns = groups.first_start_ns(table)[groups.step_of_action()]
    ready_ns = np.minimum(np.maximum(ready_times(basis.plan, end_ns, basis.lag_ns), first_ns), start_ns)
    delays = table.select("rank", window_start_ns=pl.Series(ready_ns), window_end_ns="start_ns")
    covered = cover_delays(delays, spans, actions.reductions)
    sends, rest_ns = covered.sends_ns, start_ns - ready_ns - np.sum(covered, axis=0, dtype=np.int64)
    usual = usual or UsualDelays(int(np.median(rest_ns)) if len(rest_ns) else 0, _usual_waits(spans))
    launch_ns = np.minimum(rest_ns, LAUNCH_RATIO * usual.launch_ns)
    transfer_ns = _bare(np.minimum(sends, _transfer_time(table, usual.sends))) if sends.any() else sends
    explained = Delays(
        transfer_ns,
        covered.reducing_ns,
        covered.replicas_ns,
        _bare(sends - transfer_ns),
        launch_ns,
        covered.loading_ns,
        covered.optimizer_ns,
        covered.other_ns,
        _bare(rest_ns - launch_ns),
    )
    return explained, usual


def cover_delays(delays: pl.DataFrame, spans: pl.DataFrame | None, reductions: ReductionWaits) -> Covered:
    """Return how much of each delay its rank spent on what delays it.

    `delays` has rank, window_start_ns and window_end_ns.
    """
    if spans is None:
        return Covered(*[np.zeros(delays.height, dtype=np.int64)] * len(Covered._fields))
    blocks = pl.col("kind").is_in(ALL_SENDS) & pl.col("wait_end_ns").is_not_null()
    blocked = spans.filter(blocks).select("rank", start_ns="wait_start_ns", end_ns="wait_end_ns")
    # A rank waits for a reduction for a part of its span: the rest of it runs beside everything else.
    others = ~pl.col("kind").is_in([*ACTION_KINDS, *TRANSFERS, "grad_reduce"])
    named = name_activities(spans.filter(others))
    loading, optimizing = (
        named.filter(pl.col("activity") == activity).select("rank", "start_ns", "end_ns")
        for activity in (LOADING, OPTIMIZER)
    )
    looked_at = (loading, blocked, reductions.reducing, reductions.every, optimizing, named)
    known, parts, union = np.zeros(delays.height, dtype=np.int64), [], unite(loading.clear())
    for added in looked_at:
        reached = known
        if not added.is_empty():
            union = unite(pl.concat([union.select(BOUNDS), added.select(BOUNDS)]))
            reached = covered_ns(delays, union).to_numpy()
        parts.append(_bare(reached - known))
        known = reached
    return Covered(*parts)


def _bare(times_ns: Integers) -> Integers:
    """Return the same times; zeros that nothing is written to take no memory, and most runs have no such delays."""
    return times_ns if times_ns.any() else np.zeros(len(times_ns), dtype=np.int64)


def _usual_waits(spans: pl.DataFrame | None) -> pl.DataFrame:
    """Return how long a blocking send of each rank usually takes at least: rank and wait_ns."""
    if spans is None:
        return pl.DataFrame(schema={"rank": pl.Int32, "wait_ns": pl.Float64})
    waits = spans.filter(pl.col("kind").is_in(ALL_SENDS)).select(
        "rank", wait_ns=pl.col("wait_end_ns") - pl.col("wait_start_ns")
    )
    return waits.group_by("rank").agg(pl.col("wait_ns").quantile(TRANSFER_QUANTILE)).sort("rank")


def _transfer_time(table: pl.DataFrame, usual: pl.DataFrame) -> Integers:
    """Return, for every action, how long a blocking send of its rank usually takes at least; 0 if it is unknown."""
    joined = table.select("rank").join(usual, on="rank", how="left", maintain_order="left")
    times: Integers = joined["wait_ns"].fill_null(0).cast(pl.Int64).to_numpy()
    return times
