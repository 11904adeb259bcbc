"""Which training step each span of a rank belongs to.

torch.profiler marks steps (``ProfilerStep#3``) where the training calls `step()` and the profiler has a schedule. Else
a step ends where the optimizer has stepped; and without an optimizer it ends before a job that this step has had, or,
where jobs have no names, where every forward has had its backward. Such steps are counted from 0 in each trace.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stagescope.ingest.kineto.names import step_number
from stagescope.vocabulary.kinds import PIPELINE_JOBS

JOB = ["kind", "stage", "microbatch"]
STEPS_SCHEMA = {"step": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}


def profiler_steps(annotations: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that torch.profiler marked: step, start_ns, end_ns."""
    rows = [
        (number, start_ns, end_ns)
        for name, start_ns, end_ns in annotations.filter(pl.col("name").str.starts_with("ProfilerStep#"))
        .select("name", "start_ns", "end_ns")
        .iter_rows()
        if (number := step_number(name)) is not None
    ]
    return pl.DataFrame(rows, STEPS_SCHEMA, orient="row").sort("start_ns")


def with_steps(spans: pl.DataFrame, steps: pl.DataFrame, openings: list[int]) -> pl.DataFrame:
    """Return spans with `step`, from their own names, else the profiler's steps, else from when a new step opens."""
    moment = spans.select("mark_start_ns" if "mark_start_ns" in spans.columns else "start_ns").to_series()
    if not steps.is_empty():
        index = np.searchsorted(steps["start_ns"].to_numpy(), moment.to_numpy(), side="right") - 1
        numbers, ends = steps["step"].to_numpy(), steps["end_ns"].to_numpy()
        inside = (index >= 0) & (moment.to_numpy() <= ends[index])
        found = pl.Series(np.where(inside, numbers[index], -1), dtype=pl.Int32)
    else:
        found = pl.Series(
            np.searchsorted(np.array(openings, np.int64), moment.to_numpy(), side="right"), dtype=pl.Int32
        )
    own = pl.col("step") if "step" in spans.columns else pl.lit(None, pl.Int32)
    given = found.to_frame("found").select(pl.when(pl.col("found") >= 0).then("found")).to_series()
    return spans.with_columns(step=pl.coalesce(own, given))


def named_steps(jobs: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that the names of jobs tell: step, start_ns, end_ns; each from the end of the one before it."""
    named = jobs.filter(pl.col("kind").is_in(PIPELINE_JOBS)) if "step" in jobs.columns else jobs.clear()
    if named.is_empty() or named["step"].null_count():
        return pl.DataFrame(schema=STEPS_SCHEMA)
    ends = named.group_by("step").agg(pl.max("mark_end_ns"), pl.min("mark_start_ns")).sort("mark_start_ns")
    return ends.select(
        pl.col("step").cast(pl.Int32),
        start_ns=pl.col("mark_end_ns").shift(1, fill_value=-(2**62)),
        end_ns=pl.when(pl.int_range(pl.len()) < pl.len() - 1).then("mark_end_ns").otherwise(2**62),
    )


def step_openings(jobs: pl.DataFrame) -> list[int]:
    """Return when each step but the first opens, without a mark of the profiler."""
    optimizers = jobs.filter(pl.col("kind") == "optimizer")["end_ns"].sort()
    # Where a job certainly runs: its estimated start may lie before the end of the optimizer.
    pipeline = jobs.filter(pl.col("kind").is_in(PIPELINE_JOBS)).sort("mark_start_ns")
    if len(optimizers):
        # Several optimizers may step in a row: the next job after them opens the step.
        starts = pipeline["mark_start_ns"].to_numpy()
        index = np.unique(np.searchsorted(starts, optimizers.to_numpy()))
        last = optimizers.to_numpy()
        opened = [int(starts[i]) for i in index if 0 < i < len(starts)]
        return [int(last[np.searchsorted(last, start, side="right") - 1]) for start in opened]
    return _at_returns(pipeline) if "order" in jobs.columns else _at_repetitions(pipeline)


def _at_returns(jobs: pl.DataFrame) -> list[int]:
    """Return the ends of the jobs after which no forward waits for its backward, but the last one."""
    in_flight = pl.when(pl.col("kind") == "forward").then(1).otherwise(-1).cum_sum()
    returns = jobs.select("mark_end_ns", returns=in_flight == 0)[:-1].filter("returns")
    return returns["mark_end_ns"].to_list()


def _at_repetitions(jobs: pl.DataFrame) -> list[int]:
    """Return the ends of the jobs before those that begin a step: one that the step has had already comes again."""
    following = pl.col("row").shift(-1).over(JOB).fill_null(pl.len())
    again = jobs.with_row_index("row").select(following.cast(pl.Int64)).to_series().to_numpy()
    if len(again) == 0:
        return []
    repeated = np.minimum.accumulate(again[::-1])[::-1]
    ends = jobs["end_ns"].to_numpy()
    row, openings = int(repeated[0]), []
    while row < len(ends):
        openings.append(int(ends[row - 1]))
        row = int(repeated[row])
    return openings
