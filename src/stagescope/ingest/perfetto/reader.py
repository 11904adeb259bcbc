"""Reader of Perfetto's protobuf traces: stagescope's own exports, and track events of any tool (docs/perfetto.md).

torch's native traces are read by the reader of torch.profiler's traces.
"""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.mapping.choice import wanted_arguments
from stagescope.ingest.mapping.timeline import timeline_of_slices
from stagescope.ingest.perfetto.errors import no_slices
from stagescope.ingest.perfetto.mapped_slices import mapped_slices
from stagescope.ingest.perfetto.own_exports import is_own_export, own_tables
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.source_clocks import source_clocks
from stagescope.ingest.trace_proto.recognition import is_perfetto_trace, is_torch_perfetto_trace
from stagescope.ingest.trace_proto.trace import read_trace
from stagescope.ingest.usable_files import read_usable
from stagescope.model import Timeline
from stagescope.model.diagnostics import diagnostics_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.ingest.mapping.slices import TraceSlices
    from stagescope.ingest.trace_proto.trace import TraceFile

PATTERNS = ("*.pftrace*", "*.perfetto-trace*", "*.perfetto_trace*", "*.pb*")


def recognize_trace(path: Path, head: bytes) -> bool:
    """Return whether a file is a Perfetto trace without a more specific reader."""
    return is_perfetto_trace(head) and not is_torch_perfetto_trace(path, head)


def read_traces(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Return the Timeline of the given traces: of stagescope's exports, or of slices that a mapping reads.

    A truncated or damaged trace yields its readable part and an error in diagnostics. Raises InputError if no trace
    can be read, and as `timeline_of_slices` does.
    """
    traces, refused = read_usable(read_trace, paths, options.done)
    is_mapped = options.mapping is not None or options.pattern is not None
    is_own = [not is_mapped and is_own_export(trace.tracks) for trace in traces]
    timelines = [_exported(trace) for trace in compress(traces, is_own)]
    others = [trace for trace, own in zip(traces, is_own, strict=True) if not own]
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


def _exported(trace: TraceFile) -> Timeline:
    own = own_tables(trace)
    if own.spans.is_empty():
        raise no_slices(trace)
    return Timeline(
        spans=own.spans,
        ranks=own.ranks,
        steps=own.steps,
        clocks=source_clocks(dict.fromkeys(own.ranks["clock"].unique().sort()), "as in the trace"),
        diagnostics=diagnostics_table(trace.diagnostics),
        counters=own.counters,
    )


READER = Reader(
    name="perfetto",
    patterns=PATTERNS,
    description="Perfetto traces (.pftrace), with slices that are mapped to actions ([mapping.md](mapping.md))",
    recognizes=recognize_trace,
    read=read_traces,
    is_mapped=True,
)
