"""Which ranks form one pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.vocabulary.kinds import PIPELINE_JOBS, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Iterable


def find_pipelines(spans: pl.DataFrame) -> pl.DataFrame:
    """Return one row per rank that ran a pipeline job: rank, pipeline (its smallest recorded rank).

    Ranks that pass activations or gradients to each other, directly or through other ranks, recorded or not,
    are one pipeline: data-parallel replicas exchange nothing of the kind. Where no transfer names its peer,
    all ranks are taken as one pipeline.
    """
    jobs = spans.filter(pl.col("kind").is_in(PIPELINE_JOBS))
    ranks = jobs["rank"].unique().sort().to_list()
    edges = spans.filter(pl.col("kind").is_in(TRANSFERS) & pl.col("peer").is_not_null())
    if edges.is_empty():
        pipelines = ranks[:1] * len(ranks)
    else:
        root = _roots(edges.select("rank", "peer").unique().sort("rank", "peer").iter_rows())
        first: dict[int, int] = {}
        pipelines = [first.setdefault(root.get(rank, rank), rank) for rank in ranks]
    return pl.DataFrame(
        {"rank": ranks, "pipeline": pipelines}, schema={"rank": pl.Int32, "pipeline": pl.Int32}
    )


def _roots(edges: Iterable[tuple[int, ...]]) -> dict[int, int]:
    """Return for every rank the rank that stands for its connected component: union-find, halving paths."""
    parent: dict[int, int] = {}

    def root_of(rank: int) -> int:
        parent.setdefault(rank, rank)
        while parent[rank] != rank:
            parent[rank] = rank = parent[parent[rank]]
        return rank

    for one, other in edges:
        parent[root_of(one)] = root_of(other)
    return {rank: root_of(rank) for rank in list(parent)}
