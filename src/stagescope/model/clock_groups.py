"""Groups of ranks with comparable timestamps, and how well each clock is known, for reports, pictures and traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stagescope.vocabulary.durations import duration_text

if TYPE_CHECKING:
    from stagescope.model import Timeline

MOST_MACHINES = 3
"""A title names at most this many machines."""


class ClockGroup(NamedTuple):
    """Ranks with comparable timestamps, and the names of their machines."""

    name: str
    ranks: tuple[int, ...]


def clock_groups(timeline: Timeline) -> tuple[ClockGroup, ...]:
    """Return the ranks by clock: first one group of all ranks on the common clock, then one for each other clock.

    A clock is not on the common one if alignment found no bound of its error on both sides. A timeline that was not
    aligned is one group, with its timestamps as recorded.
    """
    ranks = _clock_of_ranks(timeline)
    unaligned = _aligned_clocks(timeline.clocks).filter(~pl.col("is_aligned"))["clock"]
    own = pl.when(pl.col("clock").is_in(unaligned.implode())).then("clock")
    grouped = (
        ranks.with_columns(own=own)
        .group_by("own", maintain_order=True)
        .agg("rank", pl.coalesce("machine", "clock").unique(maintain_order=True).alias("machines"))
        .sort(pl.col("own").is_not_null(), maintain_order=True)
    )
    rows = grouped.select("machines", "rank").iter_rows()
    return tuple(ClockGroup(_listed(machines), tuple(members)) for machines, members in rows)


def machines_of_clocks(ranks: pl.DataFrame) -> dict[str, str | None]:
    """Return the names of the machines that carry each clock: several for containers that share one boot."""
    names = (
        ranks.drop_nulls("clock")
        .group_by("clock", maintain_order=True)
        .agg(pl.col("machine").drop_nulls().unique(maintain_order=True))
    )
    return {clock: _listed(machines) or None for clock, machines in names.iter_rows()}


def clock_notes(timeline: Timeline) -> dict[int, str]:
    """Return in words how well each rank's clock is known; empty where all ranks share one clock."""
    if timeline.clocks["clock"].n_unique() <= 1:
        return {}
    summary = clock_summary(timeline).drop("machine")
    is_aligned = pl.col("error_lo_ns").is_not_null() & pl.col("error_hi_ns").is_not_null()
    if summary.filter(is_aligned).height == 1:  # no other clock was aligned to it
        summary = summary.with_columns(pl.lit(None).alias(name) for name in ("error_lo_ns", "error_hi_ns"))
    known = _clock_of_ranks(timeline).join(summary, on="clock", how="left", maintain_order="left")
    return {row["rank"]: _note(row) for row in known.iter_rows(named=True)}


def clock_summary(timeline: Timeline) -> pl.DataFrame:
    """Return one row per clock: clock, machine, offset_ns at its start, the worst errors, observation_count, method.

    These errors are error_lo_ns, error_hi_ns and estimated_error_ns.

    error_lo_ns and error_hi_ns are null if that side is never bounded; is_bounded_throughout states whether both
    sides are bounded all the time.
    """
    errors = ("error_lo_ns", "error_hi_ns")
    return timeline.clocks.group_by("clock", maintain_order=True).agg(
        pl.first("machine", "offset_ns"),
        pl.min("error_lo_ns"),
        pl.max("error_hi_ns", "estimated_error_ns"),
        pl.all_horizontal(pl.col(name).is_not_null().all() for name in errors).alias("is_bounded_throughout"),
        pl.first("observation_count", "method"),
    )


def _note(row: dict[str, Any]) -> str:
    low_ns, high_ns = row["error_lo_ns"], row["error_hi_ns"]
    if low_ns is None or high_ns is None:
        return "not aligned with the other machines: its clock offset is unknown"
    partly = "" if row["is_bounded_throughout"] else " where it is bounded"
    if low_ns == high_ns == 0:
        return f"the reference clock{partly}"
    estimated_ns = row["estimated_error_ns"]
    estimated = "" if estimated_ns is None else f", estimated {duration_text(estimated_ns)}"
    return (
        f"aligned, error between -{duration_text(-low_ns)} and +{duration_text(high_ns)}{partly}{estimated}"
    )


def _clock_of_ranks(timeline: Timeline) -> pl.DataFrame:
    """Return rank, clock and machine, sorted by rank; a rank without a clock gets one of its own."""
    every = pl.concat([timeline.ranks.select("rank"), timeline.spans.select("rank")]).unique().sort("rank")
    known = timeline.ranks.select("rank", "clock", "machine").unique("rank", keep="first")
    named = every.join(known, on="rank", how="left", maintain_order="left")
    unknown = "unknown clock of rank " + pl.col("rank").cast(pl.String)
    return named.with_columns(clock=pl.coalesce("clock", unknown))


def _aligned_clocks(clocks: pl.DataFrame) -> pl.DataFrame:
    """Return clock and is_aligned for the clocks that were part of an alignment: only these have a drift."""
    bounded = pl.col("error_lo_ns").is_not_null().any() & pl.col("error_hi_ns").is_not_null().any()
    tried = clocks.filter(pl.col("drift_ppm").is_not_null())
    return tried.group_by("clock", maintain_order=True).agg(bounded.alias("is_aligned"))


def _listed(machines: list[str]) -> str:
    shown = ", ".join(machines[:MOST_MACHINES])
    return shown if len(machines) <= MOST_MACHINES else f"{shown} and {len(machines) - MOST_MACHINES} more"
