"""Which ranks form one pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.vocabulary.kinds import ACTION_KINDS, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable


def find_pipelines(spans: pl.DataFrame, ranks: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return one row per rank that ran a pipeline action: rank, pipeline (its smallest recorded rank).

    Ranks that pass activations or gradients to each other, directly or through other ranks (recorded or not), form
    one pipeline; data-parallel replicas exchange neither. If no transfer names its peer, ranks with equal data-,
    tensor- and context-parallel coordinates in the table `ranks` form one pipeline; without coordinates, all ranks
    do.
    """
    is_edge = pl.col("kind").is_in(TRANSFERS) & pl.col("peer").is_not_null()
    ran_action = pl.col("rank").filter(pl.col("kind").is_in(ACTION_KINDS))
    numbers = spans.select(ran_action.unique().sort())["rank"].to_list()
    edges = spans.lazy().filter(is_edge).select("rank", "peer").unique().sort("rank", "peer").collect()
    if edges.is_empty():
        replica = _replicas(ranks)
        keys = [replica.get(rank) for rank in numbers]
    else:
        root = _roots(edges.iter_rows())
        keys = [root.get(rank, rank) for rank in numbers]
    first: dict[Hashable, int] = {}
    pipelines = [first.setdefault(key, rank) for key, rank in zip(keys, numbers, strict=True)]
    return pl.DataFrame(
        {"rank": numbers, "pipeline": pipelines}, schema={"rank": pl.Int32, "pipeline": pl.Int32}
    )


def _replicas(ranks: pl.DataFrame | None) -> dict[int, Hashable]:
    """Return for each rank the coordinates that all stages of a pipeline share."""
    if ranks is None or ranks["pp"].null_count():
        return {}
    return {rank: tuple(shared) for rank, *shared in ranks.select("rank", "dp", "tp", "cp").iter_rows()}


def _roots(edges: Iterable[tuple[int, ...]]) -> dict[int, int]:
    """Return for each rank the representative of its connected component (union-find with path halving)."""
    parent: dict[int, int] = {}

    def root_of(rank: int) -> int:
        parent.setdefault(rank, rank)
        while parent[rank] != rank:
            parent[rank] = rank = parent[parent[rank]]
        return rank

    for one, other in edges:
        parent[root_of(one)] = root_of(other)
    return {rank: root_of(rank) for rank in list(parent)}
