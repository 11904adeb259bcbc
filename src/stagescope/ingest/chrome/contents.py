"""What is in a Chrome trace: every event is counted as it is read, and none is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stagescope.ingest.chrome.events import Event, decoded_arguments
from stagescope.ingest.mapping.contents import TraceContents
from stagescope.ingest.trace_json.trace_events import EventStream

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.model.diagnostics import Diagnostic

WITHOUT_ARGUMENTS = frozenset("MCstf")
"""Phases whose arguments are names, values of counters or nothing."""


def read_contents(path: Path) -> tuple[TraceContents, list[Diagnostic]]:
    """Return the contents of a trace, and what of it could not be read."""
    contents = TraceContents(str(path))
    stream: EventStream[Event] = EventStream(path, msgspec.json.Decoder(list[Event]))
    for piece in stream.pieces():
        for event in piece:
            _add(contents, event)
    return contents, stream.diagnostics()


def _add(contents: TraceContents, event: Event) -> None:
    contents.events += 1
    contents.phases.add(event.ph[:8])
    where = (str(event.pid), str(event.tid))
    if event.ph == "M":
        name = decoded_arguments(event.args).get("name")
        if isinstance(name, str) and event.name == "process_name":
            contents.name_process(where[0], name)
        elif isinstance(name, str) and event.name == "thread_name":
            contents.name_thread(where, name)
        return
    arguments = {} if event.ph in WITHOUT_ARGUMENTS else decoded_arguments(event.args)
    contents.add_slice(event.name, event.cat or "", where, arguments)
    contents.add_time(event.ts, event.ts + event.dur if event.ph == "X" else event.ts)
