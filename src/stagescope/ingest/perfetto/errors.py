"""Errors about Perfetto traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    import os

    from stagescope.ingest.trace_proto.trace import TraceFile

MOST_SHOWN = 5


def no_export(path: str | os.PathLike[str], trace: TraceFile) -> InputError:
    """Return the error for a trace without a slice that is known to be an action."""
    if trace.diagnostics and not trace.slices:
        return InputError.damaged(path, trace.diagnostics[0].message)
    names = list(dict.fromkeys(one.name for one in trace.slices))[:MOST_SHOWN]
    shown = ", ".join(repr(name[:60]) for name in names) or "none"
    return InputError(f"{path}: no slice is named as an action of a pipeline; the first names: {shown}")
