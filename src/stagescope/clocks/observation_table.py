"""The columns of tables of observations, and the order of the spans that they are made from."""

from __future__ import annotations

import polars as pl

ROWS = ("rank", "start_ns", "end_ns")
"""The order of a spans table."""

OBSERVATION_SCHEMA = {
    "kind": pl.String,
    "source": pl.Int32,
    "target": pl.Int32,
    "source_rank": pl.Int32,
    "target_rank": pl.Int32,
    "step": pl.Int32,
    "microbatch": pl.Int32,
    "sent_ns": pl.Int64,
    "received_ns": pl.Int64,
    "waited": pl.Boolean,
    "stay_ns": pl.Int64,
    "by_exit": pl.Boolean,
    "scatter_ns": pl.Int64,
    "constant_ns": pl.Int64,
    "target_constant_ns": pl.Int64,
}
