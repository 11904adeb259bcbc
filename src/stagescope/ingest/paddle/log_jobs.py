"""The jobs that one log tells of, and everything that is wrong with how it does.

Three generations of lines tell of jobs. The stamps of the device are used where there are any. Else the host's NVTX
ranges are, and last the moments at which VLOG(6) says that the host launched a job; both are kept off the compute
lane, since nothing about the device follows from them.
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
    from collections.abc import Iterator

    from stagescope.ingest.paddle.log_scan import LogContents
    from stagescope.ingest.paddle.worker_logs import WorkerLog

JOB_COLUMNS = ("byte", "type", "microbatch", "start_ns", "end_ns")
DEVICE, RANGES, LAUNCHES = "device", "ranges", "launches"

LINES = {
    "jobs": ("error", "job lines that are cut off or overwritten: their jobs are missing"),
    "banners": ("warning", "lines that announce the steps and are cut off or overwritten"),
    "nvtx": ("warning", "NVTX lines that are cut off or overwritten"),
}


class LogJobs(NamedTuple):
    """The jobs of one log in the file's order: byte, type, microbatch, start_ns, end_ns; and whose times these are."""

    jobs: pl.DataFrame
    times: str
    nvtx_steps: pl.DataFrame
    notes: list[Diagnostic]


def jobs_of(contents: LogContents, log: WorkerLog) -> LogJobs:
    """Return the jobs of a log, without those that cannot stand on a timeline, which are counted."""
    stamped = contents["jobs"]
    ranges = match_ranges(contents["nvtx"])
    notes = [*_damage(contents, log), *_unmatched(ranges, log)]
    if not stamped.is_empty():
        jobs, left_out = _usable(stamped, log)
        notes += [*left_out, *check_clock(contents, jobs, str(log.path), log.rank)]
        return LogJobs(jobs, DEVICE, ranges.steps, notes)
    jobs = _jobs_of_ranges(ranges.ranges)
    if not jobs.is_empty():
        text = "jobs as the host's NVTX ranges show them: how long the device took is not known"
        notes.append(_note(log, "warning", text, jobs))
        return LogJobs(jobs, RANGES, ranges.steps, notes)
    jobs, left_out = _launched(contents, log)
    return LogJobs(jobs, LAUNCHES, ranges.steps, [*notes, *left_out])


def _note(log: WorkerLog, severity: str, text: str, rows: pl.DataFrame) -> Diagnostic:
    """Return a diagnostic that counts rows of a log and names the place of the first."""
    where = f"first at byte {rows['byte'].min()!r}"
    return Diagnostic(severity, text, str(log.path), log.rank, where, rows.height)


def _damage(contents: LogContents, log: WorkerLog) -> Iterator[Diagnostic]:
    source = str(log.path)
    if contents.damage is not None:
        yield Diagnostic("error", f"{contents.damage}: what follows is missing", source, log.rank)
    for name, (severity, text) in LINES.items():
        if name in contents.unparsed:
            missing = contents.unparsed[name]
            where = f"first at byte {missing.first_byte}"
            yield Diagnostic(severity, text, source, log.rank, where, missing.lines)


def _unmatched(ranges: Ranges, log: WorkerLog) -> Iterator[Diagnostic]:
    for count, text in (
        (ranges.pushes_without_pop, "NVTX ranges that no line ends"),
        (ranges.pops_without_push, "ends of NVTX ranges that no line begins"),
    ):
        if count:
            yield Diagnostic("warning", text, str(log.path), log.rank, count=count)


def _usable(stamped: pl.DataFrame, log: WorkerLog) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the jobs with stamps that can be true, each once, and what was left out."""
    no_stamp = (pl.col("start_ns") == 0) | (pl.col("end_ns") == 0)
    backwards = ~no_stamp & (pl.col("end_ns") < pl.col("start_ns"))
    transfers = [text for text in stamped["type"].unique() if describe_job(text).lane == COMM]
    is_transfer = pl.col("type").is_in(transfers)
    jobs = stamped.filter(~no_stamp & ~backwards)
    once = jobs.unique(["type", "microbatch", "start_ns", "end_ns"], keep="first", maintain_order=True)
    left_out = {
        "transfers that stamped no time (0.000000), as those at an end of the pipeline do; left out": (
            "info",
            stamped.filter(no_stamp & is_transfer),
        ),
        "jobs that stamped no time (0.000000): they ran nothing on the calculation stream; left out": (
            "warning",
            stamped.filter(no_stamp & ~is_transfer),
        ),
        "jobs that end before they start; left out": ("error", stamped.filter(backwards)),
        "job lines that stand there more than once; used once": (
            "warning",
            jobs.join(once, on="byte", how="anti"),
        ),
    }
    return once, [
        _note(log, severity, text, rows) for text, (severity, rows) in left_out.items() if not rows.is_empty()
    ]


def _jobs_of_ranges(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges that are called like a job, `forward-3`."""
    parts = ranges.with_columns(
        type=pl.col("name").str.extract(JOB_NAME, 1),
        microbatch=pl.col("name").str.extract(JOB_NAME, 2).cast(pl.Int32, strict=False),
    ).drop_nulls("type")
    known = [text for text in parts["type"].unique() if describe_job(text) != UNKNOWN]
    return parts.filter(pl.col("type").is_in(known), pl.col("end_ns") >= pl.col("start_ns")).select(
        JOB_COLUMNS
    )


def _launched(contents: LogContents, log: WorkerLog) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return launched jobs, without length; glog's year is the one that lies closest to the file's last change."""
    lines = contents["launches"].with_columns(changed_ns=pl.lit(log.path.stat().st_mtime_ns, pl.Int64))
    dated = with_written_ns(lines, "changed_ns").with_columns(start_ns="written_ns", end_ns="written_ns")
    jobs = dated.drop_nulls("start_ns").select(JOB_COLUMNS)
    undated = dated.filter(pl.col("start_ns").is_null())
    cut = contents.unparsed.get("launches")
    notes = []
    if not jobs.is_empty():
        text = (
            "jobs of which only the launch by the host is known, to the zone of its clock: each is drawn up to the "
            "next launch of its step, and nothing about the bubble follows from that"
        )
        notes.append(_note(log, "warning", text, jobs))
    if not undated.is_empty():
        notes.append(_note(log, "error", "launches of jobs without the time of writing; left out", undated))
    if cut is not None:
        text = "launches of jobs that are cut off or overwritten"
        notes.append(
            Diagnostic("error", text, str(log.path), log.rank, f"first at byte {cut.first_byte}", cut.lines)
        )
    return jobs, notes
