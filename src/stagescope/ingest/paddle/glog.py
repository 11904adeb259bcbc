"""What glog writes before a line, `I1020 09:15:07.265326`: local time, without year or zone.

Source: glog 0.6, src/logging.cc. It says when the line was written, so a job that is told of had ended by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from stagescope.ingest.paddle.log_scan import LogContents

ZONE_NS = 900_000_000_000
"""Time zones lie whole quarters of an hour apart."""

FARTHEST_ZONE_NS = 14 * 4 * ZONE_NS
EARLIEST_NS = 120_000_000_000
"""Lines are written up to 13 minutes after a job's end (the length of a step), and seemingly up to 2 before it."""

TOLERATED_NS = 1_000_000_000


def with_written_ns(frame: pl.DataFrame, near: str) -> pl.DataFrame:
    """Return a frame with written_ns, its column `written` as if it were UTC, in the year that brings it closest.

    `near` names a column of nanoseconds since the epoch. A moment that is none becomes null.
    """
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
    """Return a warning when jobs end more than a second after the line that tells of them was written.

    The zone is not known: whole quarters of an hour between the two are taken for it.
    """
    ended = contents["written"].join(jobs.select("byte", "end_ns"), on="byte")
    lag = with_written_ns(ended, "end_ns").select(lag_ns=pl.col("written_ns") - pl.col("end_ns"))
    lag_ns = lag["lag_ns"].drop_nulls().to_numpy()
    after_end_ns = (lag_ns + EARLIEST_NS) % ZONE_NS - EARLIEST_NS
    wrong = (after_end_ns < -TOLERATED_NS) | (np.abs(lag_ns) > FARTHEST_ZONE_NS)
    if not wrong.any():
        return []
    text = (
        "jobs end after the line was written that tells of them, or days away from it: the clock was set, or "
        "the lines are from elsewhere"
    )
    return [Diagnostic("warning", text, source, rank, f"of {len(lag_ns)} looked at", int(wrong.sum()))]
