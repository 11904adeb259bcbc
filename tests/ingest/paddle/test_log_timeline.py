"""Invariances of the Timeline of worker logs; test_log_reader.py tests its content."""

from itertools import permutations

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from paddle_logs import PaddleRun, write_worker_logs
from stagescope.ingest.paddle import find_worker_logs, read_worker_logs
from stagescope.ingest.reader import ReadOptions
from stagescope.model import TABLES
from stagescope.model.validate import conform

RUN = PaddleRun(schedule="zb-v", devices=3, microbatches=6, steps=3, first_step=4, noise_lines=0.2)


@pytest.fixture
def logs(tmp_path):
    write_worker_logs(tmp_path, RUN)
    return find_worker_logs(tmp_path)


def test_the_order_of_the_logs_changes_nothing(logs):
    expected = read_worker_logs(logs, ReadOptions())
    for mixed in permutations(logs):
        timeline = read_worker_logs(mixed, ReadOptions())
        for table in TABLES:
            assert_frame_equal(getattr(timeline, table.name), getattr(expected, table.name))


def test_every_table_is_as_declared(logs):
    timeline = read_worker_logs(logs, ReadOptions())
    for table in TABLES:
        assert_frame_equal(conform(getattr(timeline, table.name), table), getattr(timeline, table.name))


@pytest.mark.parametrize("shift_us", [-86_400_000_000, 1, 123_456_789])
def test_shifting_every_clock_shifts_every_time_and_nothing_else(tmp_path, logs, shift_us):
    write_worker_logs(tmp_path / "shifted", RUN, skew_us=shift_us)
    shifted = read_worker_logs(find_worker_logs(tmp_path / "shifted"), ReadOptions())
    back = [pl.col(name) - shift_us * 1000 for name in ("start_ns", "end_ns")]
    assert_frame_equal(shifted.spans.with_columns(back), read_worker_logs(logs, ReadOptions()).spans)


def test_omitting_a_rank_does_not_change_the_others(logs):
    every = read_worker_logs(logs, ReadOptions())
    some = read_worker_logs([logs[0], logs[2]], ReadOptions())
    assert_frame_equal(some.spans, every.spans.filter(pl.col("rank") != 1))
    assert_frame_equal(some.steps, every.steps.filter(pl.col("rank") != 1))
