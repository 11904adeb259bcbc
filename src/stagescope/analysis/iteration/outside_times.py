"""The time of causes outside of the windows, per rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.iteration.activities import LOADING, OPTIMIZER, OTHER, REDUCTION
from stagescope.model.coverage import covered_ns
from stagescope.model.large_tables import reduced
from stagescope.vocabulary.causes import CAUSE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.analysis.iteration.activities import ActivityUnions

BEYOND = (OPTIMIZER, REDUCTION, LOADING, OTHER)
"""Causes that have culprits inside and outside of the windows."""


def outside_windows(parts: Iterable[tuple[pl.DataFrame, pl.DataFrame]]) -> pl.DataFrame:
    """Return per rank (pipeline, rank) the time of BEYOND and unattributed time outside of its windows, summed.

    `parts` are rows of the tables ITERATIONS and IDLE_LEDGER for the same steps, one range of steps after the other.
    """
    times = pl.col("unattributed", *BEYOND).sum()
    return reduced(
        (_outside_of(*each) for each in parts), lambda rows: rows.group_by("pipeline", "rank").agg(times)
    )


def _outside_of(iterations: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    keys = ["step", "rank"]
    beyond = [f"{name}_ns" for name in BEYOND]
    inside = ranks.select(*keys, *beyond, attributed_ns=pl.sum_horizontal(CAUSE_COLUMNS[:-1]))
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


def measure_own_work(bubbles: pl.DataFrame, steps: pl.DataFrame, unions: ActivityUnions) -> pl.DataFrame:
    """Return how long every rank did other work outside the windows of its pipeline: rank and own_ns, summed.

    `bubbles` is what step_bubbles returns, `steps` the table ITERATION_STEPS, `unions` are those of BetweenSteps. The
    rest of a rank's other work there is that of the rank that it waited for (iteration/ledger.py).
    """
    rows = bubbles.select("step", "rank", began_ns="window_start_ns", ended_ns="window_end_ns").join(
        steps.select("step", "start_ns", "end_ns"), on="step"
    )
    working = unions.of_each([OTHER])
    before, after = (
        covered_ns(rows.select("rank", window_start_ns=since, window_end_ns=until), working)
        for since, until in (("start_ns", "began_ns"), ("ended_ns", "end_ns"))
    )
    return sum_own_work(rows.select("rank", own_ns=before + after))


def sum_own_work(work: pl.DataFrame) -> pl.DataFrame:
    """Return the sums of each rank."""
    return work.group_by("rank").agg(pl.sum("own_ns")).sort("rank")
