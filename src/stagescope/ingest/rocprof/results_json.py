"""Read the JSON of rocprofv3 (`--output-format json`).

Source: ROCm/rocprofiler-sdk, source/lib/output/generateJSON.cpp, and its tests of markers (tests/rocprofv3). The file
has one object per process. `buffer_records` has calls of HIP and HSA, roctx ranges and kernels, with times in ns of
CLOCK_BOOTTIME. A kernel has the correlation id of the call that launched it. The text of a range is in
`strings.marker_api`, by its correlation id; kinds and operations are numbers into `strings.buffer_records`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import polars as pl

from stagescope.ingest.device_ranges.memory_trace import KERNELS_SCHEMA, LAUNCHES_SCHEMA, MemoryTrace
from stagescope.ingest.device_ranges.trace import RANGES_SCHEMA, THREAD_BITS, TraceFacts
from stagescope.ingest.plausible_times import MAX_NS
from stagescope.ingest.rocprof.wording import WORDING, clock_of
from stagescope.ingest.streams import open_stream
from stagescope.ingest.trace_json.repair import REFUSALS, decode, reason_of
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SIGN = b'"rocprofiler-sdk-tool"'
GPU = 2
RANGE_KINDS = ("MARKER_CORE_API", "MARKER_CORE_RANGE_API")
"""The kinds of roctx calls with a text: of older and newer versions of rocprofiler-sdk."""

Number = Annotated[int, msgspec.Meta(ge=-MAX_NS, lt=MAX_NS)]
Short = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Handle(msgspec.Struct, gc=False):
    """An opaque number."""

    handle: Number


class Correlation(msgspec.Struct, gc=False):
    """The number of a call."""

    internal: Number


class Call(msgspec.Struct, kw_only=True, gc=False):
    """A call of an API, or a range."""

    kind: Short
    thread_id: Short
    correlation_id: Correlation
    start_timestamp: Number
    end_timestamp: Number


class DispatchInfo(msgspec.Struct, gc=False):
    """Where a kernel ran, and which."""

    agent_id: Handle
    queue_id: Handle
    kernel_id: Number


class Dispatch(Call, kw_only=True, gc=False):
    """A kernel."""

    dispatch_info: DispatchInfo
    stream_id: Handle = msgspec.field(default_factory=lambda: Handle(0))


class Records(msgspec.Struct):
    """What was recorded."""

    kernel_dispatch: list[Dispatch] = []
    hip_api: list[Call] = []
    hsa_api: list[Call] = []
    marker_api: list[Call] = []


class Text(msgspec.Struct, gc=False):
    """A text with its number."""

    key: Number
    value: str


class KindName(msgspec.Struct):
    """The name of a kind, and of its operations."""

    kind: str = ""
    operations: list[Any] = []


class Strings(msgspec.Struct):
    """Texts that records refer to."""

    buffer_records: list[KindName] = []
    marker_api: list[Text] = []


class Symbol(msgspec.Struct, gc=False):
    """A kernel's name."""

    kernel_id: Number = 0
    formatted_kernel_name: str = ""


class Agent(msgspec.Struct):
    """A processor; `logical_node_type_id` numbers those of one type."""

    id: Handle
    type: Number = 0
    name: str = ""
    product_name: str = ""
    logical_node_type_id: Number = 0


class Node(msgspec.Struct):
    """A machine."""

    hostname: str = ""


class Metadata(msgspec.Struct):
    """The process."""

    pid: Short = 0
    node: Node = msgspec.field(default_factory=Node)


class Process(msgspec.Struct):
    """One process of the file."""

    metadata: Metadata
    buffer_records: Records
    strings: Strings = msgspec.field(default_factory=Strings)
    agents: list[Agent] = []
    kernel_symbols: list[Symbol] = []


class Results(msgspec.Struct):
    """The file."""

    processes: list[Process] = msgspec.field(name="rocprofiler-sdk-tool")


DECODER = msgspec.json.Decoder(Results)


def read_json(path: Path) -> MemoryTrace:
    """Return the trace of a file; raises InputError for a file that is no such JSON up to its end."""
    with open_stream(path) as stream:
        data = stream.read()
        damage = stream.damage
    faults: list[Diagnostic] = []
    processes = _decoded(path, data, damage, faults)
    if damage:
        faults.append(Diagnostic("error", damage, str(path), code="file.damaged"))
    # Numbers of agents and kernels are unique in a process only; the place of the process makes them so in the file.
    names = {
        _in_file(place, symbol.kernel_id): symbol.formatted_kernel_name
        for place, process in enumerate(processes)
        for symbol in process.kernel_symbols
    }
    marks = [row for process in processes for row in _marks(process)]
    calls = [row for process in processes for row in _calls(process)]
    kernels = [row for place, process in enumerate(processes) for row in _kernels(place, process)]
    hosts = [process.metadata.node.hostname for process in processes]
    host = hosts[0] or None if hosts else None
    return MemoryTrace(
        path,
        WORDING,
        TraceFacts(host, None, _devices(processes), clock_of(host)),
        pl.DataFrame(marks, RANGES_SCHEMA, orient="row"),
        pl.DataFrame(calls, LAUNCHES_SCHEMA, orient="row"),
        pl.DataFrame(kernels, KERNELS_SCHEMA, orient="row"),
        names,
        faults,
    )


def _decoded(path: Path, data: bytes, damage: str | None, faults: list[Diagnostic]) -> list[Process]:
    """Return the processes; text and numbers that JSON does not allow are replaced, which is a fault."""
    try:
        return DECODER.decode(data).processes
    except REFUSALS as refusal:
        reason, _ = reason_of(refusal)
    try:
        found: list[Process] = decode(DECODER.decode, data).processes
    except REFUSALS:
        raise InputError.damaged(path, f"not a complete JSON file of rocprofv3: {damage or reason}") from None
    text = f"the file is not valid JSON; what JSON does not allow was replaced: {reason}"
    faults.append(Diagnostic("error", text, str(path), code="file.damaged"))
    return found


def _in_file(place: int, number: int) -> int:
    return (place << 40) | (number & ((1 << 40) - 1))


def _thread(process: Process, thread: int) -> int:
    return (process.metadata.pid << THREAD_BITS) | (thread & ((1 << THREAD_BITS) - 1))


def _marks(process: Process) -> Iterable[tuple[str | None, int, int, int]]:
    """Yield the roctx ranges; a range and a mark have a text, and a mark takes no time."""
    texts = {text.key: text.value for text in process.strings.marker_api}
    kinds = {number for number, kind in enumerate(process.strings.buffer_records) if kind.kind in RANGE_KINDS}
    for call in process.buffer_records.marker_api:
        if call.kind in kinds and call.start_timestamp < call.end_timestamp:
            name = texts.get(call.correlation_id.internal)
            yield name, _thread(process, call.thread_id), call.start_timestamp, call.end_timestamp


def _calls(process: Process) -> Iterable[tuple[int, int, int]]:
    records = process.buffer_records
    for call in (*records.hip_api, *records.hsa_api):
        yield _thread(process, call.thread_id), call.correlation_id.internal, call.start_timestamp


def _kernels(place: int, process: Process) -> Iterable[tuple[int, ...]]:
    """Yield the kernels, by stream if streams were recorded, else by queue."""
    devices = _numbers(process)
    dispatches = process.buffer_records.kernel_dispatch
    has_streams = any(one.stream_id.handle for one in dispatches)
    for one in dispatches:
        info = one.dispatch_info
        yield (
            process.metadata.pid,
            one.correlation_id.internal,
            one.stream_id.handle if has_streams else info.queue_id.handle,
            devices.get(info.agent_id.handle, -1),
            _in_file(place, info.kernel_id),
            one.start_timestamp,
            one.end_timestamp,
        )


def _numbers(process: Process) -> dict[int, int]:
    """Return the numbers of the GPUs on the machine, by handle."""
    return {agent.id.handle: agent.logical_node_type_id for agent in process.agents if agent.type == GPU}


def _devices(processes: Iterable[Process]) -> dict[int, str]:
    return {
        agent.logical_node_type_id: agent.product_name or agent.name
        for process in processes
        for agent in process.agents
        if agent.type == GPU
    }
