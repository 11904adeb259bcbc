"""Read torch's native Perfetto traces (``.pftrace`` of the cupti_monitor) into the tables of a JSON trace.

Sources: torch/csrc/profiler/cupti/monitor_pftrace.cpp and torch/profiler/_cupti/monitor_trace.py of pytorch, which
encode the same events: processes and threads are tracks, arguments are debug annotations, times are nanoseconds of the
wall clock. Kernels are slices on the track of their stream or, in later versions, render stages of the GPU. Neither the
categories of events nor the header of a JSON trace are kept: the category is taken from the arguments and the name, the
rank from the name of the file. Flows between forward and backward are missing, so actions without a name are only
inferred from transfers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from stagescope.ingest.kineto.event_types import TraceEvent
from stagescope.ingest.kineto.operator_classes import EXACT
from stagescope.ingest.kineto.tables import Collector, TraceTables
from stagescope.ingest.trace_proto.trace import read_trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stagescope.ingest.trace_proto.events import GpuWork
    from stagescope.ingest.trace_proto.trace import TraceFile

OPERATOR = re.compile(r"[a-z_0-9]+::.*|\w+Backward\d*|detach_")
"""Operators have a namespace in lower case, as ``aten::mm``, or are named by autograd, as ``MmBackward0``.

A torch.autograd.Function of a user has any name, and is taken for an annotation."""
STREAM = re.compile(r"(?:.*\D)?(\d+)")
WHOLE = re.compile(r"-?\d{1,18}")
PIECE = 4096


def read_native(path: Path) -> TraceTables:
    """Return the tables of the trace in `path`; raises InputError for a file that cannot be opened."""
    trace = read_trace(path)
    base_ns = min(
        [one.start_ns for one in trace.slices] + [one.start_ns for one in trace.gpu_work], default=0
    )
    collector = Collector()
    piece: list[TraceEvent] = []
    for event in _events(trace, base_ns):
        piece.append(event)
        if len(piece) == PIECE:
            collector.add(piece)
            piece = []
    collector.add(piece)
    facts: dict[str, Any] = {"baseTimeNanoseconds": base_ns} if trace.has_epoch else {}
    return TraceTables(facts, collector.tables(base_ns), trace.diagnostics, tuple(collector.kernel_names))


def _events(trace: TraceFile, base_ns: int) -> Iterator[TraceEvent]:
    """Yield the slices and the work of GPUs as events of a JSON trace."""
    for one in trace.slices:
        track = trace.tracks.get(one.track)
        is_stream = track is not None and track.name.startswith("stream ")
        thread = one.track if track is None or track.thread is None else track.thread
        category = one.category or _category(one.name, one.args, is_stream=is_stream)
        if category:
            times_ns = one.start_ns - base_ns, one.end_ns - one.start_ns
            yield _event(category, one.name, thread, times_ns, one.args)
    for work in trace.gpu_work:
        stream = STREAM.fullmatch(work.queue)
        args = _whole_numbers(work)
        category = "gpu_user_annotation" if work.stage == "Annotation" else _device_category(work.name)
        thread = int(stream[1][-9:]) if stream else 0
        yield _event(
            category, work.name, thread, (work.start_ns - base_ns, work.end_ns - work.start_ns), args
        )


def _event(
    category: str, name: str, thread: int, times_ns: tuple[int, int], args: dict[str, Any]
) -> TraceEvent:
    """Return an event; `times_ns` are its start, from the beginning of the trace, and its length."""
    raw = msgspec.Raw(msgspec.json.encode(args))
    return TraceEvent("X", category, name, times_ns[0] / 1000, times_ns[1] / 1000, thread, None, raw)


def _category(name: str, args: dict[str, Any], *, is_stream: bool) -> str:
    """Return the category of a slice, empty for one that is not read."""
    if "cbid" in args:
        return "cuda_runtime"
    if "cuda_sync_kind" in args or "Python id" in args:
        return ""
    if "correlation" in args and "stream" in args:
        return _device_category(name)
    if is_stream:
        return "gpu_user_annotation"
    return "cpu_op" if name in EXACT or OPERATOR.fullmatch(name) else "user_annotation"


def _device_category(name: str) -> str:
    """Return the category of work on a device."""
    return (
        "gpu_memcpy" if name.startswith("Memcpy") else "gpu_memset" if name.startswith("Memset") else "kernel"
    )


def _whole_numbers(work: GpuWork) -> dict[str, Any]:
    """Return the arguments of a render stage, which are texts, with numbers as such, and its correlation id."""
    args = {name: int(text) if WHOLE.fullmatch(text) else text for name, text in work.args.items()}
    return {"correlation": work.event_id, **args}
