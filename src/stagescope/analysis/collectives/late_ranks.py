"""Ranks that are late for collectives between two steps, so that all others wait for them, and what they did before.

    excess of a rank    its own time before a meeting minus the median of the others
    expected last       when the last rank would have come if none had an excess
    lost                from then until the last rank came

All ranks that came after more than half of that lost time share it. A rank that the schedule makes the last one has no
excess, and what it is late is not lost. A rank is claimed if its own time is longer than the mean of the others
by more than chance explains, and if the others wait for it in most iterations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.collectives.meetings import KEY
from stagescope.analysis.collectives.places import find_places
from stagescope.analysis.statistics.estimates import estimate_means, rejections
from stagescope.analysis.statistics.rates import LATE_RATE
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

USUAL_FRACTION = 0.5
"""A claimed rank is late in more than this part of the iterations, and comes after this part of the lost time."""

LATE_RANKS = Table(
    "late_ranks",
    "one rank that was late for a collective between two steps at least once; claimed ones and the costliest first",
    (),
    (
        Column("rank", pl.Int32, "", "Global rank."),
        Column("operation", pl.String, "", "Collective for which it lost most time."),
        Column("group", pl.String, "", "Process group of that collective."),
        Column("activity", pl.String, "", "What it did meanwhile; null: nothing was recorded.", nullable=True),
        Column("cause", pl.String, "", "Cause of lost time that it counts as."),
        Column("after", pl.String, "", "What it had done before that."),
        Column("before", pl.String, "", "What came after that."),
        Column("iterations", pl.Int64, "", "Iterations with such collectives: n."),
        Column("late_count", pl.Int64, "", "Iterations in which others waited for it."),
        Column(
            "lost_ns",
            pl.Float64,
            "ns",
            "How long the others waited for it per iteration, beyond what the schedule explains.",
        ),
        Column("low_ns", pl.Float64, "ns", "Lower end of its 95 % CI; null: a single iteration.", nullable=True),
        Column("high_ns", pl.Float64, "ns", "Upper end.", nullable=True),
        Column("p_value", pl.Float64, "", "Probability of so much more own time than the others' if it were equal."),
        Column("is_claimed", pl.Boolean, "", "Whether it is claimed."),
    ),
)  # fmt: skip


def find_late_ranks(
    meetings: pl.DataFrame, steps: pl.DataFrame, spans: pl.DataFrame, least_cost_ns: float = 0.0
) -> pl.DataFrame:
    """Return the table LATE_RANKS.

    `meetings` is the table MEETINGS; of it, those of the rows of `steps` count, which are rows of ITERATION_STEPS.
    What costs less than `least_cost_ns` per iteration is not claimed.
    """
    known = steps.select("step", "iteration", "last_end_ns")
    met = meetings.join(known, on="step")
    if met.is_empty():
        return LATE_RANKS.empty()
    met = _with_lost(_with_excess(met))
    samples = met.group_by("rank", "iteration").agg(pl.sum("excess_ns", "lost_ns"))
    count = met["iteration"].n_unique()
    late = samples.group_by("rank").agg(
        late_count=(pl.col("lost_ns") > 0).sum(), lost_ns=pl.sum("lost_ns") / count
    )
    p_values = _p_values(samples)
    found = late.join(p_values, on="rank").filter(pl.col("lost_ns") > 0)
    if found.is_empty():
        return LATE_RANKS.empty()
    usual = (pl.col("late_count") > USUAL_FRACTION * count) & (pl.col("lost_ns") >= least_cost_ns)
    claimed = found.with_columns(
        _intervals(found, samples, count),
        iterations=pl.lit(count),
        is_claimed=usual & pl.col("is_longer"),
    )
    return (
        claimed.join(find_places(met, claimed["rank"], spans), on="rank")
        .sort("is_claimed", "lost_ns", "rank", descending=[True, True, False])
        .select(pl.col(name).cast(dtype) for name, dtype in LATE_RANKS.schema.items())
    )


def _with_excess(met: pl.DataFrame) -> pl.DataFrame:
    """Return meetings with excess_ns (over the mean of the others) and beyond_ns (over their median)."""
    size = pl.len().over(KEY)
    own_ns, sorted_ns = pl.col("own_ns"), pl.col("own_ns").sort().over(KEY, mapping_strategy="join")
    place = own_ns.rank("ordinal").over(KEY) - 1
    # The median of the others: their order is that of all, without the rank itself.
    others = size - 1
    middles = [((others - 1) // 2, "low"), (others // 2, "high")]
    picks = {
        name: sorted_ns.list.get((index + (index >= place).cast(pl.Int64)).cast(pl.Int64))
        for index, name in middles
    }
    mean_ns = (own_ns.sum().over(KEY) - own_ns) / others
    return met.with_columns(excess_ns=own_ns - mean_ns, **picks).with_columns(
        beyond_ns=own_ns - (pl.col("low") + pl.col("high")) // 2
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


def _p_values(samples: pl.DataFrame) -> pl.DataFrame:
    """Return rank, p_value, and whether the own time of the rank is longer than that of the others (is_longer)."""
    table = _pivot(samples, "excess_ns")
    p_values = estimate_means(table.drop("rank").to_numpy()).p_above(0.0)
    return table.select("rank").with_columns(
        p_value=pl.Series(p_values), is_longer=pl.Series(rejections(p_values, LATE_RATE))
    )


def _intervals(found: pl.DataFrame, samples: pl.DataFrame, count: int) -> list[pl.Series]:
    """Return the ends of the confidence intervals of lost_ns; iterations in which a rank met no other count as 0."""
    table = found.select("rank").join(
        _pivot(samples, "lost_ns"), on="rank", how="left", maintain_order="left"
    )
    values = np.nan_to_num(table.drop("rank").to_numpy())
    ends = [np.full(len(values), np.nan)] * 2
    if count > 1:
        ends = list(estimate_means(values, trim_fraction=0.0).intervals())
    return [
        pl.Series(name, each).fill_nan(None) for name, each in zip(("low_ns", "high_ns"), ends, strict=True)
    ]


def _pivot(samples: pl.DataFrame, values: str) -> pl.DataFrame:
    """Return a row per rank and a column per iteration; NaN where the rank met no other."""
    table = samples.sort("iteration", "rank").pivot("iteration", index="rank", values=values).sort("rank")
    return table.with_columns(pl.exclude("rank").cast(pl.Float64).fill_null(float("nan")))
