"""Reader of torch.profiler (Kineto) traces: Chrome JSON, one file per rank, compressed or not.

A trace is recognized by the header that torch writes before the events, or by the fields of its events if another
tool has reordered the file. docs/kineto.md describes what is read.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from stagescope.ingest.kineto.facts import rank_count
from stagescope.ingest.kineto.rank_trace import RankTrace, read_rank
from stagescope.ingest.kineto.timeline import timeline_of_traces
from stagescope.ingest.processes import read_each
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.shared_groups import SharedGroups
from stagescope.ingest.trace_json.recognition import (
    SUFFIXES,
    is_merged_torch_trace,
    is_torch_trace,
    longer_head,
)
from stagescope.ingest.trace_proto.recognition import is_torch_perfetto_trace

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
    "*.pftrace*",
)


def recognize_trace(path: Path, head: bytes) -> bool:
    """Return whether a file is a trace of torch.profiler of one rank."""
    if is_torch_perfetto_trace(path, head):
        return True
    is_torch = is_torch_trace(head) or is_torch_trace(longer_head(path, head))
    return is_torch and not is_merged_torch_trace(path, head)


def read_traces(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Return the Timeline of all given traces of one run; they are read in parallel if they are large together.

    Ranks come from `distributedInfo`, else from the numbers in the file names. A truncated or damaged trace yields its
    readable part and an error in diagnostics. Kernels are kept if the options ask for them. Raises InputError if no
    trace has an action of a pipeline, or if the traces cannot belong to one run.
    """
    groups: SharedGroups[tuple[int, ...]] = SharedGroups()

    def keep(trace: RankTrace) -> RankTrace:
        options.count(trace.span_count, 0 if trace.kernels is None else trace.kernels.height)
        shared = tuple(map(groups.of, trace.facts.groups))
        return trace._replace(facts=trace.facts._replace(groups=shared))

    traces, refused = read_each(
        partial(read_rank, kernels=options.kernels, ranks=rank_count(paths)),
        paths,
        options.done,
        options.pattern,
        keep=keep,
    )
    return timeline_of_traces(traces).with_diagnostics(refused)


READER = Reader(
    name="kineto",
    patterns=PATTERNS,
    description="traces of torch.profiler (Kineto), one file per rank",
    recognizes=recognize_trace,
    read=read_traces,
    suffixes=SUFFIXES,
)
