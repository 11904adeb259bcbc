"""What is in a trace of another tool, before it is read: names, arguments, processes, and a proposed mapping."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagescope.api.fetched_paths import local_path
from stagescope.api.formats import READERS
from stagescope.ingest.chrome import contents as chrome
from stagescope.ingest.discover import find_inputs
from stagescope.ingest.kineto import reader as kineto
from stagescope.ingest.mapping.proposal import propose_mapping
from stagescope.ingest.perfetto import contents as perfetto
from stagescope.ingest.perfetto import reader as perfetto_reader
from stagescope.ingest.reader import HEAD_BYTES
from stagescope.ingest.registry import load_registry
from stagescope.ingest.streams import open_stream
from stagescope.ingest.trace_json.recognition import is_own_export, looks_like_events
from stagescope.ingest.trace_proto.recognition import is_perfetto_trace
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import checked_limits, limits_in_force
from stagescope.vocabulary.place_names import with_names

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from stagescope.ingest.mapping.contents import TraceContents
    from stagescope.ingest.mapping.proposal import Proposal
    from stagescope.model.diagnostics import Diagnostic


@dataclass(frozen=True)
class Inspection:
    """The contents of a trace, the mapping that they suggest, and what could not be read.

    `reader` is the name of the reader that may find the actions of the trace without a mapping, if there is one.
    """

    contents: TraceContents
    proposal: Proposal
    diagnostics: tuple[Diagnostic, ...] = ()
    reader: str | None = None


def inspect(path: str | os.PathLike[str], *, limits: Mapping[str, int | str] | None = None) -> Inspection:
    """Return what is in a Chrome or Perfetto trace or one of torch.profiler, compressed or not, and a proposed mapping.

    The memory is bounded: the first 10,000 different names, threads and categories and the first 500 keys of arguments
    are counted apart, all others together; all slices of a Perfetto trace are in memory at once. Raises InputError for
    any other file, and for Chrome traces that stagescope exported; for one that another reader reads, with its name.
    """
    file = Path(local_path(path, READERS))
    with limits_in_force(checked_limits(limits)):
        with open_stream(file) as stream:
            head = stream.read(HEAD_BYTES)
        contents, diagnostics = _contents(file, head)
    reader = kineto.READER.name if kineto.READER.recognizes(file, head) else None
    if contents.is_own_export:
        reader = perfetto_reader.READER.name
    contents = replace(contents, source=with_names(contents.source))
    notes = (replace(note, message=with_names(note.message)) for note in diagnostics)
    return Inspection(contents, propose_mapping(contents), tuple(notes), reader)


def _contents(path: Path, head: bytes) -> tuple[TraceContents, list[Diagnostic]]:
    if is_own_export(head):
        raise InputError.own_export(path)
    if looks_like_events(head):
        found = chrome.read_contents(path)
        if b'"traceEvents"' in head or set(found[0].phases.of) - {""}:  # other JSON has no phases
            return found
    if is_perfetto_trace(head):
        return perfetto.read_contents(path)
    (reader,) = find_inputs([path], load_registry(READERS)).files  # raises InputError for an unknown format
    raise InputError.no_mapping_needed(path, reader.name)


def inspection_json(inspection: Inspection) -> dict[str, Any]:
    """Return an inspection as plain data; the most frequent entries come first."""
    contents, proposal = inspection.contents, inspection.proposal
    return {
        "source": contents.source,
        "reader": inspection.reader,
        "events": contents.events,
        "first_us": contents.first_us,
        "last_us": contents.last_us,
        "phases": dict(contents.phases.of.most_common()),
        "names": dict(contents.names.of.most_common()),
        "other_names": contents.names.others,
        "categories": dict(contents.categories.of.most_common()),
        "processes": [
            {"process": process, "name": contents.process_names.get(process), "events": count}
            for process, count in contents.processes.of.most_common()
        ],
        "threads": [
            {"process": key[0], "thread": key[1], "name": contents.thread_names.get(key), "events": count}
            for key, count in contents.threads.of.most_common()
        ],
        "arguments": {
            key: {"events": facts.count, "examples": facts.examples, "integers": facts.is_integer}
            for key, facts in contents.arguments.items()
        },
        "proposal": {
            "shipped": proposal.shipped,
            "is_enough": proposal.is_enough,
            "fields": dict(proposal.fields),
            "kinds": dict(proposal.kinds),
            "options": proposal.options,
        },
        "diagnostics": [
            {"severity": each.severity, "code": each.code, "message": each.message, "count": each.count}
            for each in inspection.diagnostics
        ],
    }
