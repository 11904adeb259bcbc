"""What is in a Perfetto trace: its slices, GPU work and counters, counted as the slices of a Chrome trace are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.ingest.mapping.contents import TraceContents
from stagescope.ingest.perfetto.mapped_slices import process_titles, track_place
from stagescope.ingest.perfetto.own_exports import is_run, runs_of
from stagescope.ingest.trace_proto.trace import read_trace

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.ingest.trace_proto.trace import TraceFile
    from stagescope.model.diagnostics import Diagnostic

NS_PER_US = 1000
GPU_CATEGORY = "GPU work"


def read_contents(path: Path) -> tuple[TraceContents, list[Diagnostic]]:
    """Return the contents of a trace, and what of it could not be read. Raises InputError for a file beyond a limit.

    All slices are in memory at once, as when the trace is read. A process is the process of a track, where none is
    stated the track at the top; of GPU work it is the GPU, and the thread is the queue.
    """
    trace = read_trace(path, is_run)
    contents = TraceContents(str(path), is_own_export=bool(runs_of(trace.tracks)))
    _add_slices(contents, trace)
    for work in trace.gpu_work:
        contents.phases.add("GPU work")
        where = (f"GPU {work.gpu}", work.queue)
        contents.add_slice(work.name or work.stage, GPU_CATEGORY, where, work.args)
        contents.add_time(work.start_ns / NS_PER_US, work.end_ns / NS_PER_US)
    for counter in trace.counters:
        contents.phases.add("counter values")
        contents.add_time(counter.time_ns / NS_PER_US, counter.time_ns / NS_PER_US)
    contents.events = len(trace.slices) + len(trace.gpu_work) + len(trace.counters)
    return contents, trace.diagnostics


def _add_slices(contents: TraceContents, trace: TraceFile) -> None:
    titles = process_titles(trace.tracks)
    places = {uuid: track_place(uuid, trace.tracks, titles) for uuid in {one.track for one in trace.slices}}
    for process, thread, process_name, thread_name in places.values():
        if process_name:
            contents.name_process(process, process_name)
        if thread_name:
            contents.name_thread((process, thread), thread_name)
    for one in trace.slices:
        contents.phases.add("slices")
        contents.add_slice(one.name, one.category, places[one.track][:2], one.args)
        contents.add_time(one.start_ns / NS_PER_US, one.end_ns / NS_PER_US)
