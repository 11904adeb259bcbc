"""Arrows between the calls of one collective on the ranks of its group, from the first rank to every other one."""

from __future__ import annotations

import polars as pl

from stagescope.model.collectives import KINDS

KEY = ["name", "step", "pair"]


def with_collective_flows(slices: pl.DataFrame, flows: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the flows (row numbers `send` and `recv` of `slices`) with those of collectives, and how many these are.

    Calls are matched by the name, which contains the group, and by their number in the group (`pair`), where both are
    known. A rank that recorded a number twice in one step has no arrow: nothing shows which call is which.
    """
    calls = (
        slices.with_row_index("row")
        .filter(
            pl.col("kind").cast(pl.String).is_in(KINDS) & ~pl.col("is_wait") & pl.col("pair").is_not_null()
        )
        .filter(pl.col("name").is_not_null() & (pl.len().over("rank", *KEY) == 1))
        .sort("start_ns", "rank")
    )
    first = calls.unique(KEY, keep="first", maintain_order=True).select(*KEY, send="row")
    ends = calls.join(first, on=KEY, nulls_equal=True).filter(pl.col("row") != pl.col("send"))
    found = ends.select(pl.col("send"), recv="row").cast(dict(zip(flows.columns, flows.dtypes, strict=True)))
    return pl.concat([flows, found.select(flows.columns)]), found.height
