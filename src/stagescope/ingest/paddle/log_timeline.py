"""Timeline of worker logs: each log is scanned on its own, then steps are matched across all ranks."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.paddle import errors
from stagescope.ingest.paddle.launches import split_launches
from stagescope.ingest.paddle.log_jobs import DEVICE, LAUNCHES, jobs_of
from stagescope.ingest.paddle.log_scan import scan_log
from stagescope.ingest.paddle.step_matching import match_steps
from stagescope.ingest.paddle.steps import with_slots, with_types
from stagescope.ingest.source_clocks import source_clocks
from stagescope.ingest.streams import open_stream
from stagescope.model import RANKS, SPANS, STEPS, Timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.tables import LaneType
from stagescope.model.validate import conform
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stagescope.ingest.paddle.worker_logs import WorkerLog
    from stagescope.ingest.reader import ReadOptions

SPAN_COLUMNS = ("rank", "lane", "kind", "step", "chunk", "microbatch", "start_ns", "end_ns", "name")
NO_JOB_LINES = "no job line: this rank was not profiled"


class RankLog(NamedTuple):
    """Content of one log: its jobs by time with their slots, and the slots themselves.

    Both are None for a log without jobs.
    """

    log: WorkerLog
    jobs: pl.DataFrame | None
    slots: pl.DataFrame | None
    notes: list[Diagnostic]


def read_worker_logs(logs: Sequence[WorkerLog], options: ReadOptions) -> Timeline:
    """Return the Timeline of some worker logs, which belong to one run (or to consecutive launches of it).

    Spans have step, chunk and micro-batch; stages are null. Their name is the job's type where it differs from the
    kind. Each machine has a clock of its own. Damaged lines, logs without jobs and missing files are counted in
    diagnostics. Raises InputError if no log contains a job, and for two logs of one rank.
    """
    _check_ranks_once(logs)
    read = [_read_log(log, options) for log in logs]
    used = {one.log: (one.jobs, one.slots) for one in read if one.jobs is not None and one.slots is not None}
    if not used:
        raise errors.no_job_lines([log.path for log in logs if log.path.exists()] or [logs[0].path])
    steps, notes = match_steps(pl.concat(slots for _, slots in used.values()))
    spans = pl.concat(_spans(log, jobs, steps) for log, (jobs, _) in used.items())
    return Timeline(
        spans=conform(spans, SPANS),
        ranks=_ranks(logs),
        steps=_steps(spans),
        clocks=_clocks(logs),
        diagnostics=diagnostics_table([*(note for one in read for note in one.notes), *notes]),
    )


def _check_ranks_once(logs: Iterable[WorkerLog]) -> None:
    for one, other in pairwise(sorted(logs, key=lambda log: log.rank)):
        if one.rank == other.rank:
            raise InputError.duplicate_rank(one.rank, (str(one.path), str(other.path)))


def _read_log(log: WorkerLog, options: ReadOptions) -> RankLog:
    try:
        with open_stream(log.path) as stream:
            contents = scan_log(stream)
    except InputError as error:
        text = f"not read: {error}"
        unreadable = Diagnostic("error", text, str(log.path), log.rank, code="file.unreadable")
        return RankLog(log, None, None, [unreadable])
    options.done(log.path)
    found = jobs_of(contents, log)
    if found.jobs.is_empty():
        empty = Diagnostic("error", NO_JOB_LINES, str(log.path), log.rank, code="jobs.none")
        return RankLog(log, None, None, [*found.notes, empty])
    jobs = with_slots(split_launches(with_types(found.jobs), contents["banners"]))
    # A launch has no end; the next launch of the step is an upper bound for drawing.
    if found.times == LAUNCHES:
        jobs = jobs.with_columns(
            end_ns=pl.col("start_ns").shift(-1).over("slot").fill_null(pl.col("start_ns"))
        )
    # Host times on the compute lane would enter the bubble.
    if found.times != DEVICE:
        jobs = jobs.with_columns(lane=pl.lit(HOST, LaneType))
    return RankLog(log, jobs, _slots(log, jobs, found.nvtx_steps), found.notes)


def _slots(log: WorkerLog, jobs: pl.DataFrame, nvtx_steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of one log, in the shape of match_steps."""
    slots = (
        jobs.filter("is_main")
        .group_by("slot", maintain_order=True)
        .agg(
            pl.first("launch"),
            pl.first("banner_first"),
            pl.first("banner_stop"),
            pl.min("start_ns"),
            pl.max("end_ns"),
            is_tail=~pl.first("opens"),
        )
    )
    # The device starts a step after the host has entered its range, and before the host enters the next one.
    ranges = nvtx_steps.select("start_ns", nvtx_step="step").sort("start_ns")
    numbered = slots.sort("start_ns").join_asof(ranges, on="start_ns", strategy="backward")
    return numbered.with_columns(rank=pl.lit(log.rank, pl.Int32), clock=pl.lit(_clock(log)))


def _spans(log: WorkerLog, jobs: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    own = steps.filter(pl.col("rank") == log.rank).select("slot", "step")
    numbered = jobs.join(own, on="slot", how="left", maintain_order="left")
    microbatch = pl.when(~pl.col("once") & (pl.col("microbatch") >= 0)).then("microbatch")
    return numbered.with_columns(rank=pl.lit(log.rank, pl.Int32), microbatch=microbatch).select(SPAN_COLUMNS)


def _steps(spans: pl.DataFrame) -> pl.DataFrame:
    steps = spans.group_by("step", "rank").agg(pl.min("start_ns"), pl.max("end_ns"))
    return conform(steps, STEPS)


def _ranks(logs: Iterable[WorkerLog]) -> pl.DataFrame:
    rows = [
        {
            "rank": log.rank,
            "machine": log.machine,
            "device": f"GPU:{log.device}",
            "clock": _clock(log),
            "source": str(log.path),
        }
        for log in logs
    ]
    return conform(pl.DataFrame(rows, infer_schema_length=None), RANKS)


def _clocks(logs: Iterable[WorkerLog]) -> pl.DataFrame:
    """Return one clock per machine: gettimeofday, not aligned between machines."""
    machines = {_clock(log): log.machine for log in logs}
    return source_clocks(machines, "one clock" if len(machines) == 1 else "wall clock")


def _clock(log: WorkerLog) -> str:
    return f"{log.machine or log.path.parent.name or 'machine'}/gettimeofday"
