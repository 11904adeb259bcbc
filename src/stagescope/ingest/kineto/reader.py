"""Traces of torch.profiler (Kineto): Chrome JSON, one file per rank, packed or not.

docs/kineto.md tells what is taken from where. Recognized by what torch writes before the events, or by the fields of
its events where another tool has changed the order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.ingest.kineto.rank_trace import read_rank
from stagescope.ingest.kineto.timeline import timeline_of_traces
from stagescope.ingest.processes import read_each
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.trace_json.recognition import is_torch_trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.model import Timeline

PATTERNS = (
    "*trace*.json*",
    "*rank*.json*",
    "*worker*.json*",
    "*kineto*.json*",
    "*profile*.json*",
    "[0-9]*.json*",
)


def recognize_trace(_: Path, head: bytes) -> bool:
    """Return whether a file is a trace of torch.profiler."""
    return is_torch_trace(head)


def read_traces(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Return the Timeline of all given traces, which belong to one run; large ones are read in parallel.

    Ranks are those of `distributedInfo`, else the numbers in the files' names. A trace that is cut off or damaged gives
    what can be read, and an error in diagnostics. Raises InputError when no trace has a action of a pipeline, and for
    traces that cannot be of one run.
    """
    return timeline_of_traces(read_each(read_rank, paths, options.done, options.pattern))


READER = Reader(
    name="kineto",
    patterns=PATTERNS,
    description="traces of torch.profiler (Kineto), one file per rank",
    recognizes=recognize_trace,
    read=read_traces,
)
