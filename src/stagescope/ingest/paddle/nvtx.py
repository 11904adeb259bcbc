"""Ranges of Paddle's NVTX lines of October and November 2023: pushes and pops, one stack per thread.

Source: paddle/fluid/platform/profiler/cuda_profiler.cc under FLAGS_auto_parallel_profiler. A pop has no name. A range
whose name is a number is a training step; `forward-3`, as the executor names its ranges, is a job on the host.
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

STEP_NAME = r"^\d{1,9}$"
JOB_NAME = r"^(.{1,64}?)-(\d{1,9})$"


class Ranges(NamedTuple):
    """Ranges that were pushed and popped, in the order of their pushes, and the counts of unpaired lines.

    `ranges` has byte (of the push), thread, name, start_ns and end_ns.
    """

    ranges: pl.DataFrame
    pushes_without_pop: int
    pops_without_push: int

    @property
    def steps(self) -> pl.DataFrame:
        """The ranges of training steps: step, start_ns, end_ns."""
        numbered = self.ranges.filter(pl.col("name").str.contains(STEP_NAME))
        return numbered.select(pl.col("name").cast(pl.Int32).alias("step"), "start_ns", "end_ns")


def match_ranges(lines: pl.DataFrame) -> Ranges:
    """Return the ranges of push and pop lines: byte, thread, name (null: a pop), time_ns, in file order.

    The depth of the stack identifies the pairs: at one thread and depth, pushes and pops alternate. A pop on an empty
    stack lowers the depth below its previous minimum, and is counted instead.
    """
    change = pl.when(pl.col("name").is_null()).then(-1).otherwise(1)
    is_pop = pl.col("name").is_null()
    ordered = lines.sort("byte").with_columns(height=change.cum_sum().over("thread"))
    # The running minimum below 0 counts pops on an empty stack: ranges pushed before the log began.
    lowest = pl.min_horizontal(pl.col("height").cum_min().over("thread"), 0)
    ordered = ordered.with_columns(lowest=lowest)
    lower = pl.col("lowest") < pl.col("lowest").shift(1).over("thread").fill_null(0)
    on_stack = ordered.filter(~(is_pop & lower)).with_columns(
        depth=pl.col("height") - pl.col("lowest") + is_pop.cast(pl.Int32)
    )
    same = ["thread", "depth"]
    paired = on_stack.with_columns(end_ns=pl.col("time_ns").shift(-1).over(same)).filter(~is_pop)
    ranges = paired.drop_nulls("end_ns")
    return Ranges(
        ranges.select("byte", "thread", "name", start_ns="time_ns", end_ns="end_ns"),
        paired.height - ranges.height,
        ordered.height - on_stack.height,
    )
