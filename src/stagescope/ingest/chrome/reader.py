"""Reader of Chrome-trace JSON from any tool; a mapping states which slices are actions (ingest/mapping).

Source: the Trace Event Format document of the Chromium project. Complete events (X), pairs of begin and end (B, E) and
asynchronous pairs (b, e; S, F) are read; counters, flows, instants and other events are ignored. A rank is a process of
the trace, unless the mapping states the rank; with one file per rank, the numbers in the file names are the ranks.
"""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from stagescope.ingest.mapping.choice import wanted_arguments
from stagescope.ingest.mapping.slices import (
    BEGINS,
    ENDS,
    SLICES,
    TraceSlices,
    argument_columns,
    argument_text,
    paired,
)
from stagescope.ingest.mapping.timeline import timeline_of_slices
from stagescope.ingest.microseconds import nanoseconds
from stagescope.ingest.processes import read_each
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.trace_json.recognition import (
    SUFFIXES,
    is_chrome_trace,
    is_merged_torch_trace,
    is_torch_trace,
)
from stagescope.ingest.trace_json.repair import REFUSALS
from stagescope.ingest.trace_json.trace_events import EventStream, base_time_ns
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.limits import require

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from stagescope.model import Timeline

EPOCH_US = 1e15
"""A timestamp above this is in microseconds since the Unix epoch: as an uptime it would be 30 years."""

LEAST_SLICE_BYTES = 110
"""A slice is in memory until all are mapped, whether it becomes a span or not: six texts and two times."""

EVENTS_SCHEMA = {
    "ph": pl.String, "name": pl.String, "category": pl.String, "process": pl.String, "thread": pl.String,
    "id": pl.String, "ts": pl.Float64, "dur": pl.Float64,
}  # fmt: skip
PHASES = frozenset(("X", *BEGINS, *ENDS))
NO_ARGUMENTS = msgspec.Raw(b"")
DECODE_ARGUMENTS = msgspec.json.Decoder(dict[str, Any]).decode


class Event(msgspec.Struct, gc=False):
    """The relevant fields of one trace event."""

    ph: str = ""
    name: str = ""
    cat: str | None = ""
    ts: float = nan
    dur: float = nan
    pid: int | str = 0
    tid: int | str = 0
    id: int | float | str | None = None
    id2: Any = None
    args: msgspec.Raw = NO_ARGUMENTS


def recognize_trace(path: Path, head: bytes) -> bool:
    """Return whether a file is a Chrome trace without a more specific reader."""
    return is_merged_torch_trace(path, head) or (is_chrome_trace(head) and not is_torch_trace(head))


def read_traces(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Return the Timeline of the slices that the mapping of the call matches, or a shipped or common one that fits.

    Files are read in parallel if they are large together. Raises InputError as `timeline_of_slices` does, and with
    examples of the names if none matches.
    """

    def keep(read: TraceSlices) -> TraceSlices:
        options.count(read.slices.height, span_bytes=LEAST_SLICE_BYTES)
        return read

    files, refused = read_each(read_slices, paths, options.done, wanted_arguments(options), keep=keep)
    return timeline_of_slices(files, options, refused)


def read_slices(path: Path, arguments: Sequence[str] = ()) -> TraceSlices:
    """Return the slices of one file, with these arguments; raises InputError for a file without a list of events."""
    stream: EventStream[Event] = EventStream(path, msgspec.json.Decoder(list[Event]))
    table = EventTable(arguments)
    for piece in stream.pieces():
        table.add(piece)
        require("spans", table.height, path)
    events = table.frame()
    diagnostics = stream.diagnostics()
    every = events.filter(pl.col("ph") == "X")
    complete = every.unique(maintain_order=True).with_columns(end="ts")
    if repeated := every.height - complete.height:
        text = "events are in the trace more than once and were used once"
        diagnostics.append(Diagnostic("error", text, str(path), count=repeated, code="events.repeated"))
    columns = [name for name in argument_columns(arguments) if name in events.columns]
    pairs, alone = paired(events.filter(pl.col("ph") != "X"), columns)
    if alone:
        text = "events begin or end slices without the other event of their pair and were dropped"
        diagnostics.append(Diagnostic("error", text, str(path), count=alone, code="events.unpaired"))
    kept = ["name", "category", "process", "thread", "ts", "end", "dur", *columns]
    found = pl.concat([complete.select(kept), pairs.with_columns(dur=0.0).select(kept)])
    # The bound keeps the conversion to Int64 nanoseconds from overflowing.
    latest = pl.col("end").abs() + pl.col("dur").abs()
    within = found.filter(pl.col("ts").abs() + latest < 4 * EPOCH_US)
    if stray := found.height - within.height:
        text = "events have no timestamp, or an impossible one, and were dropped"
        diagnostics.append(Diagnostic("error", text, str(path), count=stray, code="events.out_of_range"))
    offset_ns = base_time_ns(stream.facts) or 0
    start_ns, end_ns, dur_ns = (nanoseconds(pl.col(us)) for us in ("ts", "end", "dur"))
    times = {"start_ns": offset_ns + start_ns, "end_ns": offset_ns + end_ns + dur_ns}
    has_epoch = bool(offset_ns) or bool((within["ts"].min() or 0) > EPOCH_US)  # type: ignore[operator] # a number
    slices = table.with_labels(within.with_columns(**times)).select(*SLICES, *columns)
    return TraceSlices(path, slices, has_epoch, diagnostics)


class EventTable:
    """The events of one file that begin, end or are slices, and the names of processes and threads."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """Prepare a table with a column for each of the arguments."""
        self._keys = tuple(arguments)
        self._schema = {**EVENTS_SCHEMA, **argument_columns(arguments)}
        self._parts = [pl.DataFrame(schema=EVENTS_SCHEMA)]
        self._processes: dict[str, str] = {}
        self._threads: dict[tuple[str, str], str] = {}
        self.height = 0

    def add(self, events: Iterable[Event]) -> None:
        """Add the events of one piece of the file."""
        rows = []
        for event in events:
            if event.ph in PHASES:
                where = (event.cat or "", str(event.pid), str(event.tid), _pair_id(event))
                rows.append((event.ph, event.name, *where, event.ts, event.dur, *self._arguments(event)))
            elif event.ph == "M":
                self._note(event)
        self.height += len(rows)
        part = pl.DataFrame(rows, self._schema, orient="row")
        # A column of text takes 16 bytes per row, also where all are null.
        empty = [
            name for name in part.columns[len(EVENTS_SCHEMA) :] if part[name].null_count() == part.height
        ]
        self._parts.append(part.drop(empty))

    def frame(self) -> pl.DataFrame:
        """Return the events in the order of the file, without columns for arguments that no event has."""
        return pl.concat(self._parts, how="diagonal")

    def with_labels(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the frame with the names of its processes and threads, which metadata events state."""
        processes = pl.DataFrame(
            list(self._processes.items()), {"process": pl.String, "process_name": pl.String}, orient="row"
        )
        threads = pl.DataFrame(
            [(*key, name) for key, name in self._threads.items()],
            {"process": pl.String, "thread": pl.String, "thread_name": pl.String},
            orient="row",
        )
        labeled = frame.join(processes, on="process", how="left", maintain_order="left")
        return labeled.join(threads, on=["process", "thread"], how="left", maintain_order="left")

    def _arguments(self, event: Event) -> Iterable[str | None]:
        found = decoded_arguments(event.args) if self._keys else {}
        return (argument_text(found, key) for key in self._keys) if found else (None for _ in self._keys)

    def _note(self, event: Event) -> None:
        name = decoded_arguments(event.args).get("name")
        if isinstance(name, str) and event.name == "process_name":
            self._processes[str(event.pid)] = name
        elif isinstance(name, str) and event.name == "thread_name":
            self._threads[str(event.pid), str(event.tid)] = name


def _pair_id(event: Event) -> str:
    """Return by what asynchronous events of one category and name are paired."""
    if isinstance(event.id2, dict):
        return str(event.id2.get("global", event.id2.get("local")))
    return str(event.id)


def decoded_arguments(arguments: msgspec.Raw) -> dict[str, Any]:
    """Return the arguments of an event; empty if they are no object."""
    if not arguments:
        return {}
    try:
        return DECODE_ARGUMENTS(arguments)
    except REFUSALS:  # not an object, or text that is not valid
        return {}


PATTERNS = ("*trace*.json*", "*chrome*.json*", "*timeline*.json*")

READER = Reader(
    name="chrome",
    patterns=PATTERNS,
    description="other Chrome traces, with slices that are mapped to actions ([mapping.md](mapping.md))",
    recognizes=recognize_trace,
    read=read_traces,
    suffixes=SUFFIXES,
    is_mapped=True,
)

MAPPED_READER = replace(READER, recognizes=lambda _, head: is_chrome_trace(head))
"""The reader of all Chrome traces, also of those of torch.profiler, for calls that state how their slices are spans."""
