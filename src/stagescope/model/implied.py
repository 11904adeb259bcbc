"""What the rows of a spans table imply about the other tables: its ranks with their coordinates, and its steps."""

from __future__ import annotations

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.model.tables import RANKS, STEPS
from stagescope.model.validate import conform
from stagescope.vocabulary.errors import TableError

COORDINATES = ("pp", "dp", "tp", "cp", "ep")
"""Columns of RANKS that a spans table may have as well; all rows of a rank have the same value."""


def implied_ranks(spans: pl.DataFrame, where: str = "") -> pl.DataFrame:
    """Return the ranks table of the rows of a spans table, with the coordinates that it has as columns.

    Columns of COORDINATES may be absent, and null in some rows of a rank. `where` names the source in errors. Raises
    TableError if a coordinate is not a whole number, or if a rank has two values of it.
    """
    present = [name for name in COORDINATES if name in spans.columns]
    places = spans.select("rank", *present).unique()
    ranks = conform(places, RANKS, where).group_by("rank").agg(pl.col(present).drop_nulls().unique().sort())
    for name in present:
        contradictory = ranks.filter(pl.col(name).list.len() > 1).sort("rank")
        if contradictory.height:
            rank, values = contradictory.select("rank", name).row(0)
            raise TableError.contradictory(name, rank, values, where)
    return conform(ranks.with_columns(pl.col(name).list.first() for name in present), RANKS, where)


def joined_ranks(given: pl.DataFrame, implied: pl.DataFrame) -> pl.DataFrame:
    """Return the ranks table `given`, completed with ranks and coordinates that only `implied` has.

    Raises TableError if the two have different coordinates for a rank.
    """
    known = conform(given, RANKS)
    both = known.join(implied.select("rank", *COORDINATES), on="rank", how="full", coalesce=True)
    for name in COORDINATES:
        other = both.filter(pl.col(name) != pl.col(f"{name}_right")).sort("rank")
        if other.height:
            rank, *values = other.select("rank", name, f"{name}_right").row(0)
            raise TableError.contradictory(name, rank, values)
    filled = both.with_columns(pl.coalesce(name, f"{name}_right") for name in COORDINATES)
    return conform(filled, RANKS)


def with_assumed_step(
    spans: pl.DataFrame, source: str | None = None
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return spans that belong to step 0 where no row has a step, and the diagnostic that records it."""
    if spans["step"].null_count() < spans.height:
        return spans, []
    message = "no span has a step; all are taken as step 0"
    found = Diagnostic("info", message, source, code="steps.assumed")
    return spans.with_columns(step=pl.lit(0, pl.Int32)), [found]


def implied_steps(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the steps table that spans imply: from the first start to the last end of each step and rank."""
    steps = spans.drop_nulls("step").group_by("step", "rank").agg(pl.min("start_ns"), pl.max("end_ns"))
    return conform(steps, STEPS)
