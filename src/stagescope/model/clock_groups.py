"""Which ranks stand on one clock, and how well each clock is known: what figures, pictures and traces say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stagescope.vocabulary.durations import duration_text

if TYPE_CHECKING:
    from stagescope.model import Timeline

MOST_MACHINES = 3


class ClockGroup(NamedTuple):
    """Ranks whose stamps can be compared, and the names of their machines."""

    name: str
    ranks: tuple[int, ...]


def clock_groups(timeline: Timeline) -> tuple[ClockGroup, ...]:
    """Return the ranks by clock: one group for all that are on the common clock, first, and one for each that is not.

    A clock is not on the common one when alignment has tried it and found no bound of its error from both sides.
    Timelines that were not aligned are one group: their stamps are shown as they are.
    """
    ranks = _clock_of_ranks(timeline)
    apart = _tried(timeline.clocks).filter(~pl.col("is_placed"))["clock"]
    own = pl.when(pl.col("clock").is_in(apart.implode())).then("clock")
    grouped = (
        ranks.with_columns(own=own)
        .group_by("own", maintain_order=True)
        .agg("rank", pl.coalesce("machine", "clock").unique(maintain_order=True).alias("machines"))
        .sort(pl.col("own").is_not_null(), maintain_order=True)
    )
    rows = grouped.select("machines", "rank").iter_rows()
    return tuple(ClockGroup(_listed(machines), tuple(members)) for machines, members in rows)


def clock_notes(timeline: Timeline) -> dict[int, str]:
    """Return what is known of each rank's clock, in words; nothing where all ranks share one clock."""
    if timeline.clocks["clock"].n_unique() <= 1:
        return {}
    summary = clock_summary(timeline).drop("machine")
    is_placed = pl.col("error_lo_ns").is_not_null() & pl.col("error_hi_ns").is_not_null()
    if summary.filter(is_placed).height == 1:  # nothing was brought to that clock
        summary = summary.with_columns(pl.lit(None).alias(name) for name in ("error_lo_ns", "error_hi_ns"))
    known = _clock_of_ranks(timeline).join(summary, on="clock", how="left", maintain_order="left")
    return {row["rank"]: _note(row) for row in known.iter_rows(named=True)}


def clock_summary(timeline: Timeline) -> pl.DataFrame:
    """Return one row per clock: clock, machine, offset_ns at its start, the worst errors, observation_count, method.

    error_lo_ns and error_hi_ns are null where that side is never bounded; is_bounded_throughout says whether both
    are known all the time.
    """
    errors = ("error_lo_ns", "error_hi_ns")
    return timeline.clocks.group_by("clock", maintain_order=True).agg(
        pl.first("machine", "offset_ns"),
        pl.min("error_lo_ns"),
        pl.max("error_hi_ns"),
        pl.all_horizontal(pl.col(name).is_not_null().all() for name in errors).alias("is_bounded_throughout"),
        pl.first("observation_count", "method"),
    )


def _note(row: dict[str, Any]) -> str:
    low_ns, high_ns = row["error_lo_ns"], row["error_hi_ns"]
    if low_ns is None or high_ns is None:
        return "not on one clock with the others: its distance to them is not known"
    known = "" if row["is_bounded_throughout"] else " where that is known"
    if low_ns == high_ns == 0:
        return f"the clock that all others are brought to{known}"
    return f"on the common clock to within -{duration_text(-low_ns)} and +{duration_text(high_ns)}{known}"


def _clock_of_ranks(timeline: Timeline) -> pl.DataFrame:
    """Return rank, clock and machine, sorted by rank; a rank whose clock nobody named has one of its own name."""
    every = pl.concat([timeline.ranks.select("rank"), timeline.spans.select("rank")]).unique().sort("rank")
    known = timeline.ranks.select("rank", "clock", "machine").unique("rank", keep="first")
    named = every.join(known, on="rank", how="left", maintain_order="left")
    unknown = "unknown clock of rank " + pl.col("rank").cast(pl.String)
    return named.with_columns(clock=pl.coalesce("clock", unknown))


def _tried(clocks: pl.DataFrame) -> pl.DataFrame:
    """Return clock and is_placed for the clocks that alignment has tried: it states a rate, which no reader does."""
    bounded = pl.col("error_lo_ns").is_not_null().any() & pl.col("error_hi_ns").is_not_null().any()
    tried = clocks.filter(pl.col("drift_ppm").is_not_null())
    return tried.group_by("clock", maintain_order=True).agg(bounded.alias("is_placed"))


def _listed(machines: list[str]) -> str:
    shown = ", ".join(machines[:MOST_MACHINES])
    return shown if len(machines) <= MOST_MACHINES else f"{shown} and {len(machines) - MOST_MACHINES} more"
