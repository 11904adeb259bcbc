"""What the collectives of some steps cost by kind of group, and which ranks came last to them."""

from __future__ import annotations

import polars as pl

from stagescope.model.tables import Column, Table

COLLECTIVE_KINDS = Table(
    "collective_kinds",
    "the collectives of one operation in one kind of group, over the steps in the totals; the most exposed first",
    (),
    (
        Column("group_kind", pl.String, "", "What the groups are for; null: unknown.", nullable=True),
        Column("operation", pl.String, "", "What the collectives do, such as all_reduce."),
        Column("groups", pl.UInt32, "", "Process groups."),
        Column("collectives", pl.UInt32, "", "Collectives: one for all ranks of its group."),
        Column("calls", pl.UInt32, "", "Calls: one for each rank; the number of rows in collectives."),
        Column("ranks", pl.UInt32, "", "Ranks that took part."),
        Column("iterations", pl.UInt32, "", "Iterations: times `ranks`, the denominator of what follows."),
        Column("bytes", pl.Float64, "B", "Bytes that a rank gave or got per iteration.", nullable=True),
        Column(
            "exposed_ns",
            pl.Float64,
            "ns",
            "How long a rank did nothing but wait for them per iteration; null: no wait was recorded.",
            nullable=True,
        ),
        Column(
            "arrival_wait_ns",
            pl.Float64,
            "ns",
            "Part of exposed_ns in which it waited for the last rank to issue them.",
            nullable=True,
        ),
        Column(
            "hidden_ns", pl.Float64, "ns", "How long it computed between issuing and waiting, per iteration."
        ),
        Column(
            "hidden_fraction",
            pl.Float64,
            "",
            "hidden_ns / (hidden_ns + exposed_ns); null if both are 0 or no wait was recorded.",
            nullable=True,
        ),
    ),
)

COLLECTIVE_RANKS = Table(
    "collective_ranks",
    "one rank in the collectives of the steps in the totals that several ranks recorded",
    ("rank",),
    (
        Column("rank", pl.Int32, "", "Global rank."),
        Column("collectives", pl.UInt32, "", "Collectives that it and another rank recorded."),
        Column("last_count", pl.UInt32, "", "To how many of them it came last."),
        Column("late_ns", pl.Int64, "ns", "How much later than the rank before it then, in total."),
        Column("exposed_ns", pl.Int64, "ns", "How long it waited for all of them; null: not recorded.", nullable=True),
        Column(
            "arrival_wait_ns",
            pl.Int64,
            "ns",
            "Part of exposed_ns in which it waited for ranks that came later.",
            nullable=True,
        ),
    ),
)  # fmt: skip


def summarize_kinds(collectives: pl.DataFrame, iterations: int) -> pl.DataFrame:
    """Return the table COLLECTIVE_KINDS of rows of COLLECTIVES, those of so many iterations."""
    size = pl.col("rank").n_unique() * max(iterations, 1)
    times = ("exposed_ns", "arrival_wait_ns", "hidden_ns")
    known = pl.col("exposed_ns").count() > 0
    found = collectives.group_by("group_kind", "operation").agg(
        groups=pl.col("group").n_unique(),
        collectives=pl.struct("group", "sequence").n_unique(),
        calls=pl.len(),
        ranks=pl.col("rank").n_unique(),
        iterations=pl.lit(iterations),
        bytes=pl.when(pl.col("bytes").count() > 0).then(pl.sum("bytes")) / size,
        hidden_ns=pl.sum("hidden_ns") / size,
        **{name: pl.when(known).then(pl.sum(name)) / size for name in times[:2]},
    )
    whole_ns = pl.col("hidden_ns") + pl.col("exposed_ns")
    return (
        found.with_columns(hidden_fraction=pl.when(whole_ns > 0).then(pl.col("hidden_ns") / whole_ns))
        .sort("exposed_ns", "group_kind", "operation", descending=[True, False, False], nulls_last=True)
        .select(pl.col(name).cast(dtype) for name, dtype in COLLECTIVE_KINDS.schema.items())
    )


def summarize_ranks(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the table COLLECTIVE_RANKS of rows of COLLECTIVES."""
    shared = collectives.filter(pl.col("ranks") > 1)
    is_last = pl.col("rank") == pl.col("last_rank")
    known = pl.col("exposed_ns").count() > 0
    return (
        shared.group_by("rank")
        .agg(
            collectives=pl.len(),
            last_count=is_last.sum(),
            late_ns=pl.col("late_ns").filter(is_last).sum(),
            exposed_ns=pl.when(known).then(pl.sum("exposed_ns")),
            arrival_wait_ns=pl.when(known).then(pl.sum("arrival_wait_ns")),
        )
        .sort("rank")
        .select(pl.col(name).cast(dtype) for name, dtype in COLLECTIVE_RANKS.schema.items())
    )
