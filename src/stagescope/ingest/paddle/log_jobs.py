"""Jobs of one log, and diagnostics on the lines about them.

Three generations of lines record jobs. Device timestamps are used if there are any, then the host's NVTX ranges, and
last the times at which VLOG(6) reports the launch of a job by the host. The latter two are kept off the compute lane,
because they do not determine when the device worked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.paddle.glog import check_clock, with_written_ns
from stagescope.ingest.paddle.job_types import UNKNOWN, describe_job
from stagescope.ingest.paddle.nvtx import JOB_NAME, Ranges, match_ranges
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.kinds import COMM

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stagescope.ingest.paddle.log_scan import LogContents
    from stagescope.ingest.paddle.worker_logs import WorkerLog

JOB_COLUMNS = ("byte", "type", "microbatch", "start_ns", "end_ns")
NO_TRANSFER = "transfers without times (0.000000), as at the ends of the pipeline"
UNTIMED = "jobs without times (0.000000): nothing ran on the calculation stream"
DEVICE, RANGES, LAUNCHES = "device", "ranges", "launches"

LINES = {
    "jobs": ("jobs.damaged", "error", "job lines are truncated or overwritten: their jobs are missing"),
    "banners": ("lines.damaged", "warning", "lines that announce the steps are truncated or overwritten"),
    "nvtx": ("lines.damaged", "warning", "NVTX lines are truncated or overwritten"),
}


class LogJobs(NamedTuple):
    """Jobs of one log in file order: byte, type, microbatch, start_ns, end_ns; and the source of their times."""

    jobs: pl.DataFrame
    times: str
    nvtx_steps: pl.DataFrame
    notes: list[Diagnostic]


def jobs_of(contents: LogContents, log: WorkerLog) -> LogJobs:
    """Return the jobs of a log; invalid ones are omitted and counted."""
    lines = contents["jobs"]
    ranges = match_ranges(contents["nvtx"])
    notes = [*_damage(contents, log), *_unmatched(ranges, log)]
    if not lines.is_empty():
        jobs, omitted = _usable(lines, log)
        notes += [*omitted, *check_clock(contents, jobs, str(log.path), log.rank)]
        return LogJobs(jobs, DEVICE, ranges.steps, notes)
    jobs = _jobs_of_ranges(ranges.ranges)
    if not jobs.is_empty():
        text = "jobs have the times of the host's NVTX ranges: the times of the device are not recorded"
        notes.append(_note(log, ("jobs.host_times", "warning", text), jobs))
        return LogJobs(jobs, RANGES, ranges.steps, notes)
    jobs, omitted = _launched(contents, log)
    return LogJobs(jobs, LAUNCHES, ranges.steps, [*notes, *omitted])


def _note(log: WorkerLog, finding: Sequence[str], rows: pl.DataFrame) -> Diagnostic:
    """Return a diagnostic that counts rows of a log, with the location of the first."""
    code, severity, text = finding
    where = f"first at byte {rows['byte'].min()!r}"
    return Diagnostic(severity, text, str(log.path), log.rank, where, rows.height, code=code)


def _damage(contents: LogContents, log: WorkerLog) -> Iterator[Diagnostic]:
    source = str(log.path)
    if contents.damage is not None:
        text = f"{contents.damage}: the rest is missing"
        yield Diagnostic("error", text, source, log.rank, code="file.damaged")
    for name, (code, severity, text) in LINES.items():
        if name in contents.unparsed:
            missing = contents.unparsed[name]
            where = f"first at byte {missing.first_byte}"
            yield Diagnostic(severity, text, source, log.rank, where, missing.lines, code=code)


def _unmatched(ranges: Ranges, log: WorkerLog) -> Iterator[Diagnostic]:
    for count, text in (
        (ranges.pushes_without_pop, "NVTX ranges without an end"),
        (ranges.pops_without_push, "ends of NVTX ranges without a begin"),
    ):
        if count:
            yield Diagnostic("warning", text, str(log.path), log.rank, count=count, code="ranges.unpaired")


def _usable(lines: pl.DataFrame, log: WorkerLog) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the jobs with valid times, each once, and diagnostics on the omitted ones."""
    has_no_time = (pl.col("start_ns") == 0) | (pl.col("end_ns") == 0)
    backwards = ~has_no_time & (pl.col("end_ns") < pl.col("start_ns"))
    transfers = [text for text in lines["type"].unique() if describe_job(text).lane == COMM]
    is_transfer = pl.col("type").is_in(transfers)
    jobs = lines.filter(~has_no_time & ~backwards)
    once = jobs.unique(["type", "microbatch", "start_ns", "end_ns"], keep="first", maintain_order=True)
    repeated = jobs.join(once, on="byte", how="anti")
    # The stages at the ends of the pipeline run their outer transfers without any work: those times stay 0.
    untimed = lines.filter(has_no_time & ~is_transfer)
    omitted = (
        (
            ("transfers.without_times", "info", f"{NO_TRANSFER}; omitted"),
            lines.filter(has_no_time & is_transfer),
        ),
        (("jobs.without_times", "warning", f"{UNTIMED}; omitted"), untimed),
        (("jobs.end_before_start", "error", "jobs end before they start; omitted"), lines.filter(backwards)),
        (("jobs.repeated", "warning", "job lines are repeated; used once"), repeated),
    )
    return once, [_note(log, finding, rows) for finding, rows in omitted if not rows.is_empty()]


def _jobs_of_ranges(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges with the name of a job, `forward-3`."""
    parts = ranges.with_columns(
        type=pl.col("name").str.extract(JOB_NAME, 1),
        microbatch=pl.col("name").str.extract(JOB_NAME, 2).cast(pl.Int32, strict=False),
    ).drop_nulls("type")
    known = [text for text in parts["type"].unique() if describe_job(text) != UNKNOWN]
    return parts.filter(pl.col("type").is_in(known), pl.col("end_ns") >= pl.col("start_ns")).select(
        JOB_COLUMNS
    )


def _launched(contents: LogContents, log: WorkerLog) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return launched jobs, without length; glog's year is the one closest to the file's modification time."""
    lines = contents["launches"].with_columns(changed_ns=pl.lit(log.path.stat().st_mtime_ns, pl.Int64))
    dated = with_written_ns(lines, "changed_ns").with_columns(start_ns="written_ns", end_ns="written_ns")
    jobs = dated.drop_nulls("start_ns").select(JOB_COLUMNS)
    undated = dated.filter(pl.col("start_ns").is_null())
    cut = contents.unparsed.get("launches")
    notes = []
    if not jobs.is_empty():
        text = (
            "jobs have only the time of their launch by the host, in an unknown time zone: each is drawn up to the "
            "next launch of its step, so the bubble cannot be computed"
        )
        notes.append(_note(log, ("jobs.launch_times", "warning", text), jobs))
    if not undated.is_empty():
        text = "launches of jobs without a time of writing; omitted"
        notes.append(_note(log, ("jobs.without_times", "error", text), undated))
    if cut is not None:
        text, where = "launches of jobs are truncated or overwritten", f"first at byte {cut.first_byte}"
        notes.append(
            Diagnostic("error", text, str(log.path), log.rank, where, cut.lines, code="jobs.damaged")
        )
    return jobs, notes
