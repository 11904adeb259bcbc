"""Read the relevant events of one Kineto trace into tables, with times in nanoseconds since the Unix epoch.

Source: pytorch/kineto, libkineto/src/output_json.cpp: `ts` and `dur` are microseconds with three decimals, counted from
`baseTimeNanoseconds`; the stream of a kernel is its `tid`, its device the `pid`; `correlation` joins a kernel to the
call that launched it; a kernel of NCCL has the fields of its `record_param_comms`.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.annotations.kernel_classes import kernel_class
from stagescope.ingest.kineto.arguments import (
    Arguments,
    arguments_of,
    call_facts,
    correlations,
    message_facts,
)
from stagescope.ingest.kineto.event_types import KERNELS, LAUNCHES, EventDecoder, TraceEvent
from stagescope.ingest.kineto.named_works import with_plain_works
from stagescope.ingest.kineto.operator_classes import settle_operators
from stagescope.ingest.kineto.outer_operators import MOST_US, OuterOperators
from stagescope.ingest.microseconds import nanoseconds
from stagescope.ingest.trace_json.trace_events import EventStream, base_time_ns
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from pathlib import Path

Times = dict[str, Any]
"""The columns ts and dur of some events, as arrays."""

Columns = Callable[[Sequence["TraceEvent"], Times], dict[str, Any]]


DEVICE_OF_CATEGORY = {
    "mtia_runtime": "MTIA", "mtia_ccp_events": "MTIA", "mtia_workloadd": "MTIA", "mtia_insight": "MTIA",
    "xpu_runtime": "XPU", "xpu_driver": "XPU", "hpu_op": "HPU", "glow_runtime": "Glow",
    "privateuse1_runtime": "PrivateUse1", "privateuse1_driver": "PrivateUse1",
}  # fmt: skip
"""Devices that a trace does not describe in its header, by categories of libkineto/src/ActivityType.cpp."""
TIMES = {"start_ns": pl.Int64, "end_ns": pl.Int64}
TABLES: dict[str, dict[str, type[pl.DataType]]] = {
    "annotations": {"name": pl.String, "thread": pl.Int32, **TIMES},
    "device_annotations": {"name": pl.String, "stream": pl.Int32, **TIMES},
    "operators": {"what": pl.Int8, "thread": pl.Int32, **TIMES},
    "launches": {"correlation": pl.Int64, "thread": pl.Int32, **TIMES},
    "kernels": {
        "correlation": pl.Int64, "what": pl.Int8, "stream": pl.Int64, "name_number": pl.Int32, **TIMES,
    },
    "named_kernels": {"correlation": pl.Int64, "annotation": pl.String, "what": pl.Int8, **TIMES},
    "messages": {
        "correlation": pl.Int64, "collective": pl.String, "source": pl.Int32, "target": pl.Int32, "bytes": pl.Int64,
        "annotation": pl.String, "external": pl.Int64, "sequence": pl.Int64, "group": pl.String,
        "purpose": pl.String, "members": pl.String,
    },
    "calls": {
        "external": pl.Int64, "sequence": pl.Int64, "group": pl.String, "purpose": pl.String, "members": pl.String,
    },
    "flows": {"flow": pl.Int64, "is_start": pl.Boolean, "start_ns": pl.Int64, "end_ns": pl.Int64},
}  # fmt: skip

UNIQUE = ("annotations", "device_annotations", "kernels", "named_kernels")
"""Tables in which equal rows are one event written twice: the same name or launch at the same time on one thread."""

PIECES_TOGETHER = 16
"""As many pieces are kept as events before they become columns, which costs less than columns of single pieces."""

MOST_STREAM = 2**62
"""A larger number is no stream; some runtimes use addresses as numbers."""


class TraceTables(NamedTuple):
    """One trace: the fields of its header, one table per group of events (TABLES), and diagnostics.

    `kernel_names` are the names of kernels by `name_number`; `device` is the kind of device that the categories of
    events show, null for a CPU and where the header describes the device.
    """

    facts: dict[str, Any]
    tables: dict[str, pl.DataFrame]
    diagnostics: list[Diagnostic]
    kernel_names: tuple[str, ...] = ()
    device: str | None = None


class Numbered(dict[Any, int]):
    """A dict that assigns a number to every key on first access."""

    def __init__(self, number: Callable[[Any], int] | None = None) -> None:
        super().__init__()
        self._number = number

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self) if self._number is None else self._number(key)
        return number


def read_tables(path: Path) -> TraceTables:
    """Return the tables of the trace in `path`; raises InputError for a file without a list of events."""
    stream: EventStream[Any] = EventStream(path, EventDecoder())
    collector = Collector()
    with _no_collections():
        for piece in stream.pieces():
            collector.add(piece)
    tables = collector.tables(base_time_ns(stream.facts) or 0)
    diagnostics = stream.diagnostics()
    for count, code, text in (
        (
            collector.strays,
            "events.out_of_range",
            "events have no timestamp, or an impossible one, and were dropped",
        ),
        (collector.repeated, "events.repeated", "events are in the trace more than once and were used once"),
    ):
        if count:
            diagnostics.append(Diagnostic("error", text, str(path), count=count, code=code))
    device = min(collector.devices, default=None)
    return TraceTables(stream.facts, tables, diagnostics, tuple(collector.kernel_names), device)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Disable the cyclic garbage collector: events form no cycles, but their number would trigger it constantly."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass
class Collector:
    """Collects events piece by piece and keeps only numeric columns of them."""

    parts: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    threads: Numbered = field(default_factory=Numbered)
    kernels: Numbered = field(default_factory=lambda: Numbered(kernel_class))
    kernel_names: Numbered = field(default_factory=Numbered)
    strays: int = 0
    repeated: int = 0
    devices: set[str] = field(default_factory=set)
    groups: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    pieces: int = 0
    operators: OuterOperators = field(init=False)

    def __post_init__(self) -> None:
        self.operators = OuterOperators(self.threads)

    def add(self, piece: Sequence[TraceEvent]) -> None:
        """Add the events of one piece."""
        calls = self.operators.take(piece, self.groups)
        if calls:
            self._add_rows("calls", [call_facts(one) for one in arguments_of(calls)])
        self.pieces += 1
        if self.pieces % PIECES_TOGETHER == 0:
            self._make_columns()

    def _make_columns(self) -> None:
        """Turn the events of all needed categories into columns."""
        groups = self.groups
        self.devices.update(DEVICE_OF_CATEGORY[name] for name in groups if name in DEVICE_OF_CATEGORY)
        self._add("annotations", groups["user_annotation"], self._named_columns("thread"))
        self._add("device_annotations", groups["gpu_user_annotation"], self._named_columns("stream"))
        for category in LAUNCHES:
            self._add("launches", groups[category], self._launch_columns)
        for category in KERNELS:
            self._add("kernels", groups[category], self._kernel_columns)
        self._add("flows", [x for x in groups["fwdbwd"] if isinstance(x.id, int)], _flow_columns)
        groups.clear()

    def tables(self, base_ns: int) -> dict[str, pl.DataFrame]:
        """Return every table of TABLES; `base_ns` is the origin of the trace's timestamps."""
        self._make_columns()
        self.parts["operators"] = self.operators.columns()
        tables = {name: self._table(name, base_ns) for name in TABLES}
        return with_plain_works(tables | {"operators": settle_operators(tables["operators"])})

    def _table(self, name: str, base_ns: int) -> pl.DataFrame:
        schema = TABLES[name]
        parts = self.parts.pop(name, [])
        if not parts:
            return pl.DataFrame(schema=schema)
        found = pl.DataFrame(
            {column: _joined([part[column] for part in parts]) for column in parts[0]}, strict=False
        )
        if name in UNIQUE:
            self.repeated += found.height - (found := found.unique(maintain_order=True)).height
        if "ts" in found.columns:
            within = pl.col("ts").abs() + pl.col("dur").abs() < MOST_US
            self.strays += found.height - (found := found.filter(within)).height
            found = found.with_columns(start_ns=base_ns + nanoseconds(pl.col("ts")))
            found = found.with_columns(end_ns=pl.col("start_ns") + nanoseconds(pl.col("dur")))
        return found.select(pl.col(column).cast(kind, strict=False) for column, kind in schema.items())

    def _add(self, table: str, events: Sequence[TraceEvent], columns: Columns) -> None:
        if events:
            count = len(events)
            ts = np.fromiter([event.ts for event in events], np.float64, count)
            dur = np.fromiter([event.dur for event in events], np.float64, count)
            self.parts[table].append(columns(events, {"ts": ts, "dur": dur}))

    def _threads(self, events: Sequence[TraceEvent]) -> Any:
        threads = self.threads
        return np.fromiter([threads[event.tid] for event in events], np.int32, len(events))

    def _named_columns(self, place: str) -> Columns:
        return lambda events, times: {"name": [e.name for e in events], place: self._threads(events), **times}

    def _launch_columns(self, events: Sequence[TraceEvent], times: Times) -> dict[str, Any]:
        return {"correlation": correlations(arguments_of(events)), "thread": self._threads(events), **times}

    def _kernel_columns(self, events: Sequence[TraceEvent], times: Times) -> dict[str, Any]:
        numbers = map(self.kernels.__getitem__, map(attrgetter("name"), events))
        arguments = arguments_of(events)
        self._add_rows("messages", [message_facts(one) for one in arguments if one.collective is not None])
        self._add_named(events, arguments, times)
        names = map(self.kernel_names.__getitem__, map(attrgetter("name"), events))
        return {
            "what": np.fromiter(numbers, np.int8, len(events)),
            "correlation": correlations(arguments),
            "stream": [e.tid if type(e.tid) is int and abs(e.tid) < MOST_STREAM else None for e in events],
            "name_number": np.fromiter(names, np.int32, len(events)),
            **times,
        }

    def _add_named(self, events: Sequence[TraceEvent], arguments: Sequence[Arguments], times: Times) -> None:
        """Add the kernels whose arguments have a name, as those of CUDA graphs may."""
        named = [row for row, one in enumerate(arguments) if isinstance(one.annotation, str)]
        if named:
            chosen = [arguments[row] for row in named]
            self.parts["named_kernels"].append(
                {
                    "correlation": correlations(chosen),
                    "annotation": [one.annotation for one in chosen],
                    "what": np.array([self.kernels[events[row].name] for row in named], np.int8),
                    "ts": times["ts"][named],
                    "dur": times["dur"][named],
                }
            )

    def _add_rows(self, table: str, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            self.parts[table].append({name: [row[name] for row in rows] for name in TABLES[table]})


def _flow_columns(events: Sequence[TraceEvent], times: Times) -> dict[str, Any]:
    starts = [e.ph == "s" for e in events]
    return {"flow": [e.id for e in events], "is_start": starts, **times, "dur": np.zeros(len(events))}


def _joined(parts: Sequence[Any]) -> Any:
    """Return the concatenated parts of one column."""
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else list(chain.from_iterable(parts))
