"""Ranks that are late for collectives between two steps, so that all others wait for them, and what they did before.

How late each rank is for each of them is measured step by step (lateness.py). A rank is claimed if its own time is
longer than the mean of the others by more than chance explains, and if the others wait for it in most iterations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.collectives.places import find_places, usual_meetings
from stagescope.analysis.statistics.estimates import SAMPLES_AT_ONCE, estimate_means, rejections
from stagescope.analysis.statistics.rates import LATE_RATE
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stagescope.analysis.collectives.lateness import Lateness
    from stagescope.analysis.collectives.places import UsualMeeting

    Floats = NDArray[np.float64]

USUAL_FRACTION = 0.5
"""A claimed rank is late in more than this part of the iterations."""

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


class _Samples(NamedTuple):
    """Sums over the meetings of each iteration (columns) for some ranks (rows): NaN, and 0, where one met no other."""

    ranks: NDArray[np.int32]
    excess_ns: Floats
    lost_ns: Floats


def find_late_ranks(
    lateness: Lateness, iterations: pl.DataFrame, spans: pl.DataFrame, least_cost_ns: float = 0.0
) -> pl.DataFrame:
    """Return the table LATE_RANKS; `iterations` has step and iteration of the steps that count.

    What costs less than `least_cost_ns` per iteration is not claimed. `spans` show what ranks did, in some steps.
    """
    steps = lateness.steps.join(iterations.select("step", "iteration"), on="step")
    if steps.is_empty():
        return LATE_RANKS.empty()
    numbered = steps.with_columns(number=pl.col("iteration").rank("dense").cast(pl.Int64) - 1).drop(
        "iteration"
    )
    count, shown = int(numbered["number"].max()) + 1, spans["step"].unique()  # type: ignore[arg-type]  # integers
    ranks: list[pl.DataFrame] = []
    usual: list[UsualMeeting] = []
    for rows in lateness.pieces:
        met = rows.join(numbered, on="step", maintain_order="left")
        ranks += [_summed_up(samples) for samples in _samples(met, count)]
        usual += usual_meetings(met.filter(pl.col("lost_ns") > 0), shown)
    every = pl.concat(ranks).sort("rank")
    claimed = every.with_columns(
        is_longer=pl.Series(rejections(every["p_value"].to_numpy(), LATE_RATE)), iterations=pl.lit(count)
    ).filter(pl.col("lost_ns") > 0)
    is_usual = (pl.col("late_count") > USUAL_FRACTION * count) & (pl.col("lost_ns") >= least_cost_ns)
    return (
        claimed.with_columns(is_claimed=is_usual & pl.col("is_longer"))
        .join(find_places(usual, spans), on="rank")
        .sort("is_claimed", "lost_ns", "rank", descending=[True, True, False])
        .select(pl.col(name).cast(dtype) for name, dtype in LATE_RANKS.schema.items())
    )


def _samples(met: pl.DataFrame, count: int) -> Iterator[_Samples]:
    """Yield the samples of some ranks after those of others; `met` has numbers of iterations, below `count`."""
    sums = met.group_by("rank", "number").agg(pl.sum("excess_ns", "lost_ns")).sort("rank", "number")
    ranks, firsts = np.unique(sums["rank"].to_numpy(), return_index=True)
    at_once = max(1, SAMPLES_AT_ONCE // count)
    for first in range(0, len(ranks), at_once):
        some = ranks[first : first + at_once]
        ends = firsts[first + at_once :]
        rows = sums[firsts[first] : ends[0] if len(ends) else sums.height]
        place = np.searchsorted(some, rows["rank"].to_numpy()), rows["number"].to_numpy()
        found = _Samples(some, np.full((len(some), count), np.nan), np.zeros((len(some), count)))
        found.excess_ns[place], found.lost_ns[place] = (
            rows["excess_ns"].to_numpy(),
            rows["lost_ns"].to_numpy(),
        )
        yield found


def _summed_up(samples: _Samples) -> pl.DataFrame:
    """Return rank, late_count, lost_ns with the ends of its confidence interval, and p_value of some ranks."""
    count = samples.lost_ns.shape[1]
    ends = [np.full(len(samples.ranks), np.nan)] * 2
    if count > 1:
        ends = list(estimate_means(samples.lost_ns, trim_fraction=0.0).intervals())
    return pl.DataFrame(
        {
            "rank": samples.ranks,
            "late_count": (samples.lost_ns > 0).sum(axis=1),
            "lost_ns": samples.lost_ns.sum(axis=1) / count,
            "low_ns": ends[0],
            "high_ns": ends[1],
            "p_value": estimate_means(samples.excess_ns).p_above(0.0),
        }
    ).with_columns(pl.col("low_ns", "high_ns").fill_nan(None))
