"""Reader of Perfetto's protobuf traces: stagescope's own exports, and track events of any tool (docs/perfetto.md).

torch's native traces are read by the reader of torch.profiler's traces.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.mapping.choice import wanted_arguments
from stagescope.ingest.mapping.timeline import timeline_of_slices
from stagescope.ingest.perfetto.errors import no_slices, several_runs
from stagescope.ingest.perfetto.mapped_slices import mapped_slices
from stagescope.ingest.perfetto.own_exports import is_run, own_tables, runs_of
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.source_clocks import source_clocks
from stagescope.ingest.trace_proto.recognition import is_perfetto_trace, is_torch_perfetto_trace
from stagescope.ingest.trace_proto.trace import read_trace
from stagescope.ingest.trace_proto.tracks import ancestors
from stagescope.ingest.usable_files import read_usable
from stagescope.model import Timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.ingest.mapping.slices import TraceSlices
    from stagescope.ingest.perfetto.own_exports import OwnExport
    from stagescope.ingest.trace_proto.trace import TraceFile

OTHER_TRACKS = "slices are not in the tracks of the export of stagescope, and were not read"
COPIES = "exports are in the trace more than once and were used once"
PATTERNS = ("*.pftrace*", "*.perfetto-trace*", "*.perfetto_trace*", "*.pb*")


def recognize_trace(path: Path, head: bytes) -> bool:
    """Return whether a file is a Perfetto trace without a more specific reader."""
    return is_perfetto_trace(head) and not is_torch_perfetto_trace(path, head)


def read_traces(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Return the Timeline of the given traces: of stagescope's exports, or of slices that a mapping reads.

    A truncated or damaged trace yields its readable part and an error in diagnostics. Raises InputError if no trace
    can be read, and as `timeline_of_slices` does.
    """
    traces, refused = read_usable(partial(read_trace, begins=is_run), paths, options.done)
    is_mapped = options.mapping is not None or options.pattern is not None
    runs = [[] if is_mapped else runs_of(trace.tracks) for trace in traces]
    timelines = [_exported(trace, own) for trace, own in zip(traces, runs, strict=True) if own]
    others = [trace for trace, own in zip(traces, runs, strict=True) if not own]
    if others:
        timelines.append(timeline_of_slices([_with_slices(trace, options) for trace in others], options))
    spans, ranks, steps, clocks, counters, diagnostics = (
        pl.concat(getattr(one, name) for one in timelines)
        for name in ("spans", "ranks", "steps", "clocks", "counters", "diagnostics")
    )
    read = Timeline(spans, ranks, steps, clocks.unique(maintain_order=True), diagnostics, counters=counters)
    return read.with_diagnostics(refused)


def _with_slices(trace: TraceFile, options: ReadOptions) -> TraceSlices:
    if not trace.slices:
        raise no_slices(trace)
    return mapped_slices(trace, wanted_arguments(options))


def _exported(trace: TraceFile, runs: Sequence[int]) -> Timeline:
    """Return the Timeline of the exports in a trace, below the tracks `runs`. Raises InputError if they are no run."""
    exports = [own_tables(trace, run) for run in runs]
    kept = [one for at, one in enumerate(exports) if not any(map(one.spans.equals, _spans_of(exports[:at])))]
    spans, ranks, steps, counters = map(pl.concat, zip(*kept, strict=True))
    if spans.is_empty():
        raise no_slices(trace)
    repeated = ranks["rank"].filter(ranks["rank"].is_duplicated())
    if len(repeated):
        raise several_runs(trace.path, len(kept), repeated.sort()[0])
    return Timeline(
        spans=spans,
        ranks=ranks,
        steps=steps,
        clocks=source_clocks(dict.fromkeys(ranks["clock"].unique().sort()), "as in the trace"),
        diagnostics=diagnostics_table([*trace.diagnostics, *_notes(trace, runs, len(exports) - len(kept))]),
        counters=counters,
    )


def _spans_of(exports: Sequence[OwnExport]) -> list[pl.DataFrame]:
    return [one.spans for one in exports]


def _notes(trace: TraceFile, runs: Sequence[int], copies: int) -> list[Diagnostic]:
    """Return what of a trace was not read: slices that are not below the tracks `runs`, and copies of an export."""
    known = {uuid for uuid, track in trace.tracks.items() if ancestors(track, trace.tracks)[-1].uuid in runs}
    count = sum(one.track not in known for one in trace.slices)
    source = str(trace.path)
    notes = []
    if count:
        notes.append(Diagnostic("info", OTHER_TRACKS, source, count=count, code="slices.beside_export"))
    if copies:
        notes.append(Diagnostic("warning", COPIES, source, count=copies, code="events.repeated"))
    return notes


READER = Reader(
    name="perfetto",
    patterns=PATTERNS,
    description="Perfetto traces (.pftrace), with slices that are mapped to actions ([mapping.md](mapping.md))",
    recognizes=recognize_trace,
    read=read_traces,
    is_mapped=True,
)
