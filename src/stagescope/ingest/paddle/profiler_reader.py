"""Reader of Chrome traces of paddle.profiler (``*.paddle_trace.json``): one process per file, with host times of jobs.

Source: PaddlePaddle 3.3.1, paddle/fluid/platform/profiler/chrometracing_logger.cc (format 1.0.2) and
python/paddle/profiler/profiler.py. The static executor writes one event per job, named ``forward-0[39.575 ms]``: type,
micro-batch, and the duration, which is also recorded as a number. Of the three times of an event, `ts` (whole
microseconds since the Unix epoch, rounded down) and `dur` are used; `args.start_time` is a 32-bit float of microseconds
since the first event, which after a minute is less precise than `ts`. Ends are also rounded down to whole microseconds:
otherwise a job would appear to overlap the next one by the part cut off its start. The list of events ends with an
empty object.

Not read: kernels, memory, and operators below the jobs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import groupby
from math import nan
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import polars as pl

from stagescope.ingest.natural_order import natural_key
from stagescope.ingest.paddle import errors
from stagescope.ingest.paddle.job_types import describe_job, span_name
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.source_clocks import source_clocks
from stagescope.ingest.streams import open_stream
from stagescope.ingest.trace_json.repair import REFUSALS, decode, reason_of
from stagescope.ingest.usable_files import read_usable
from stagescope.ingest.utf8 import valid_text
from stagescope.model import RANKS, SPANS, STEPS, Timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.validate import conform
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

JOB_NAME = r"^([A-Za-z]\w*(?:\(chunk\d+\))?)-(\d+)\[[^\]]*\]$"
STEP_NAME = r"^ProfileStep#(\d+)"
RUN_NAME = r"^StandaloneExecutor::run\b"
READ_NAMES = f"{JOB_NAME}|{STEP_NAME}|{RUN_NAME}"
FILE_NAME = re.compile(r"(?P<worker>.*?)(?:_time_[\d_]+)?\.paddle_trace\.json(?:\.\w+)?")
"""`export_chrome_tracing` appends the time of the export: several files of one worker are one process."""

HOST_IN_WORKER = re.compile(r"host_(?P<host>.+)pid_(?P<pid>\d+)")
RANK_IN_WORKER = re.compile(r"(?:rank|worker|trainer)[_-]?(\d{1,9})(?!\d)", re.IGNORECASE)
END_OF_EVENT = b"\n  },"
DEVICE_CATEGORIES = ("Kernel", "Memcpy", "Memset")
RESOLUTION_NS = 1_000
MOST_US = 4e15
"""More than a century since the epoch: a later timestamp is invalid."""

OUT_OF_RANGE = (
    "events.out_of_range",
    "events have no timestamp, or an impossible one, and were dropped",
)
REPEATED = "events.repeated", "events are in the trace more than once and were used once"
CLOCK_METHOD = "wall clock of the host, in whole microseconds"


class Event(msgspec.Struct, gc=False):
    """The fields used of one trace event; any may be missing, as in the empty object at the end."""

    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: float = nan
    dur: float = nan
    pid: int | str = 0
    tid: int | str = 0


class Trace(msgspec.Struct):
    """The fields used of one file."""

    traceEvents: list[Event] = []  # noqa: N815 - the format's spelling


class TraceFile(NamedTuple):
    """One file: the events of each of its processes in a table, by process id."""

    path: Path
    tables: dict[str, pl.DataFrame]
    diagnostics: list[Diagnostic]


class Process(NamedTuple):
    """Content of one process: the worker according to the file names, and its events in one table."""

    worker: str
    pid: str
    sources: tuple[str, ...]
    events: pl.DataFrame


def recognize_trace(_: Path, head: bytes) -> bool:
    """Return whether a file is a Chrome trace of Paddle: no other writer uses `span_index`."""
    return b'"span_index"' in head and b'"schemaVersion"' in head


def read_traces(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Return the Timeline of all given traces, which belong to one run.

    A job's step is the number of the ProfileStep that contains its start, null if there is none. Ranks are the numbers
    in the file names if every name has one (`worker_name="rank3"`), otherwise the processes are numbered in order of
    host and process id, with a warning. A trace without a job and a truncated trace become errors in diagnostics.
    Raises InputError if no trace contains a job.
    """
    diagnostics: list[Diagnostic] = []
    processes = []
    for process in _processes(paths, options, diagnostics):
        if process.events["is_action"].any():
            processes.append(process)
        else:
            text = "no job in the trace: the executor ran no pipeline plan while it was recorded"
            diagnostics.append(Diagnostic("error", text, process.sources[0], code="jobs.none"))
    if not processes:
        raise errors.no_action_in_traces(paths[0])
    ranks = _ranks(processes, diagnostics)
    jobs = [_jobs(process, rank) for rank, process in ranks.items()]
    for rank, process in ranks.items():
        diagnostics += _notes(process, rank)
    return Timeline(
        spans=conform(pl.concat(jobs), SPANS),
        ranks=_rank_rows(ranks),
        steps=conform(pl.concat(_steps(process, rank) for rank, process in ranks.items()), STEPS),
        clocks=_clocks(processes),
        diagnostics=diagnostics_table([*diagnostics, *_without_step(jobs, ranks)]),
    )


def _processes(
    paths: Sequence[Path], options: ReadOptions, diagnostics: list[Diagnostic]
) -> Iterator[Process]:
    """Yield every process with the events of all its files, in the natural order of the worker names."""
    traces, refused = read_usable(_read_trace, paths, options.done)
    diagnostics += [*refused, *(row for trace in traces for row in trace.diagnostics)]
    found = [
        (_worker(trace.path), pid, trace.path, table)
        for trace in traces
        for pid, table in trace.tables.items()
    ]
    found.sort(key=lambda one: (natural_key(one[0]), natural_key(one[1]), str(one[2])))
    for (worker, pid), files in groupby(found, key=lambda one: one[:2]):
        every = list(files)
        yield Process(worker, pid, tuple(str(one[2]) for one in every), pl.concat(one[3] for one in every))


def _worker(path: Path) -> str:
    found = FILE_NAME.fullmatch(path.name)
    return found["worker"] if found else path.name


def _read_trace(path: Path) -> TraceFile:
    """Return the events of one file by process; raises InputError if none can be read."""
    diagnostics: list[Diagnostic] = []
    trace = _load(path, diagnostics)
    by_pid: defaultdict[str, list[Event]] = defaultdict(list)
    for event in trace:
        if event.ph == "X":
            by_pid[str(event.pid)].append(event)
    if len(by_pid) > MOST_PROCESSES:
        raise InputError.damaged(
            path, f"events of {len(by_pid)} processes, although Paddle writes one per file"
        )
    pids = sorted(by_pid, key=natural_key) or ["0"]
    tables = {pid: _possible(_table(by_pid[pid]), path, diagnostics) for pid in pids}
    return TraceFile(path, {pid: _classified(table) for pid, table in tables.items()}, diagnostics)


MOST_PROCESSES = 256
"""Every process becomes tables of its own, which take milliseconds each."""


def _load(path: Path, diagnostics: list[Diagnostic]) -> list[Event]:
    """Return the events of one file; of a damaged one, all that can be read."""
    with open_stream(path) as stream:
        data = valid_text(stream.read(), path, diagnostics)
    try:
        events: list[Event] = decode(TRACES.decode, data).traceEvents
    except REFUSALS as refusal:
        events, lost, where = _salvage(data)
        reason, place = reason_of(refusal)
        if not events:
            raise InputError.damaged(path, f"not a readable trace: {refusal}") from None
        at = where if lost or place is None else place
        text = (
            "events are truncated or damaged; omitted"
            if lost
            else "the trace is not valid JSON outside its events"
        )
        text += f" ({stream.damage or reason})"
        code = "events.damaged" if lost else "file.damaged"
        diagnostics.append(
            Diagnostic("error", text, str(path), None, f"first byte {at}", max(1, lost), code=code)
        )
        return events
    if stream.damage:
        diagnostics.append(Diagnostic("error", stream.damage, str(path), code="file.damaged"))
    return events


TRACES, EVENTS = msgspec.json.Decoder(Trace), msgspec.json.Decoder(Event)


def _salvage(data: bytes) -> tuple[list[Event], int, int]:
    """Return the events that can be decoded one by one, how many cannot, and the offset of the first of these.

    Paddle does not escape names: a quotation mark in the name of one event makes the whole file invalid JSON.
    """
    events: list[Event] = []
    damaged: list[int] = []
    start = data.find(b"[") + 1
    *pieces, rest = data[start:].split(END_OF_EVENT)
    for piece in pieces:
        try:
            events.append(decode(EVENTS.decode, piece + b"}"))
        except REFUSALS:
            damaged.append(start)
        start += len(piece) + len(END_OF_EVENT)
    if not rest.lstrip().startswith(b"{}"):  # the end of a complete file
        damaged.append(start)
    return events, len(damaged), damaged[0] if damaged else start


def _table(events: list[Event]) -> pl.DataFrame:
    """Return the complete events that may be jobs, steps or runs, of one process: name, thread, ts, dur, on_device."""
    rows = [
        (e.name, str(e.tid), e.ts, e.dur, e.cat in DEVICE_CATEGORIES)
        for e in events
        if e.cat in ("UserDefined", "ProfileStep", *DEVICE_CATEGORIES)
    ]
    schema = {
        "name": pl.String, "thread": pl.String, "ts": pl.Float64, "dur": pl.Float64, "on_device": pl.Boolean,
    }  # fmt: skip
    return pl.DataFrame(rows, schema, orient="row", strict=False)


def _possible(events: pl.DataFrame, path: Path, diagnostics: list[Diagnostic]) -> pl.DataFrame:
    """Return the events with possible timestamps, each once; diagnostics count the others."""
    timed = events.filter(pl.col("ts").abs() + pl.col("dur").abs() < MOST_US)
    once = timed.unique(maintain_order=True)
    is_read = pl.col("on_device") | pl.col("name").str.contains(READ_NAMES)  # others may be alike
    repeated = timed.filter(is_read).height - once.filter(is_read).height
    for count, code, text in ((events.height - timed.height, *OUT_OF_RANGE), (repeated, *REPEATED)):
        if count:
            diagnostics.append(Diagnostic("error", text, str(path), count=count, code=code))
    return once


def _classified(events: pl.DataFrame) -> pl.DataFrame:
    """Return events with their meaning instead of ts and dur.

    Columns: name, thread, start_ns, end_ns, type, microbatch, step, is_action, is_step, on_device.
    """
    # A double resolves a quarter of a microsecond near the present, and `ts` is whole microseconds: nothing is lost.
    start_ns = pl.col("ts").round().cast(pl.Int64) * RESOLUTION_NS
    events = events.with_columns(
        start_ns=start_ns,
        end_ns=start_ns + pl.col("dur").floor().cast(pl.Int64) * RESOLUTION_NS,
        type=pl.col("name").str.extract(JOB_NAME, 1),
        microbatch=pl.col("name").str.extract(JOB_NAME, 2).cast(pl.Int32, strict=False),
        step=pl.col("name").str.extract(STEP_NAME, 1).cast(pl.Int32, strict=False),
    ).drop("ts", "dur")
    return events.with_columns(is_action=_are_jobs(events), is_step=pl.col("step").is_not_null())


def _are_jobs(events: pl.DataFrame) -> pl.Series:
    """Return which events are jobs: with the name of a job, not inside another such event, and run by the executor.

    Users record events of their own, and one inside a job may have the name of a job.
    """
    is_run = events["name"].str.contains(RUN_NAME)
    named = events["type"].is_not_null() & ~events["on_device"]
    order = events.with_row_index("row").with_columns(is_run=is_run, named=named).sort("start_ns", "row")
    ends_before = pl.col("end_ns").cum_max().shift(1).over("thread", "is_run").fill_null(-1)
    outer = order.filter("named").filter(pl.col("start_ns") >= ends_before - RESOLUTION_NS)
    if is_run.any():
        runs = order.filter("is_run").select("thread", run_start_ns="start_ns", run_end_ns="end_ns")
        outer = outer.join_asof(
            runs, left_on="start_ns", right_on="run_start_ns", by="thread", check_sortedness=False
        ).filter(pl.col("start_ns") <= pl.col("run_end_ns"))
    chosen = np.zeros(events.height, bool)
    chosen[outer["row"].to_numpy()] = True
    return pl.Series(chosen)


def _ranks(processes: Sequence[Process], diagnostics: list[Diagnostic]) -> dict[int, Process]:
    """Return the processes by rank, with a warning if the ranks are a guess."""
    # Host names such as worker-7 contain numbers as well, so the default name (host and process id) implies no rank.
    matches = [None if _host(process) else RANK_IN_WORKER.search(process.worker) for process in processes]
    numbers = [int(found[1]) for found in matches if found]
    if len(set(numbers)) == len(processes):
        return dict(sorted(zip(numbers, processes, strict=True), key=lambda pair: pair[0]))
    if len(processes) > 1:
        text = (
            "the file names have no rank: the processes are numbered in order of host and process id "
            '(set names with export_chrome_tracing(DIR, worker_name="rank3"))'
        )
        diagnostics.append(Diagnostic("warning", text, count=len(processes), code="rank.by_file_order"))
    return dict(enumerate(processes))


def _jobs(process: Process, rank: int) -> pl.DataFrame:
    """Return the jobs of one process as spans, each in the step that contains its start."""
    steps = process.events.filter("is_step").select("step", step_start_ns="start_ns", step_end_ns="end_ns")
    jobs = process.events.filter("is_action").drop("step").sort("start_ns")
    placed = jobs.join_asof(
        steps.sort("step_start_ns"), left_on="start_ns", right_on="step_start_ns", check_sortedness=False
    )
    described = _describe(jobs["type"].unique(maintain_order=True).to_list())
    return placed.join(described, on="type", how="left", maintain_order="left").select(
        "kind", "lane", "chunk", "start_ns", "end_ns",
        rank=pl.lit(rank, pl.Int32),
        step=pl.when(pl.col("start_ns") <= pl.col("step_end_ns")).then("step"),
        microbatch=pl.when(~pl.col("once")).then("microbatch"),
        name="span_name",
    )  # fmt: skip


def _describe(types: Sequence[str]) -> pl.DataFrame:
    """Return the meaning of the types, one row each: type, kind, lane, chunk, once, span_name."""
    described = [(text, describe_job(text)) for text in types]
    return pl.DataFrame(
        {
            "type": types,
            "kind": [job.kind for _, job in described],
            "lane": [job.lane for _, job in described],
            "chunk": pl.Series([job.chunk for _, job in described], dtype=pl.Int32),
            "once": [job.once for _, job in described],
            "span_name": pl.Series([span_name(text) for text in types], dtype=pl.String),
        }
    )


def _steps(process: Process, rank: int) -> pl.DataFrame:
    return process.events.filter("is_step").select("step", "start_ns", "end_ns", rank=pl.lit(rank, pl.Int32))


def _host(process: Process) -> str | None:
    found = HOST_IN_WORKER.fullmatch(process.worker)
    return found["host"] if found else None


def _clock(process: Process) -> str:
    """Return the clock domain of a process: its host; processes without a recorded host are assumed to share one."""
    return f"{_host(process) or 'unknown host'}/wall clock"


def _rank_rows(ranks: dict[int, Process]) -> pl.DataFrame:
    rows = [
        {
            "rank": rank,
            "machine": _host(process),
            "host": _host(process),
            "clock": _clock(process),
            "source": process.sources[0],
        }
        for rank, process in ranks.items()
    ]
    return conform(pl.DataFrame(rows, infer_schema_length=None), RANKS)


def _clocks(processes: Sequence[Process]) -> pl.DataFrame:
    machines = {_clock(process): _host(process) for process in processes}
    return source_clocks(machines, CLOCK_METHOD, is_known=None not in machines.values())


def _notes(process: Process, rank: int) -> Iterator[Diagnostic]:
    """Yield a warning where the device ran the jobs later than the host times show."""
    source = process.sources[0]
    if process.events["on_device"].any():
        text = (
            "jobs have the times of their launch by the host: the device ran their kernels later "
            "(worker logs of a CUDA build have device times)"
        )
        yield Diagnostic("warning", text, source, rank, code="jobs.host_times")


def _without_step(jobs: Sequence[pl.DataFrame], ranks: dict[int, Process]) -> Iterator[Diagnostic]:
    for (rank, process), spans in zip(ranks.items(), jobs, strict=True):
        if count := spans["step"].null_count():
            text = "jobs are outside every ProfileStep and have no step (call prof.step() after each training step)"
            source = process.sources[0]
            yield Diagnostic("warning", text, source, rank, count=count, code="jobs.outside_steps")


READER = Reader(
    name="paddle profiler",
    patterns=("*.paddle_trace.json", "*.paddle_trace.json.gz", "*.paddle_trace.json.zst"),
    description="Chrome traces of paddle.profiler, one file per process and recorded window",
    recognizes=recognize_trace,
    read=read_traces,
)
