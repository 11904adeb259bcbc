"""Times in the prefix that glog writes before a line, `I1020 09:15:07.265326`: local time without year or time zone.

Source: glog 0.6, src/logging.cc. It is the time of writing the line, so a job on the line had ended by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from stagescope.ingest.paddle.log_scan import LogContents

ZONE_NS = 900_000_000_000
"""Time zones differ by whole quarters of an hour."""

FARTHEST_ZONE_NS = 14 * 4 * ZONE_NS
EARLIEST_NS = 120_000_000_000
"""Lines are written up to 13 minutes (a step's length) after a job's end, and apparently up to 2 minutes before it."""

TOLERATED_NS = 1_000_000_000


def with_written_ns(frame: pl.DataFrame, near: str) -> pl.DataFrame:
    """Return a frame with written_ns: its column `written`, read as UTC, in the year closest to `near`.

    `near` names a column of nanoseconds since the epoch. Invalid times become null.
    """
    # Around New Year, time zone and delay can move a line into a neighboring year.
    year = pl.from_epoch(near, time_unit="ns").dt.year()
    moments = [
        pl.concat_str((year + shift).cast(pl.String), pl.lit(" "), pl.col("written"))
        .str.to_datetime("%Y %m%d %H:%M:%S%.6f", time_unit="ns", strict=False)
        .cast(pl.Int64)
        .alias(f"candidate{shift}")
        for shift in (-1, 0, 1)
    ]
    candidates = pl.concat_list(pl.col("^candidate.*$"))
    nearest = candidates.list.get((candidates - pl.col(near)).list.eval(pl.element().abs()).list.arg_min())
    return (
        frame.with_columns(moments)
        .with_columns(written_ns=nearest)
        .drop(pl.selectors.starts_with("candidate"))
    )


def check_clock(contents: LogContents, jobs: pl.DataFrame, source: str, rank: int) -> list[Diagnostic]:
    """Return a warning if jobs end more than a second after the line about them was written.

    The time zone is unknown: whole quarters of an hour between the two are attributed to it.
    """
    ended = contents["written"].join(jobs.select("byte", "end_ns"), on="byte")
    lag = with_written_ns(ended, "end_ns").select(lag_ns=pl.col("written_ns") - pl.col("end_ns"))
    lag_ns = lag["lag_ns"].drop_nulls().to_numpy()
    # Modulo a quarter of an hour, the unknown time zone cancels out.
    after_end_ns = (lag_ns + EARLIEST_NS) % ZONE_NS - EARLIEST_NS
    wrong = (after_end_ns < -TOLERATED_NS) | (np.abs(lag_ns) > FARTHEST_ZONE_NS)
    if not wrong.any():
        return []
    text = (
        "jobs end after their log line was written, or days away from it: the clock was adjusted, or the lines "
        "come from another run"
    )
    checked = f"of {len(lag_ns)} checked"
    return [Diagnostic("warning", text, source, rank, checked, int(wrong.sum()), code="clock.contradictory")]
