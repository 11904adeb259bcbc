"""Gradient reductions from when the last replica has joined them; before that, ranks wait for it and reduce nothing."""

from __future__ import annotations

import polars as pl

from stagescope.model.collectives import find_calls
from stagescope.vocabulary.kinds import ACTION_KINDS

REDUCES = "grad_reduce"
ROW, JOINED = "row", "joined_ns"


def list_reductions(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the gradient reductions of `spans`, each starting when the last rank had come to it.

    Calls with a group and a number are one reduction if both are the same. Others are taken for one if they are the
    n-th of their step on ranks that begin with the same stage, as where only a timer around them was recorded.
    """
    reductions = spans.filter(pl.col("kind") == REDUCES).with_row_index(ROW)
    numbered = find_calls(reductions).select(
        ROW, joined_ns=pl.col("start_ns").max().over("group", "sequence")
    )
    counted = (
        reductions.join(numbered, on=ROW, how="anti")
        .filter(pl.col("step").is_not_null())
        .join(_first_stages(spans), on="rank")
        .sort("start_ns", ROW)
        .with_columns(turn=pl.int_range(pl.len()).over("rank", "step"))
        .select(ROW, joined_ns=pl.col("start_ns").max().over("first_stage", "step", "turn"))
    )
    joined = reductions.join(pl.concat([numbered, counted]), on=ROW, how="left", maintain_order="left")
    # No rank waits longer than its reduction takes, even if clocks disagree.
    start_ns = pl.min_horizontal(pl.coalesce(JOINED, "start_ns"), "end_ns")
    return joined.with_columns(start_ns=start_ns).drop(ROW, JOINED)


def _first_stages(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the smallest stage of every rank: rank and first_stage."""
    actions = spans.lazy().filter(pl.col("kind").is_in(ACTION_KINDS))
    return actions.group_by("rank").agg(first_stage=pl.min("stage")).collect()
