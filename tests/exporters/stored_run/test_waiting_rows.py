"""Rows that wait for the alignment of clocks come back as they were, in the order of their tables."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
from polars.testing import assert_frame_equal

from planted_runs import Shape, random_times, run
from stagescope.exporters.stored_run.partition_files import UNENCODED
from stagescope.exporters.stored_run.waiting_rows import wait, waiting
from stagescope.model.stored_run import PARTITIONED

SHAPE = Shape(pipelines=2, stages=2, microbatches=2, steps=2)


def test_rows_of_several_parts_come_back_in_the_order_of_their_tables(tmp_path):
    planted = run(random_times(SHAPE))
    is_first = pl.col("rank") % 2 == 0
    parts = [
        replace(planted, spans=planted.spans.filter(own), steps=planted.steps.filter(own))
        for own in (is_first, ~is_first)
    ]
    files = [wait(part, tmp_path, f"part {number}") for number, part in enumerate(parts)]
    again = waiting(files)
    for table in PARTITIONED:
        assert_frame_equal(getattr(again, table.name), getattr(planted, table.name))
    assert len(list((tmp_path / UNENCODED).iterdir())) == sum(map(len, files))
