"""What the collectives of some steps cost by kind of group, and which ranks came last to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.model.collectives import COLLECTIVES
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

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


KIND = ("group_kind", "operation")

OF_COLLECTIVE = (
    "group", "sequence", "group_kind", "operation", "step", "bytes", "ranks", "first_ns", "last_rank", "last_ns",
    "late_ns",
)  # fmt: skip
"""Columns of COLLECTIVES that are the same on all ranks, apart from the bytes: those of the last rank."""
MOST_LATEST = 100
"""Rows of `latest`; the table `collectives` has all of them."""


class CollectiveSums(NamedTuple):
    """Sums over rows of COLLECTIVES: `kinds` over those of each KIND, `ranks` over those of each rank with others.

    `groups` and `members` have the groups and ranks of each KIND, groups with the last number of a collective, and
    `counts` the number of its collectives. `latest` are those to which a rank came latest after the others, at most
    100, one row each.
    """

    kinds: pl.DataFrame
    groups: pl.DataFrame
    members: pl.DataFrame
    ranks: pl.DataFrame
    latest: pl.DataFrame
    counts: pl.DataFrame


def sum_collectives(parts: Iterable[pl.DataFrame]) -> CollectiveSums:
    """Return sums over rows of COLLECTIVES, some after the others; `parts` may be iterated more than once.

    Ranks may count a collective for different steps, so that it is in several parts. The collectives of a group are
    numbered: one with a greater number than all before it is new. The others are counted with what is in memory of them
    alone.
    """
    sums, counts, known = _sums_of(COLLECTIVES.empty()), [], []
    for rows in parts:
        of_part = _numbered(rows, sums.groups)
        counts.append(_counted(of_part.filter("is_new")))
        known.append(of_part.filter(~pl.col("is_new")).drop("is_new"))
        sums = _added(sums, _sums_of(rows))
    repeated = pl.concat([_numbered(COLLECTIVES.empty(), sums.groups).drop("is_new"), *known]).unique()
    if repeated.height:
        counts.append(_counted(_never_new(parts, repeated)))
    added = pl.concat([sums.counts, *counts]).group_by(KIND).agg(pl.sum("collectives"))
    return sums._replace(counts=added)


def _sums_of(rows: pl.DataFrame) -> CollectiveSums:
    """Return the sums over some rows, with no number of collectives."""
    is_last = pl.col("rank") == pl.col("last_rank")
    shared = rows.filter(pl.col("ranks") > 1)
    waits = (
        pl.sum("exposed_ns", "arrival_wait_ns"),
        pl.col("exposed_ns").count().cast(pl.Int64).alias("waits"),
    )
    kinds = rows.group_by(KIND).agg(
        pl.len().alias("calls"),
        pl.sum("hidden_ns", "bytes"),
        pl.col("bytes").count().cast(pl.Int64).alias("sizes"),
        *waits,
    )
    ranks = shared.group_by("rank").agg(
        pl.len().alias("collectives"),
        last_count=is_last.sum(),
        late_ns=pl.col("late_ns").filter(is_last).sum(),
    )
    return CollectiveSums(
        kinds,
        rows.group_by(*KIND, "group").agg(last=pl.max("sequence")),
        rows.select(*KIND, "rank").unique(),
        ranks.join(shared.group_by("rank").agg(waits), on="rank"),
        _latest(shared.filter(is_last).select(OF_COLLECTIVE)),
        _counted(rows.clear()),
    )


def _added(one: CollectiveSums, other: CollectiveSums) -> CollectiveSums:
    kinds, groups, members, ranks, latest = (pl.concat(both) for both in zip(one[:5], other[:5], strict=True))
    return CollectiveSums(
        kinds.group_by(KIND).agg(pl.exclude(KIND).sum()),
        groups.group_by(*KIND, "group").agg(pl.max("last")),
        members.unique(),
        ranks.group_by("rank").agg(pl.exclude("rank").sum()),
        _latest(latest),
        one.counts,
    )


def _latest(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.sort("late_ns", "group", "sequence", descending=[True, False, False]).head(MOST_LATEST)


def _numbered(rows: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Return KIND, group and sequence of each collective, and whether none before it had as great a number (is_new).

    `groups` has the last number of each group before.
    """
    keys = [*KIND, "group"]
    numbers = rows.select(*keys, "sequence").unique()
    after = numbers.join(groups, on=keys, how="left", nulls_equal=True)
    return after.select(*keys, "sequence", is_new=(pl.col("sequence") > pl.col("last")).fill_null(value=True))


def _never_new(parts: Iterable[pl.DataFrame], repeated: pl.DataFrame) -> pl.DataFrame:
    """Return those of some collectives that are in several parts, or out of order, which were new in none of them."""
    groups = _sums_of(COLLECTIVES.empty()).groups
    for rows in parts:
        new = _numbered(rows, groups).filter("is_new")
        repeated = repeated.join(new, on=repeated.columns, how="anti", nulls_equal=True)
        last = rows.group_by(*KIND, "group").agg(last=pl.max("sequence"))
        groups = pl.concat([groups, last]).group_by(*KIND, "group").agg(pl.max("last"))
    return repeated


def _counted(numbers: pl.DataFrame) -> pl.DataFrame:
    return numbers.group_by(KIND).agg(collectives=pl.len())


def summarize_kinds(sums: CollectiveSums, iterations: int) -> pl.DataFrame:
    """Return the table COLLECTIVE_KINDS of sums over rows of COLLECTIVES, those of so many iterations."""
    size = pl.col("ranks") * max(iterations, 1)
    numbers = (
        sums.groups.group_by(KIND).agg(groups=pl.len()),
        sums.members.group_by(KIND).agg(ranks=pl.len()),
        sums.counts,
    )
    found = sums.kinds
    for each in numbers:
        found = found.join(each, on=KIND, nulls_equal=True)
    found = found.with_columns(
        pl.col("hidden_ns") / size,
        pl.when(pl.col("sizes") > 0).then("bytes") / size,
        *(pl.when(pl.col("waits") > 0).then(name) / size for name in ("exposed_ns", "arrival_wait_ns")),
        iterations=pl.lit(iterations),
    )
    whole_ns = pl.col("hidden_ns") + pl.col("exposed_ns")
    return (
        found.with_columns(hidden_fraction=pl.when(whole_ns > 0).then(pl.col("hidden_ns") / whole_ns))
        .sort("exposed_ns", *KIND, descending=[True, False, False], nulls_last=True)
        .select(pl.col(name).cast(dtype) for name, dtype in COLLECTIVE_KINDS.schema.items())
    )


def summarize_ranks(sums: CollectiveSums) -> pl.DataFrame:
    """Return the table COLLECTIVE_RANKS of sums over rows of COLLECTIVES."""
    known = [
        pl.when(pl.col("waits") > 0).then(name).alias(name) for name in ("exposed_ns", "arrival_wait_ns")
    ]
    return (
        sums.ranks.with_columns(known)
        .sort("rank")
        .select(pl.col(name).cast(dtype) for name, dtype in COLLECTIVE_RANKS.schema.items())
    )
