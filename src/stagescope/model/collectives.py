"""Finds the calls of one collective on all ranks of its group, who arrived last, and what the wait for it cost.

A recording names a collective ``<operation> in <group>`` and numbers the collectives of each group from 0, so group
and number identify a collective on all ranks that take part in it. What a rank computed between issuing a collective
and waiting for it hid that part of the collective; only the wait is exposed.
"""

from __future__ import annotations

import polars as pl

from stagescope.model.coverage import covered_ns, unite_computing
from stagescope.model.group_kinds import find_group_kinds
from stagescope.model.tables import Column, Table

KINDS = ("collective", "grad_reduce")
SEPARATOR = " in "
ASYNCHRONOUS = " (async)"
"""What follows the operation in the name of an asynchronous collective."""

COLLECTIVES = Table(
    "collectives",
    "one collective on one rank",
    ("group", "sequence", "rank"),
    (
        Column("group", pl.String, "", "Process group: its purpose, its ranks, and its name in parentheses."),
        Column("sequence", pl.Int32, "", "Number of the collective in its group, from 0."),
        Column("rank", pl.Int32, "", "Global rank."),
        Column(
            "group_kind",
            pl.String,
            "",
            "What the group is for: `dp`, `tp`, `cp`, `ep`, `pp`, several joined with +, or `world`; null: unknown.",
            nullable=True,
        ),
        Column("operation", pl.String, "", "What it does, such as all_reduce."),
        Column(
            "is_async",
            pl.Boolean,
            "",
            "Whether it is known to have returned a handle that the training waits for when it likes.",
        ),
        Column("is_reduction", pl.Boolean, "", "Whether it reduces gradients."),
        Column("step", pl.Int32, "", "Training step.", nullable=True),
        Column("stage", pl.Int32, "", "Stage of the action that issued it.", nullable=True),
        Column("bytes", pl.Int64, "B", "The larger of its input and its output on this rank.", nullable=True),
        Column("start_ns", pl.Int64, "ns", "When this rank issued it."),
        Column("end_ns", pl.Int64, "ns", "When this rank knew that it was done."),
        Column(
            "exposed_ns",
            pl.Int64,
            "ns",
            "How long this rank did nothing but wait for it, for late ranks and for the transfer; null: not recorded.",
            nullable=True,
        ),
        Column(
            "arrival_wait_ns",
            pl.Int64,
            "ns",
            "Part of exposed_ns until the last rank issued it.",
            nullable=True,
        ),
        Column(
            "hidden_ns",
            pl.Int64,
            "ns",
            "How long this rank computed between issuing it and waiting for it.",
        ),
        Column("ranks", pl.UInt32, "", "Ranks that recorded it."),
        Column("first_ns", pl.Int64, "ns", "When the first rank issued it."),
        Column("last_rank", pl.Int32, "", "Rank that issued it last; the smallest of several."),
        Column("last_ns", pl.Int64, "ns", "When that rank issued it."),
        Column("late_ns", pl.Int64, "ns", "How much later than the rank before it that rank came; 0 if it is alone."),
    ),
)  # fmt: skip


def find_collectives(spans: pl.DataFrame, ranks: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return the table COLLECTIVES of a spans table; spans without a group or a number are left out.

    `ranks` is the table RANKS, whose coordinates show the kinds of groups whose names do not.
    """
    calls = find_calls(spans)
    if calls.is_empty():
        return COLLECTIVES.empty()
    key = ("group", "sequence")
    last_two = pl.col("start_ns").top_k(2)
    matched = calls.with_columns(
        ranks=pl.len().over(key),
        first_ns=pl.col("start_ns").min().over(key),
        last_rank=pl.col("rank").sort_by("start_ns", "rank", descending=[False, True]).last().over(key),
        last_ns=pl.col("start_ns").max().over(key),
        late_ns=(last_two.max() - last_two.min()).over(key),
        exposed_ns=pl.col("wait_end_ns") - pl.col("wait_start_ns"),
    )
    until_last_ns = pl.min_horizontal("wait_end_ns", "last_ns") - pl.col("wait_start_ns")
    kinds = find_group_kinds(calls.select("group", "rank"), ranks)
    return (
        matched.with_columns(
            arrival_wait_ns=until_last_ns.clip(lower_bound=0), hidden_ns=_hidden(calls, spans)
        )
        .join(kinds, on="group", how="left", maintain_order="left")
        .select(pl.col(name).cast(dtype) for name, dtype in COLLECTIVES.schema.items())
        .sort(COLLECTIVES.order)
    )


def find_calls(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of numbered collectives with their group, number and operation."""
    chosen = pl.col("kind").is_in(KINDS) & pl.col("pair").is_not_null()
    named = spans.lazy().filter(chosen & pl.col("name").str.contains(SEPARATOR, literal=True))
    parts = pl.col("name").str.splitn(SEPARATOR, 2)
    return named.with_columns(
        operation=parts.struct.field("field_0").str.strip_suffix(ASYNCHRONOUS),
        is_async=parts.struct.field("field_0").str.ends_with(ASYNCHRONOUS),
        group=parts.struct.field("field_1"),
        sequence="pair",
        is_reduction=pl.col("kind") == KINDS[1],
    ).collect()


def _hidden(calls: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """Return how long the rank of each call computed until it began to wait; until the end if it never waited."""
    until_ns = pl.coalesce("wait_start_ns", "end_ns").clip(pl.col("start_ns"))
    return covered_ns(
        calls.select("rank", window_start_ns="start_ns", window_end_ns=until_ns), unite_computing(spans)
    )
