"""Read a Perfetto trace into tracks, slices, GPU work and counters.

Read are track events (slices with begin and end, complete events of old Chrome versions, counters), with interned
texts, defaults, categories, arguments and flows; clocks of sequences and of the system; and the render stages of GPUs,
which is how torch writes kernels. Instants, system data (ftrace, processes, memory) and everything else are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from stagescope.ingest.protobuf_fields import DamagedFieldError
from stagescope.ingest.trace_proto.events import EventReader
from stagescope.ingest.trace_proto.packets import PacketStream
from stagescope.ingest.trace_proto.pairing import Slice, paired, without_copies
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagescope.ingest.trace_proto.events import Counter, GpuWork
    from stagescope.ingest.trace_proto.tracks import Track

T = TypeVar("T", "Slice", "GpuWork")

EPOCH_NS = 10**18
"""A timestamp above this counts from the Unix epoch: as an uptime it would be 30 years."""
MOST_NS = 4 * 10**18
"""More than a century since the epoch: a later timestamp is invalid."""


@dataclass
class TraceFile:
    """One trace. Times are nanoseconds, since the Unix epoch if `has_epoch`; `clock` is the id of their clock."""

    path: Path
    tracks: dict[int, Track]
    slices: list[Slice]
    gpu_work: list[GpuWork]
    counters: list[Counter]
    has_epoch: bool
    diagnostics: list[Diagnostic] = field(default_factory=list)


def begins_none(_: Track) -> bool:
    """Return that no track begins another trace in the same file."""
    return False


def read_trace(path: Path, begins: Callable[[Track], bool] = begins_none) -> TraceFile:
    """Return the trace in `path`, or several ones that are one behind the other.

    `begins` returns whether a track is the first one of a trace. Raises InputError for a file that cannot be opened or
    exceeds a limit.
    """
    stream = PacketStream(path)
    reader = EventReader(path, begins)
    for packet in stream.packets():
        try:
            reader.add(packet)
        except DamagedFieldError as damage:  # noqa: PERF203 - each packet fails on its own
            stream.drop(damage.reason)
    offset_ns, has_epoch = reader.common_clock()
    events, copies = without_copies(reader.events)
    slices, unended, unbegun = paired(events)
    every = [one.shifted(offset_ns) for one in slices if _is_possible(one, offset_ns)]
    all_work = [one.shifted(offset_ns) for one in reader.gpu_work if _is_possible(one, offset_ns)]
    kept, work = _once(every), _once(all_work)
    repeated = copies + len(every) + len(all_work) - len(kept) - len(work)
    counters = [
        one._replace(time_ns=one.time_ns + offset_ns)
        for one in reader.counters
        if 0 <= one.time_ns + offset_ns < MOST_NS
    ]
    read = len(slices) + len(reader.gpu_work) + len(reader.counters)
    strays = read - len(every) - len(all_work) - len(counters)
    first_ns = min([one.start_ns for one in kept[:1]] + [one.start_ns for one in work[:1]], default=0)
    notes = [
        (reader.stateless, "events.dropped", "events refer to texts that the trace does not contain, and were dropped"),
        (reader.undated, "events.dropped", "events have times on an unknown clock, and were dropped"),
        (strays, "events.out_of_range", "events have an impossible timestamp, and were dropped"),
        (repeated, "events.repeated", "events are in the trace more than once and were used once"),
        (unended, "slices.unended", "slices do not end in the trace, and were dropped"),
        (unbegun, "slices.unended", "ends of slices have no beginning in the trace, and were dropped"),
    ]  # fmt: skip
    diagnostics = [
        Diagnostic("error", text, str(path), count=count, code=code) for count, code, text in notes if count
    ]
    return TraceFile(
        path,
        reader.tracks,
        kept,
        work,
        counters,
        has_epoch or first_ns > EPOCH_NS,
        [*stream.diagnostics(), *diagnostics],
    )


def _once(found: list[T]) -> list[T]:
    """Return slices or GPU work by start, without what is equal to another one."""
    kept: list[T] = []
    by_time = attrgetter("start_ns", "end_ns")
    for _, group in groupby(sorted(found, key=by_time), by_time):
        kept += {repr(one): one for one in same}.values() if len(same := list(group)) > 1 else same
    return kept


def _is_possible(one: Slice | GpuWork, offset_ns: int) -> bool:
    """Return whether the times are possible after the shift, which a damaged clock makes arbitrarily large."""
    return 0 <= one.start_ns + offset_ns <= one.end_ns + offset_ns < MOST_NS
