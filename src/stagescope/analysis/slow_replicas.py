"""Replicas all of whose ranks are slow: one finding for the replica instead of one for each of its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

if TYPE_CHECKING:
    from stagescope.analysis.explanation import Explanation

FEWEST_RANKS = 2


class SlowReplica(NamedTuple):
    """A pipeline whose ranks are all claimed as slow, with the extremes of their confidence intervals."""

    pipeline: int
    ranks: int
    low_fraction: float
    high_fraction: float
    extra_ns_per_step: float
    p_value: float


def find_slow_replicas(explanation: Explanation) -> list[SlowReplica]:
    """Return the replicas all of whose ranks are claimed as slow, by pipeline."""
    slow = slow_ranks(explanation)
    sizes = _ranks(explanation).group_by("pipeline").agg(size=pl.len())
    groups = (
        slow.group_by("pipeline")
        .agg(
            pl.len().alias("ranks"),
            pl.min("low_fraction"),
            pl.max("high_fraction", "extra_ns_per_step", "p_value"),
        )
        .join(sizes, on="pipeline")
        .filter((pl.col("ranks") == pl.col("size")) & (pl.col("ranks") >= FEWEST_RANKS))
        .sort("pipeline")
        .drop("size")
    )
    return [SlowReplica(**row) for row in groups.iter_rows(named=True)]


def slow_ranks(explanation: Explanation) -> pl.DataFrame:
    """Return the claimed slow ranks, rows of STRAGGLERS, with their pipeline; the costliest first."""
    table = explanation.stragglers.table
    slow = table.filter((pl.col("subject") == "rank") & (pl.col("finding") == "slow") & pl.col("is_claimed"))
    return slow.join(_ranks(explanation), on="rank").sort(
        "extra_ns_per_step", "rank", descending=[True, False]
    )


def _ranks(explanation: Explanation) -> pl.DataFrame:
    return explanation.ledger.members
