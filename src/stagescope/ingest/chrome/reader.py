"""Reader of Chrome-trace JSON from any tool; a mapping states which slices are actions (ingest/mapping).

Source: the Trace Event Format document of the Chromium project. Complete events (X), pairs of begin and end (B, E) and
asynchronous pairs (b, e; S, F) are read; counters, flows, instants and other events are ignored. A rank is a process of
the trace, unless the mapping states the rank; with one file per rank, the numbers in the file names are the ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from stagescope.ingest.chrome.events import Event, EventTable
from stagescope.ingest.mapping.choice import wanted_arguments
from stagescope.ingest.mapping.slices import SLICES, TraceSlices, argument_columns, paired
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
from stagescope.ingest.trace_json.trace_events import EventStream, base_time_ns
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.limits import require

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.model import Timeline

EPOCH_US = 1e15
"""A timestamp above this is in microseconds since the Unix epoch: as an uptime it would be 30 years."""

LEAST_SLICE_BYTES = 22
"""A slice is in memory until all are mapped, whether it becomes a span or not: numbers of six texts and two times."""

COMPARED_ROWS = 500_000
"""So many events are compared with each other at once, which takes about 100 bytes for each of them."""


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
    complete, repeated = _different(events.filter(pl.col("ph") == "X"))
    if repeated:
        text = "events are in the trace more than once and were used once"
        diagnostics.append(Diagnostic("error", text, str(path), count=repeated, code="events.repeated"))
    columns = [name for name in argument_columns(arguments) if name in events.columns]
    pairs, alone = paired(events.filter(pl.col("ph") != "X"), columns)
    if alone:
        text = "events begin or end slices without the other event of their pair and were dropped"
        diagnostics.append(Diagnostic("error", text, str(path), count=alone, code="events.unpaired"))
    kept = ["name", "category", "process", "thread", "ts", "end", "dur", *columns]
    found = pl.concat(
        [complete.with_columns(end="ts").select(kept), pairs.with_columns(dur=0.0).select(kept)]
    )
    del events, complete, pairs
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
    slices = table.with_texts(within.with_columns(**times).drop("ts", "end", "dur"))
    return TraceSlices(path, slices.select(*SLICES, *columns), has_epoch, diagnostics)


def _different(events: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the different ones of the events of a file, in their order, and how many copies of them there are."""
    parts = events.height // COMPARED_ROWS + 1
    if parts == 1:
        found = events.unique(maintain_order=True)
        return found, events.height - found.height
    # Copies have the same time, and are therefore in the same part.
    part = events.select(pl.col("ts").hash() % parts).to_series()
    is_first = np.zeros(events.height, dtype=bool)
    for number in range(parts):
        rows = (part == number).arg_true()
        own = events[rows].with_columns(rows.alias("row"))
        kept = own.unique(subset=events.columns, keep="first")["row"]
        is_first[kept.to_numpy()] = True
    found = events if is_first.all() else events.filter(pl.Series(is_first))
    return found, events.height - found.height


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
