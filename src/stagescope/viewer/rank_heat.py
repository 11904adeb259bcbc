"""The heat map of ranks by steps: how long each rank computed, was blocked and was idle in each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.viewer.columns import encode_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_CELLS = 2_000_000
"""Of a larger run, the page has no such map; a cell takes about 7 bytes."""


def rank_heat_section(bubbles: pl.DataFrame, ranks: Sequence[int]) -> bytes | None:
    """Return a column blob of what `step_bubbles` returns; None without steps, and with too many.

    Columns: row, step, window_ns of the pipeline, and of that idle_ns and wait_ns (host blocked on receives and sends);
    sorted by row and step.
    """
    shown = bubbles.filter(pl.col("rank").is_in(list(ranks)))
    if not 0 < shown.height <= MOST_CELLS:
        return None
    rows = shown.select(
        pl.col("rank").replace_strict(ranks, range(len(ranks)), return_dtype=pl.Int32).alias("row"),
        "step",
        "window_ns",
        "idle_ns",
        wait_ns=pl.col("receive_wait_ns") + pl.col("send_wait_ns"),
    )
    return encode_columns(rows.sort("row", "step"), chained={"row": None})
