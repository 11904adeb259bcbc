"""By how much ranks are late for collectives between two steps: what a step shows, whatever the others were like.

    excess of a rank    its own time before a meeting minus the mean of the others
    expected last       when the last rank would have come if none had taken longer than the median of the others
    lost                from then until the last rank came

All ranks that came after more than half of that lost time share it. A rank that the schedule makes the last one has no
excess, and what it is late is not lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.collectives.meetings import KEY
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

USUAL_FRACTION = 0.5
"""A rank is late if it comes after this part of the lost time."""

PLACE = ("operation", "group", "since_ns", "arrived_ns")

# As strings, a few rows of a file would keep those of all its rows in memory.
LATENESS = Table(
    "lateness",
    "one rank at one meeting of a step in the totals",
    ("pipeline", "step", "rank"),
    (
        Column("pipeline", pl.Int32, "", "Pipeline of the rank."),
        Column("step", pl.Int32, "", "Training step after whose actions it came."),
        Column("rank", pl.Int32, "", "Global rank."),
        Column(
            "excess_ns", pl.Float64, "ns", "How much longer its own time was than the mean of the others."
        ),
        Column("lost_ns", pl.Float64, "ns", "Its part of the time that the others lost; 0: it was not late."),
        Column(
            "operation",
            pl.Categorical(),
            "",
            "What the collective does; null: it was not late.",
            nullable=True,
        ),
        Column("group", pl.Categorical(), "", "Process group, likewise.", nullable=True),
        Column("since_ns", pl.Int64, "ns", "When its own time began, likewise.", nullable=True),
        Column("arrived_ns", pl.Int64, "ns", "When it issued the collective, likewise.", nullable=True),
    ),
)


class Lateness(NamedTuple):
    """The table LATENESS, which a large run has in files: each of `pieces` has all steps of some pipelines.

    `steps` are those with meetings, in any order (step).
    """

    steps: pl.DataFrame
    pieces: Iterable[pl.DataFrame]


def measure_lateness(meetings: pl.DataFrame, steps: pl.DataFrame, pipelines: pl.DataFrame) -> pl.DataFrame:
    """Return the table LATENESS of rows of MEETINGS, of all ranks in some steps.

    Those of the rows of `steps` count, which are rows of ITERATION_STEPS. `pipelines` has rank and pipeline.
    """
    known = steps.select("step", "last_end_ns")
    met = meetings.join(known, on="step", maintain_order="left").join(
        pipelines.select("rank", "pipeline"), on="rank", maintain_order="left"
    )
    if met.is_empty():
        return LATENESS.empty()
    # The place of a rank that was not late is not asked for.
    place = [pl.when(pl.col("lost_ns") > 0).then(name).alias(name) for name in PLACE]
    return (
        _with_lost(_with_excess(met))
        .with_columns(place)
        .select(pl.col(name).cast(dtype) for name, dtype in LATENESS.schema.items())
        .sort(LATENESS.order, maintain_order=True)
    )


def _with_excess(met: pl.DataFrame) -> pl.DataFrame:
    """Return meetings with excess_ns (over the mean of the others) and beyond_ns (over their median)."""
    own_ns, others = pl.col("own_ns"), pl.len() - 1
    # The order of the others is that of all, without the rank itself: what was after it is one place nearer. A list of
    # the others for each rank would take as much memory as the square of a group.
    middles = {"low": (others - 1) // 2, "high": others // 2}
    ordered = {
        f"{name}_{beyond}": own_ns.sort().get(index + beyond).over(KEY)
        for name, index in middles.items()
        for beyond in (0, 1)
    }
    low_ns, high_ns = (
        pl.when(own_ns <= pl.col(f"{name}_0")).then(f"{name}_1").otherwise(f"{name}_0") for name in middles
    )
    mean_ns = (own_ns.sum().over(KEY) - own_ns) / others.over(KEY)
    return met.with_columns(excess_ns=own_ns - mean_ns, **ordered).with_columns(
        beyond_ns=own_ns - (low_ns + high_ns) // 2
    )


def _with_lost(met: pl.DataFrame) -> pl.DataFrame:
    """Return meetings with lost_ns: the part of the time lost at the meeting that a rank is late."""
    expected_ns = pl.col("arrived_ns") - pl.col("beyond_ns").clip(lower_bound=0)
    began_ns = pl.max_horizontal(expected_ns.max().over(KEY), "last_end_ns")
    lost_ns = (pl.col("last_ns") - began_ns).clip(lower_bound=0)
    is_late = pl.col("arrived_ns") > pl.col("last_ns") - USUAL_FRACTION * lost_ns
    # What no other rank had to wait for, because it was asynchronous, was not lost.
    waited_ns = pl.when(~is_late).then(pl.col("arrival_wait_ns").fill_null(0)).min().over(KEY)
    shared_ns = pl.min_horizontal(lost_ns, waited_ns.fill_null(0)) / is_late.sum().over(KEY)
    return met.with_columns(lost_ns=pl.when(is_late & (lost_ns > 0)).then(shared_ns).otherwise(0.0))
