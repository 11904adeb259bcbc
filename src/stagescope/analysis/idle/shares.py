"""The bubble of a run divided among its causes: parts that sum to the idle time to the nanosecond."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.idle.savings import offset_whole_savings
from stagescope.model.large_tables import reduced
from stagescope.model.tables import Column, Table
from stagescope.vocabulary.causes import BY_COLUMN, CAUSE_COLUMNS, MAY_BE_UNRECORDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

IDLE_SHARES = Table(
    "idle_shares",
    "one rank, one pipeline or the whole run; the causes sum to idle_ns",
    ("pipeline", "rank"),
    (
        Column(
            "pipeline", pl.Int32, "", "Smallest rank of the pipeline; null: the whole run.", nullable=True
        ),
        Column("rank", pl.Int32, "", "Global rank; null: the whole pipeline or run.", nullable=True),
        Column(
            "window_ns",
            pl.Int64,
            "ns",
            "Windows of the pipelines, summed over ranks and steps: the denominator.",
        ),
        Column("idle_ns", pl.Int64, "ns", "Part of it without a span on the compute lane."),
        *(
            Column(
                name,
                pl.Int64,
                "ns",
                f"Part of idle_ns: {BY_COLUMN[name].label}.",
                nullable=name in MAY_BE_UNRECORDED,
            )
            for name in CAUSE_COLUMNS
        ),
    ),
)
"""Times are summed over the steps in the totals. A negative part of a rank is idle time that its cause saves it: a slow
rank waits less, and the others wait for it. The whole pipeline or run has no negative part (idle/savings.py).
"""

UNATTRIBUTED = CAUSE_COLUMNS[-1]
LEVELS: tuple[tuple[str, ...], ...] = (("pipeline", "rank"), ("pipeline",), ())


def share_idle(bubbles: Iterable[pl.DataFrame], ledgers: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the table IDLE_SHARES: one row per rank, per pipeline, and for the run, which is the last row.

    `bubbles` are rows of step_bubbles, `ledgers` those of the table IDLE_LEDGER for the same steps, one range of steps
    after the other. All idle time of ranks without a ledger is in unattributed_ns.
    """
    names = CAUSE_COLUMNS[:-1]
    # Summed before they are joined: both tables have a row per rank and step.
    parts = (_sum_times_and_causes(*each) for each in zip(bubbles, ledgers, strict=True))
    sums = pl.col("window_ns", "idle_ns", *names).sum()
    rows = reduced(parts, lambda rows: rows.group_by("pipeline", "rank").agg(sums))
    rows = rows.with_columns((pl.col("idle_ns") - pl.sum_horizontal(names)).alias(UNATTRIBUTED))
    return pl.concat(
        [_summed(rows, LEVELS[0]), *(_without_savings(_summed(rows, keys)) for keys in LEVELS[1:])]
    )


def _sum_times_and_causes(bubbles: pl.DataFrame, idle_ledger: pl.DataFrame) -> pl.DataFrame:
    """Return windows and idle time of every rank, and its causes, over the steps of both tables."""
    names = CAUSE_COLUMNS[:-1]
    times = bubbles.group_by("pipeline", "rank").agg(pl.sum("window_ns", "idle_ns"))
    causes = _sum_causes(bubbles, idle_ledger)
    return times.join(causes, on="rank", how="left").with_columns(pl.col(names).fill_null(0))


def _sum_causes(bubbles: pl.DataFrame, idle_ledger: pl.DataFrame) -> pl.DataFrame:
    """Return the idle time of every rank by cause, in its windows."""
    names, keys = CAUSE_COLUMNS[:-1], ["step", "rank"]
    known = idle_ledger.select(*keys, *names)
    beyond = known.select(keys).join(bubbles, on=keys, how="anti")
    if beyond.height:
        known = known.join(beyond, on=keys, how="anti")
    return known.group_by("rank").agg(pl.col(names).sum())


def _summed(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    sums = [pl.col("window_ns", "idle_ns", *CAUSE_COLUMNS).sum()]
    summed = rows.group_by(keys).agg(sums).sort(keys) if keys else rows.select(sums)
    missing = [pl.lit(None, pl.Int32).alias(name) for name in ("pipeline", "rank") if name not in keys]
    return summed.with_columns(missing).select(IDLE_SHARES.names)


def _without_savings(sums: pl.DataFrame) -> pl.DataFrame:
    """Return rows of IDLE_SHARES without negative causes."""
    rows = []
    for row in sums.iter_rows(named=True):
        parts = {name.removesuffix("_ns"): row[name] for name in CAUSE_COLUMNS}
        rows.append(row | {f"{name}_ns": part_ns for name, part_ns in offset_whole_savings(parts).items()})
    return pl.DataFrame(rows, schema=sums.schema)
