"""The slices of a Perfetto trace of any tool, in the form that a mapping reads (ingest/mapping).

A process is the process of a track; where no track states one, the track at the top. A thread is the track itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.mapping.slices import SLICES, TraceSlices, argument_columns, argument_text, coded
from stagescope.ingest.trace_proto.tracks import Track, ancestors, process_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagescope.ingest.trace_proto.trace import TraceFile


def mapped_slices(trace: TraceFile, arguments: Sequence[str] = ()) -> TraceSlices:
    """Return the slices of a trace, with these arguments."""
    titles = process_titles(trace.tracks)
    places = {uuid: track_place(uuid, trace.tracks, titles) for uuid in {one.track for one in trace.slices}}
    rows = [
        (
            one.name, one.category, *places[one.track], one.start_ns, one.end_ns,
            *(argument_text(one.args, key) for key in arguments),
        )
        for one in trace.slices
    ]  # fmt: skip
    frame = pl.DataFrame(rows, {**SLICES, **argument_columns(arguments)}, orient="row")
    return TraceSlices(trace.path, coded(frame), trace.has_epoch, trace.diagnostics)


def process_titles(tracks: Mapping[int, Track]) -> dict[int, str]:
    """Return the names of processes that tracks state."""
    titles: dict[int, str] = {}
    for track in tracks.values():
        if track.process is not None and track.process_name:
            titles.setdefault(track.process, track.process_name)
    return titles


def track_place(
    uuid: int, tracks: Mapping[int, Track], titles: Mapping[int, str]
) -> tuple[str, str, str | None, str | None]:
    """Return process and thread of a track and their names, null if they have none; `titles` names processes."""
    known = tracks.get(uuid, Track(uuid))
    owner = process_of(known, tracks)
    thread = str(known.uuid if known.thread is None else known.thread)
    if owner is not None and owner.process is not None:
        title = titles.get(owner.process) or owner.name or None
        return str(owner.process), thread, title, known.name or None
    top = ancestors(known, tracks)[-1]
    return str(top.uuid), thread, top.name or None, known.name or None
