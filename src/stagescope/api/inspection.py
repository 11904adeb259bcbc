"""What is in a trace of another tool, before it is read: names, arguments, processes, and a proposed mapping."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagescope.ingest.chrome.contents import read_contents
from stagescope.ingest.mapping.proposal import propose_mapping
from stagescope.vocabulary.limits import checked_limits, limits_in_force

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from stagescope.ingest.mapping.contents import TraceContents
    from stagescope.ingest.mapping.proposal import Proposal
    from stagescope.model.diagnostics import Diagnostic


@dataclass(frozen=True)
class Inspection:
    """The contents of a trace, the mapping that they suggest, and what could not be read."""

    contents: TraceContents
    proposal: Proposal
    diagnostics: tuple[Diagnostic, ...] = ()


def inspect(path: str | os.PathLike[str], *, limits: Mapping[str, int | str] | None = None) -> Inspection:
    """Return what is in a Chrome trace or a trace of torch.profiler (JSON, compressed or not), and a proposed mapping.

    The memory is bounded: the first 10,000 different names, threads and categories and the first 500 keys of arguments
    are counted apart, all others together. Raises InputError for any other file.
    """
    with limits_in_force(checked_limits(limits)):
        contents, diagnostics = read_contents(Path(path))
    return Inspection(contents, propose_mapping(contents), tuple(diagnostics))


def inspection_json(inspection: Inspection) -> dict[str, Any]:
    """Return an inspection as plain data; the most frequent entries come first."""
    contents, proposal = inspection.contents, inspection.proposal
    return {
        "source": contents.source,
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
