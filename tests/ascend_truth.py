"""Planted truth of a generated Ascend cluster, as the Timeline that a perfect reader returns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from stagescope.model import RANKS, SPANS, empty_timeline
from stagescope.model.validate import conform

if TYPE_CHECKING:
    from ascend_profiles import Cluster, Truth
    from stagescope.model import Timeline


def timeline_of_truth(cluster: Cluster, truth: Truth) -> Timeline:
    """Return the planted spans and ranks; `source` of a rank is its database."""
    ranks = pl.DataFrame({"rank": range(cluster.world_size)}).with_columns(
        pp=pl.col("rank") // cluster.width,
        schedule=pl.lit(cluster.schedule),
        source=pl.Series([str(truth.databases[rank]) for rank in range(cluster.world_size)]),
    )
    actions = truth.actions.with_columns(lane=pl.lit("compute"), name=pl.lit("mark"))
    transfers = truth.transfers.drop("message").with_columns(lane=pl.lit("comm"))
    spans = pl.concat([actions.drop("message"), transfers], how="diagonal_relaxed")
    return replace(empty_timeline(), spans=conform(spans, SPANS), ranks=conform(ranks, RANKS))
