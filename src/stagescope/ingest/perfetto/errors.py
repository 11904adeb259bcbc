"""Errors about Perfetto traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.ingest.trace_proto.trace import TraceFile


def no_slices(trace: TraceFile) -> InputError:
    """Return the error for a trace without slices: what is damaged in it, if anything is."""
    damage = [row.message for row in trace.diagnostics]
    return InputError.damaged(trace.path, "; ".join(damage) or "no track of the Perfetto trace has a slice")


def several_runs(path: Path, exports: int, rank: int) -> InputError:
    """Return the error for exports in one file that have the same rank, and so are not parts of one run."""
    return InputError(
        f"{path} has {exports} exports of stagescope, one behind the other, and more than one of them has rank {rank}",
        "they are not parts of one run: read the files that were joined one at a time",
    )
