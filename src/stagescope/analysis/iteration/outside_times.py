"""The time of causes outside of the windows, per rank."""

from __future__ import annotations

import polars as pl

from stagescope.analysis.iteration.activities import LOADING, REDUCTION
from stagescope.vocabulary.causes import CAUSE_COLUMNS

BEYOND = (REDUCTION, LOADING, "other_work")
"""Causes that have culprits inside and outside of the windows."""


def inside_windows(ranks: pl.DataFrame) -> pl.DataFrame:
    """Return what find_outside_culprits needs of the table IDLE_LEDGER: step, rank, BEYOND, and all causes together."""
    columns = [f"{name}_ns" for name in BEYOND]
    return ranks.select("step", "rank", *columns, attributed_ns=pl.sum_horizontal(CAUSE_COLUMNS[:-1]))


def outside_windows(iterations: pl.DataFrame, inside: pl.DataFrame) -> pl.DataFrame:
    """Return per rank (pipeline, rank) the time of BEYOND and unattributed time outside of its windows, summed."""
    keys = ["step", "rank"]
    beyond = [f"{name}_ns" for name in BEYOND]
    # Only these columns: there is a row per rank and step.
    times = iterations.select("pipeline", *keys, "window_ns", "busy_ns", "unattributed_ns", *beyond)
    both = times.join(inside, on=keys, how="left", suffix="_inside")
    both = both.with_columns(pl.col("attributed_ns", *(f"{name}_inside" for name in beyond)).fill_null(0))
    # Work that is no action makes the idle time of the window shorter than that of the ledger.
    idle_ns = pl.col("window_ns") - pl.col("busy_ns") - pl.col("attributed_ns")
    return both.group_by("pipeline", "rank").agg(
        unattributed=(pl.col("unattributed_ns") - idle_ns).sum(),
        **{name: (pl.col(f"{name}_ns") - pl.col(f"{name}_ns_inside")).sum() for name in BEYOND},
    )
