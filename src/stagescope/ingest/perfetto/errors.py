"""Errors about Perfetto traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from stagescope.ingest.trace_proto.trace import TraceFile


def no_slices(trace: TraceFile) -> InputError:
    """Return the error for a trace without slices: what is damaged in it, if anything is."""
    damage = [row.message for row in trace.diagnostics]
    return InputError.damaged(trace.path, "; ".join(damage) or "no track of the Perfetto trace has a slice")
