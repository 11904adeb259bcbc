"""The heat map of ranks by steps: how long each rank computed, was blocked and was idle in each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.viewer.columns import encode_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_CELLS = 2_000_000
"""Of a larger run, the page has no such map; a cell takes about 4 bytes."""


def rank_heat_section(bubbles: pl.DataFrame, ranks: Sequence[int]) -> bytes | None:
    """Return a column blob of what `step_bubbles` returns; None without steps, and with too many.

    Columns: row, step, work_ns, wait_ns (host blocked on receives and sends) and idle_ns within the window of the
    pipeline, with three significant digits, and window_ns; sorted by row and step.
    """
    shown = bubbles.filter(pl.col("rank").is_in(list(ranks)))
    if not 0 < shown.height <= MOST_CELLS:
        return None
    wait_ns = pl.col("receive_wait_ns").fill_null(0) + pl.col("send_wait_ns").fill_null(0)
    rows = shown.select(
        pl.col("rank").replace_strict(ranks, range(len(ranks)), return_dtype=pl.Int32).alias("row"),
        "step",
        *(
            three_digits(time).alias(name)
            for name, time in (("work_ns", pl.col("busy_ns")), ("wait_ns", wait_ns))
        ),
        three_digits(pl.col("idle_ns")).alias("idle_ns"),
        "window_ns",
    )
    return encode_columns(rows.sort("row", "step"), chained={"row": None})


def three_digits(time_ns: pl.Expr) -> pl.Expr:
    """Return times rounded to three significant digits; 0 stays 0 and nothing else becomes 0.

    The trailing digits of times are noise that does not compress: to the nanosecond, slack was a tenth of a page.
    """
    digits = time_ns.clip(1).cast(pl.Float64).log10().floor().cast(pl.Int64)
    unit = pl.lit(10, pl.Int64).pow((digits - 2).clip(0)).cast(pl.Int64)
    return ((time_ns + unit // 2) // unit * unit).cast(pl.Int64)
