"""How the time of an overlapped pair divides among its two actions: in proportion to what they take alone.

A pair is one interval, which does not show what each of its actions took. But most schedules run some actions of every
stage alone as well. If overlapping makes both shorter by the same factor, then the pair grows with one of its actions
as much as that action's share of the two times alone. Where an action never runs alone, each of the two has half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions

    Floats = NDArray[np.float64]

HALVES = ("backward_input", "backward_weight")
"""Together they are a full backward of a stage that runs none alone."""


def times_alone(actions: Actions) -> pl.DataFrame:
    """Return what actions that run alone usually take: kind, stage and alone_ns."""
    table = actions.table
    alone = table.filter(~pl.col("is_pair")).select(
        pl.col("kind").cast(pl.String), "stage", alone_ns=pl.col("end_ns") - pl.col("start_ns")
    )
    # The median: one action during a garbage collection must not change the shares of all pairs.
    usual = alone.group_by("kind", "stage").agg(pl.col("alone_ns").median())
    halves = usual.filter(pl.col("kind").is_in(HALVES)).group_by("stage").agg(pl.len(), pl.sum("alone_ns"))
    joined = halves.filter(pl.col("len") == len(HALVES)).select(
        pl.lit("backward").alias("kind"), "stage", "alone_ns"
    )
    return pl.concat([usual, joined.join(usual, on=["kind", "stage"], how="anti")])


def share_pairs(actions: Actions, alone: pl.DataFrame | None = None) -> Floats:
    """Return the share of the first action of every pair, 0 to 1, in the order of `partners`.

    `alone` is from times_alone for the run; None: for these actions.
    """
    table, partners = actions.table, actions.partners
    known = times_alone(actions) if alone is None else alone
    sides = [
        side.select(pl.col("kind").cast(pl.String), "stage")
        .join(known, on=["kind", "stage"], how="left", maintain_order="left")["alone_ns"]
        .cast(pl.Float64)
        for side in (table.select("kind", "stage")[partners["action"]], partners)
    ]
    shares: Floats = (sides[0] / (sides[0] + sides[1])).fill_null(0.5).fill_nan(0.5).to_numpy()
    return shares
