"""Reader of Perfetto's protobuf traces: stagescope's own exports (docs/perfetto.md).

torch's native traces are read by the reader of torch.profiler's traces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.perfetto.errors import no_export
from stagescope.ingest.perfetto.own_exports import is_own_export, own_tables
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.source_clocks import source_clocks
from stagescope.ingest.trace_proto.recognition import is_perfetto_trace
from stagescope.ingest.trace_proto.trace import read_trace
from stagescope.ingest.usable_files import read_usable
from stagescope.model import Timeline
from stagescope.model.diagnostics import diagnostics_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PATTERNS = ("*.pftrace*", "*.perfetto-trace*", "*.perfetto_trace*", "*.pb*")


def recognize_trace(_: Path, head: bytes) -> bool:
    """Return whether a file is a Perfetto trace."""
    return is_perfetto_trace(head)


def read_traces(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Return the Timeline of the given traces.

    A truncated or damaged trace yields its readable part and an error in diagnostics. Raises InputError if no trace
    can be read.
    """
    timelines, refused = read_usable(_timeline, paths, options.done)
    spans, ranks, steps, clocks, counters, diagnostics = (
        pl.concat(getattr(one, name) for one in timelines)
        for name in ("spans", "ranks", "steps", "clocks", "counters", "diagnostics")
    )
    read = Timeline(spans, ranks, steps, clocks.unique(maintain_order=True), diagnostics, counters=counters)
    return read.with_diagnostics(refused)


def _timeline(path: Path) -> Timeline:
    trace = read_trace(path)
    if not is_own_export(trace.tracks):
        raise no_export(path, trace)
    own = own_tables(trace)
    if own.spans.is_empty():
        raise no_export(path, trace)
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
    description="Perfetto traces (.pftrace)",
    recognizes=recognize_trace,
    read=read_traces,
)
