"""Find the training steps in one log, from the times and micro-batches of its jobs.

A step opens with the forward of micro-batch 0 on the first model chunk: every pass of PaddlePaddle 3.3.1
(passes/pipeline_scheduler_pass/) puts it first. It also opens where a job of the step is repeated, so that a missing
opening line does not merge two steps. Jobs before the first opening are the tail of a step. Steps are slots here,
counted from 0 in each log; step_matching.py decides which slots of which ranks are one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stagescope.ingest.paddle.job_types import describe_job, span_name
from stagescope.model.tables import KindType, LaneType
from stagescope.vocabulary.kinds import ACTION_KINDS, COMPUTE, RECEIVES

if TYPE_CHECKING:
    import numpy.typing as npt

    Rows = npt.NDArray[np.int64]

BACKWARDS = ("backward", "backward_input")


def with_types(jobs: pl.DataFrame) -> pl.DataFrame:
    """Return jobs with the meaning of their types: kind, lane, chunk, piece, once, name; and with is_main and opens.

    `is_main` marks the jobs of the device's calculation stream, which are sequential; `opens` marks the ones among them
    that open a step. Without a forward of micro-batch 0, the kind of the first job opens steps.
    """
    types = jobs["type"].unique(maintain_order=True)
    rows: list[dict[str, Any]] = [
        {"type": text, "name": span_name(text), **describe_job(text)._asdict()} for text in types
    ]
    schema: dict[str, pl.DataType | type[pl.DataType]] = {
        "type": pl.String, "name": pl.String, "kind": KindType, "lane": LaneType,
        "chunk": pl.Int32, "piece": pl.Int32, "once": pl.Boolean,
    }  # fmt: skip
    described = jobs.join(pl.DataFrame(rows, schema), on="type", how="left", maintain_order="left")
    is_main = described["lane"] == COMPUTE
    described = described.with_columns(is_main=is_main if is_main.any() else pl.lit(value=True))
    forward = pl.col("is_main") & (pl.col("kind") == "forward")
    first = (pl.col("microbatch") == 0) & (pl.col("piece") == 0)
    opens = forward & first & (pl.col("chunk") == pl.col("chunk").filter(forward).min())
    described = described.with_columns(opens=opens.fill_null(value=False))
    return described if described["opens"].any() else _opened_by_first(described)


def _opened_by_first(jobs: pl.DataFrame) -> pl.DataFrame:
    same = ["type", "microbatch"]
    first = jobs.filter("is_main").sort("start_ns", "byte").head(1).select(*same, opens=pl.lit(value=True))
    marked = jobs.drop("opens").join(first, on=same, how="left", maintain_order="left")
    return marked.with_columns(pl.col("opens").fill_null(value=False))


def with_slots(jobs: pl.DataFrame) -> pl.DataFrame:
    """Return jobs in time order with `slot`, the step within this log; a slot never spans two launches.

    `jobs` is the result of split_launches. A transfer belongs to the step of the job that consumes or produced it, an
    optimizer job to the step that it ends, a learning-rate job after it to the next step.
    """
    in_time = jobs.sort("launch", "start_ns", "byte")
    main = in_time.filter("is_main")
    main = main.with_columns(slot=pl.Series(np.cumsum(_openings(main)) - 1, dtype=pl.Int32))
    aside = in_time.filter(~pl.col("is_main"))
    if aside.is_empty():
        return main
    placed = pl.concat([main, _with_other_slots(aside, main).select(main.columns)])
    return placed.sort("launch", "start_ns", "byte")


def _openings(main: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Return for every main job whether a step begins with it."""
    begins = main.select(
        (pl.col("launch") != pl.col("launch").shift(1)).fill_null(value=True) | pl.col("opens")
    )
    opens: npt.NDArray[np.bool_] = begins.to_series().to_numpy().copy()
    next_row = pl.col("row").shift(-1).over("launch", "type", "microbatch")
    repeats = pl.when(pl.col("kind").is_in(ACTION_KINDS)).then(next_row).fill_null(pl.len())
    following = main.with_row_index("row").select(repeats.cast(pl.Int64)).to_series().to_numpy()
    # The earliest repetition of any job from a row on: a step that begins at the row ends there at the latest.
    repeated = np.minimum.accumulate(following[::-1])[::-1]
    starts = np.flatnonzero(opens)
    ends = np.append(starts[1:], main.height)
    for start, end in zip(starts, ends, strict=True):
        row = repeated[start]
        while row < end:
            opens[row] = True
            row = repeated[row]
    return opens


def _with_other_slots(aside: pl.DataFrame, main: pl.DataFrame) -> pl.DataFrame:
    """Return the jobs off the calculation stream with their slot, by the job that they belong to or by time."""
    aside = aside.with_row_index("row")
    before = _nearest(aside, main, "before", ["launch"])
    after = _nearest(aside, main, "after", ["launch"])
    fed = pl.concat(
        [
            _nearest(aside.filter(pl.col("kind") == kind), main.filter(pl.col("kind").is_in(jobs)), side, KEY)
            for kind, jobs, side in FEEDS
        ]
    )
    found = aside.join(fed, on="row", how="left").join(before, on="row", how="left", suffix="_before")
    found = found.join(after, on="row", how="left", suffix="_after")
    is_early = pl.col("once") & (pl.col("other_kind_before") == "optimizer").fill_null(value=True)
    is_receive = pl.col("kind").is_in(RECEIVES)
    by_time = pl.when(is_early | is_receive)
    slot = by_time.then(pl.coalesce("other_slot_after", "other_slot_before")).otherwise(
        pl.coalesce("other_slot_before", "other_slot_after")
    )
    return found.with_columns(slot=pl.coalesce("other_slot", slot).cast(pl.Int32))


KEY = ["launch", "chunk", "microbatch"]
FEEDS = (
    ("recv_forward", ("forward",), "after"),
    ("recv_backward", BACKWARDS, "after"),
    ("send_forward", ("forward",), "before"),
    ("send_backward", BACKWARDS, "before"),
)
"""Kind of a transfer, the kinds of the job that it belongs to, and whether that job starts after or before it."""


def _nearest(aside: pl.DataFrame, main: pl.DataFrame, side: str, by: list[str]) -> pl.DataFrame:
    """Return row, other_slot and other_kind: the main job that starts nearest before or after each job."""
    others = main.select(*by, "start_ns", other_slot="slot", other_kind="kind").sort("start_ns")
    joined = aside.sort("start_ns").join_asof(
        others,
        on="start_ns",
        by=by,
        strategy="forward" if side == "after" else "backward",
        check_sortedness=False,  # both sides are sorted above; polars cannot check that with `by`
    )
    return joined.select("row", "other_slot", "other_kind")
