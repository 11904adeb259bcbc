"""Finds the calls of one collective on all ranks of its group, and who arrived last.

A recording names a collective ``<operation> in <group>`` and numbers the collectives of each group from 0, so group
and number identify a collective on all ranks that take part in it.
"""

from __future__ import annotations

import polars as pl

from stagescope.model.tables import Column, Table

KINDS = ("collective", "grad_reduce")
SEPARATOR = " in "

COLLECTIVES = Table(
    "collectives",
    "one collective on one rank",
    ("group", "sequence", "rank"),
    (
        Column("group", pl.String, "", "Process group: its purpose, its ranks, and its name in parentheses."),
        Column("sequence", pl.Int32, "", "Number of the collective in its group, from 0."),
        Column("rank", pl.Int32, "", "Global rank."),
        Column("operation", pl.String, "", "What it does, such as all_reduce."),
        Column("is_reduction", pl.Boolean, "", "Whether it reduces gradients."),
        Column("step", pl.Int32, "", "Training step.", nullable=True),
        Column("stage", pl.Int32, "", "Stage of the action that issued it.", nullable=True),
        Column("bytes", pl.Int64, "B", "The larger of its input and its output on this rank.", nullable=True),
        Column("start_ns", pl.Int64, "ns", "When this rank issued it."),
        Column("end_ns", pl.Int64, "ns", "When this rank knew that it was done."),
        Column(
            "blocked_ns",
            pl.Int64,
            "ns",
            "How long this rank did nothing but wait for it; null: not recorded.",
            nullable=True,
        ),
        Column("ranks", pl.UInt32, "", "Ranks that recorded it."),
        Column("last_rank", pl.Int32, "", "Rank that issued it last; the smallest of several."),
        Column("last_ns", pl.Int64, "ns", "When that rank issued it."),
        Column("late_ns", pl.Int64, "ns", "How much later than the rank before it that rank came; 0 if it is alone."),
    ),
)  # fmt: skip


def find_collectives(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the table COLLECTIVES of a spans table; spans without a group or a number are left out."""
    chosen = pl.col("kind").is_in(KINDS) & pl.col("pair").is_not_null()
    named = spans.lazy().filter(chosen & pl.col("name").str.contains(SEPARATOR, literal=True))
    parts = pl.col("name").str.splitn(SEPARATOR, 2)
    key = ("group", "sequence")
    calls = named.with_columns(
        operation=parts.struct.field("field_0"),
        group=parts.struct.field("field_1"),
        sequence="pair",
        is_reduction=pl.col("kind") == KINDS[1],
        blocked_ns=pl.col("wait_end_ns") - pl.col("wait_start_ns"),
    )
    last_two = pl.col("start_ns").top_k(2)
    return (
        calls.with_columns(
            ranks=pl.len().over(key),
            last_rank=pl.col("rank").sort_by("start_ns", "rank", descending=[False, True]).last().over(key),
            last_ns=pl.col("start_ns").max().over(key),
            late_ns=(last_two.max() - last_two.min()).over(key),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in COLLECTIVES.schema.items())
        .sort(COLLECTIVES.order)
        .collect()
    )
