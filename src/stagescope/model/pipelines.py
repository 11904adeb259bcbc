"""Which ranks form one pipeline."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import polars as pl

from stagescope.vocabulary.kinds import ACTION_KINDS, PLAIN_TRANSFERS, RECEIVES, SENDS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable


def find_pipelines(
    spans: pl.DataFrame, ranks: pl.DataFrame | None = None, *, names_peers: bool | None = None
) -> pl.DataFrame:
    """Return one row per rank that ran a pipeline action: rank, pipeline (its smallest recorded rank).

    Ranks that pass activations or gradients to each other, directly or through other ranks (recorded or not), form
    one pipeline; data-parallel replicas exchange neither. If no transfer names its peer, ranks with equal data-,
    tensor- and context-parallel coordinates in the table `ranks` form one pipeline. Without coordinates, plain
    transfers show the pipelines if all of these ran the same actions, each once: they may also be those of something
    else. Otherwise replicas are inferred from actions that several ranks ran (`infer_replicas`); without those, all
    ranks form one pipeline.

    If the spans are those of some pipelines of a run, `names_peers` states whether transfers of the run name peers.
    """
    ran_action = pl.col("rank").filter(pl.col("kind").is_in(ACTION_KINDS))
    numbers = spans.select(ran_action.unique().sort())["rank"].to_list()
    root = _connected(spans, (*SENDS, *RECEIVES))
    if root if names_peers is None else names_peers:
        keys = [root.get(rank, rank) for rank in numbers]
    else:
        replica = _replicas(ranks) or _of_plain_transfers(spans) or infer_replicas(spans) or {}
        keys = [replica.get(rank) for rank in numbers]
    first: dict[Hashable, int] = {}
    pipelines = [first.setdefault(key, rank) for key, rank in zip(keys, numbers, strict=True)]
    return pl.DataFrame(
        {"rank": numbers, "pipeline": pipelines}, schema={"rank": pl.Int32, "pipeline": pl.Int32}
    )


def infer_replicas(spans: pl.DataFrame) -> dict[int, Hashable] | None:
    """Return for each rank the number of its replica, if several ranks ran the same actions; {} if none did.

    A pipeline runs each action once per step. If n ranks ran the same ones, they belong to n replicas. Launchers number
    ranks by replica or by stage; both ways, the k-th rank of each stage is in the same replica. Returns None if stages
    were run by different numbers of ranks, as with missing ranks: then it is unknown which ranks belong together.
    """
    actions = spans.filter(pl.col("kind").is_in(ACTION_KINDS)).drop_nulls(["step", "stage", "microbatch"])
    first = actions.filter(pl.col("step") == pl.col("step").min())
    runs = first.group_by("stage", "microbatch", "kind").agg(pl.col("rank").n_unique())["rank"]
    if not (runs > 1).any():
        return {}
    stages = first.group_by("rank").agg(pl.col("stage").unique().sort()).sort("rank")
    places = stages.with_columns(place=pl.int_range(pl.len()).over("stage"), count=pl.len().over("stage"))
    if runs.n_unique() > 1 or places["count"].n_unique() > 1 or places["count"][0] != runs[0]:
        return None
    return dict(places.select("rank", "place").iter_rows())


def _of_plain_transfers(spans: pl.DataFrame) -> dict[int, Hashable]:
    """Return the pipeline of each rank by its plain transfers; {} unless all pipelines ran the same actions once."""
    root = _connected(spans, PLAIN_TRANSFERS)
    if not root:
        return {}
    actions = spans.filter(pl.col("kind").is_in(ACTION_KINDS)).drop_nulls(["step", "stage", "microbatch"])
    first = actions.filter(pl.col("step") == pl.col("step").min())
    ran: dict[int, set[Hashable]] = {}
    for rank, *action in first.select("rank", "kind", "stage", "microbatch").unique().iter_rows():
        others = ran.setdefault(root.get(rank, rank), set())
        if tuple(action) in others:
            return {}
        others.add(tuple(action))
    same = all(one == other for one, other in itertools.pairwise(ran.values()))
    return {rank: root.get(rank, rank) for rank in first["rank"].unique()} if same else {}


def _connected(spans: pl.DataFrame, kinds: tuple[str, ...]) -> dict[int, int]:
    """Return for each rank with transfers of these kinds the representative of those that they connect."""
    is_edge = pl.col("kind").is_in(kinds) & pl.col("peer").is_not_null()
    edges = spans.lazy().filter(is_edge).select("rank", "peer").unique().sort("rank", "peer").collect()
    return connected_ranks(edges.iter_rows())


def _replicas(ranks: pl.DataFrame | None) -> dict[int, Hashable]:
    """Return for each rank the coordinates that all stages of a pipeline share."""
    if ranks is None or ranks["pp"].null_count():
        return {}
    return {rank: tuple(shared) for rank, *shared in ranks.select("rank", "dp", "tp", "cp").iter_rows()}


def connected_ranks(edges: Iterable[tuple[int, ...]]) -> dict[int, int]:
    """Return for each rank the representative of those that edges connect it with (union-find with path halving)."""
    parent: dict[int, int] = {}

    def root_of(rank: int) -> int:
        parent.setdefault(rank, rank)
        while parent[rank] != rank:
            parent[rank] = rank = parent[parent[rank]]
        return rank

    for one, other in edges:
        parent[root_of(one)] = root_of(other)
    return {rank: root_of(rank) for rank in list(parent)}
