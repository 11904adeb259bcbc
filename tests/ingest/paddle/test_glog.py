"""The prefix of glog: times without a year."""

from datetime import datetime, timezone

import polars as pl
import pytest

from stagescope.ingest.paddle.glog import check_clock, with_written_ns
from stagescope.ingest.paddle.log_scan import LogContents

SECOND_NS = 1_000_000_000


def ns(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=timezone.utc).timestamp()) * SECOND_NS


@pytest.mark.parametrize(
    ("written", "near", "expected"),
    [
        ("1020 09:15:07.265326", (2023, 10, 20), ns(2023, 10, 20, 9, 15, 7) + 265_326_000),
        ("1231 23:59:59.000001", (2024, 1, 1), ns(2023, 12, 31, 23, 59, 59) + 1_000),
        ("0101 00:00:01.000000", (2023, 12, 31), ns(2024, 1, 1, 0, 0, 1)),
        ("0229 12:00:00.000000", (2024, 3, 1), ns(2024, 2, 29, 12)),
        ("1399 12:00:00.000000", (2024, 3, 1), None),
        (None, (2024, 3, 1), None),
    ],
)
def test_chooses_the_closest_year(written, near, expected):
    frame = pl.DataFrame(
        {"written": [written], "near_ns": [ns(*near)]}, {"written": pl.String, "near_ns": pl.Int64}
    )
    assert with_written_ns(frame, "near_ns")["written_ns"].to_list() == [expected]


def diagnosed(lags_s: list[float]) -> list:
    """Return the diagnostics of jobs whose lines were written with these lags after their ends."""
    end_ns = ns(2023, 10, 20, 9)
    written = [datetime.fromtimestamp(end_ns / SECOND_NS + lag, tz=timezone.utc) for lag in lags_s]
    contents = LogContents()
    moments = [f"{moment:%m%d %H:%M:%S.%f}" for moment in written]
    contents.add("written", pl.DataFrame({"byte": range(len(lags_s)), "written": moments}))
    jobs = pl.DataFrame({"byte": range(len(lags_s)), "end_ns": [end_ns] * len(lags_s)})
    return [(note.severity, note.count) for note in check_clock(contents, jobs, "workerlog.0", 0)]


@pytest.mark.parametrize("zone_h", [-7, 0, 5.75, 8])
def test_lines_written_after_their_jobs_are_valid_in_any_time_zone(zone_h):
    assert diagnosed([zone_h * 3600 + lag for lag in (0.0, 0.3, 20, 300)]) == []


def test_lines_written_before_their_jobs_ended_are_a_warning():
    assert diagnosed([8 * 3600 + lag for lag in (0.3, -0.5, -30)]) == [("warning", 1)]


def test_lines_written_days_away_from_their_jobs_are_a_warning():
    assert diagnosed([3 * 86_400 + 1.0]) == [("warning", 1)]
