"""Infer the pipeline coordinates of ranks from the path of micro-batch 0.

On one clock, the stages follow the order in which ranks begin the forward of micro-batch 0; ranks that run it at the
same time are replicas of one stage. Across machines with unaligned clocks that order is meaningless. There the
turnaround is used instead: the time between a rank's own forward and backward of micro-batch 0. It covers the path to
the last stage and back, so it grows with the distance from the last stage under every schedule. Both methods return a
result only if the evidence is unambiguous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

if TYPE_CHECKING:
    from stagescope.model import Timeline

BACKWARDS = ("backward", "backward_input")
CLEAR_FRACTION = 0.02
"""Turnarounds of neighboring stages differ by at least one forward and one backward; anything closer is no evidence."""

MOST_VIOLATED_FRACTION = 0.1
"""Largest fraction of steps in which a gradient may arrive before it was produced; above it the order is rejected."""


class InferredCoordinates(NamedTuple):
    """Inferred coordinates (rank, pp, dp; dp is the replica) and a description of the evidence."""

    coordinates: pl.DataFrame
    evidence: str


def infer_coordinates(timeline: Timeline) -> InferredCoordinates | None:
    """Return the pipeline coordinate of every rank that ran micro-batch 0; None if the evidence is ambiguous."""
    first = _first_actions(timeline)
    ranks = first["rank"].unique()
    if ranks.is_empty():
        return None
    clocks = timeline.ranks.filter(pl.col("rank").is_in(ranks.implode()))["clock"]
    if clocks.n_unique() > 1:
        return _by_turnaround(first)
    return _by_arrival(first)


def _first_actions(timeline: Timeline) -> pl.DataFrame:
    """Return the forward and backward of micro-batch 0 on each rank's first chunk, one row per step and rank."""
    spans = timeline.spans.filter(
        (pl.col("microbatch") == 0) & (pl.col("chunk").fill_null(0) == 0) & pl.col("step").is_not_null()
    )
    key = ["step", "rank"]
    forward = (
        spans.filter(pl.col("kind") == "forward").group_by(key).agg(pl.min("start_ns"), pl.min("end_ns"))
    )
    backward = (
        spans.filter(pl.col("kind").is_in(BACKWARDS))
        .group_by(key)
        .agg(back_start_ns=pl.min("start_ns"), back_end_ns=pl.min("end_ns"))
    )
    return forward.join(backward, on=key, how="left").sort(key)


def _by_arrival(first: pl.DataFrame) -> InferredCoordinates | None:
    """Return the ranks ordered by when micro-batch 0 reaches them; overlapping forwards are replicas of one stage."""
    step_start_ns = pl.col("start_ns").min().over("step")
    times = first.select(
        "rank", since_ns=pl.col("start_ns") - step_start_ns, until_ns=pl.col("end_ns") - step_start_ns
    )
    ranks = times.group_by("rank").median().sort("since_ns", "rank")
    levels: list[list[int]] = []
    level_ends_ns = float("-inf")
    # The earliest end of a level closes it: a replica of the same stage has begun by then, the next stage cannot have.
    for rank, begins_ns, ends_ns in ranks.iter_rows():
        if begins_ns >= level_ends_ns:
            levels.append([])
            level_ends_ns = ends_ns
        levels[-1].append(rank)
        level_ends_ns = min(level_ends_ns, ends_ns)
    if len({len(level) for level in levels}) > 1:
        return None
    found = _coordinates(levels)
    if _returns_too_early(first, found):
        return None
    return InferredCoordinates(found, "the order in which micro-batch 0 arrives")


def _by_turnaround(first: pl.DataFrame) -> InferredCoordinates | None:
    """Return the ranks ordered by the turnaround of micro-batch 0, measured on each rank's own clock."""
    ranks = (
        first.drop_nulls("back_start_ns")
        .group_by("rank")
        .agg(turnaround_ns=(pl.col("back_start_ns") - pl.col("end_ns")).median())
        .sort("turnaround_ns", descending=True)
    )
    if ranks.height < first["rank"].n_unique():
        return None
    difference_ns = -ranks["turnaround_ns"].diff().drop_nulls()
    if (difference_ns <= CLEAR_FRACTION * ranks["turnaround_ns"].max()).any():  # type: ignore[operator] # a number
        return None
    return InferredCoordinates(
        _coordinates([[rank] for rank in ranks["rank"]]),
        "the turnaround of micro-batch 0, because the machines' clocks are not aligned",
    )


def _coordinates(levels: list[list[int]]) -> pl.DataFrame:
    rows = [(rank, pp, dp) for pp, level in enumerate(levels) for dp, rank in enumerate(sorted(level))]
    return pl.DataFrame(rows, {"rank": pl.Int32, "pp": pl.Int32, "dp": pl.Int32}, orient="row")


def _returns_too_early(first: pl.DataFrame, found: pl.DataFrame) -> bool:
    """Return whether gradients would reach a stage before the next stage has produced them."""
    by_stage = first.join(found, on="rank").group_by("step", "pp").agg(pl.min("back_start_ns", "back_end_ns"))
    following = by_stage.select("step", pl.col("pp") - 1, next_end_ns="back_end_ns")
    pairs = by_stage.join(following, on=["step", "pp"]).drop_nulls()
    early = pairs.select((pl.col("back_start_ns") < pl.col("next_end_ns")).mean()).item()
    return early is not None and early > MOST_VIOLATED_FRACTION
