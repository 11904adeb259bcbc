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
from math import nan
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
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
from stagescope.ingest.kineto.named_works import with_plain_works
from stagescope.ingest.kineto.operator_classes import CALL, OTHER, operator_class, settle_operators
from stagescope.ingest.microseconds import nanoseconds
from stagescope.ingest.trace_json.trace_events import EventStream, base_time_ns
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from pathlib import Path

Times = dict[str, Any]
"""The columns ts and dur of some events, as arrays."""

Columns = Callable[[Sequence["TraceEvent"], Times], dict[str, Any]]


LAUNCHES = (
    "cuda_runtime", "cuda_driver", "hip_runtime", "privateuse1_runtime", "privateuse1_driver", "xpu_runtime",
    "xpu_driver", "mtia_runtime",
)  # fmt: skip
DEVICE_OF_CATEGORY = {
    "mtia_runtime": "MTIA", "mtia_ccp_events": "MTIA", "mtia_workloadd": "MTIA", "mtia_insight": "MTIA",
    "xpu_runtime": "XPU", "xpu_driver": "XPU", "hpu_op": "HPU", "glow_runtime": "Glow",
    "privateuse1_runtime": "PrivateUse1", "privateuse1_driver": "PrivateUse1",
}  # fmt: skip
"""Devices that a trace does not describe in its header, by categories of libkineto/src/ActivityType.cpp."""
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
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

PIECES_TO_THIN = 32
"""Nested operators are dropped once per this many pieces, which is cheaper than once per piece."""

MOST_STREAM = 2**62
"""A larger number is no stream; some runtimes use addresses as numbers."""

MOST_US = 4e15
"""More than a century since the epoch: a later timestamp is invalid."""

NO_TEXT = msgspec.Raw(b"{}")


class TraceEvent(msgspec.Struct, gc=False):
    """The relevant fields of one event; any may be absent, as in an empty object. An absent time is NaN.

    The arguments stay undecoded: most events are operators, whose arguments are not used.
    """

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = nan
    dur: float = nan
    tid: int | str = 0
    id: Any = None
    args: msgspec.Raw = NO_TEXT


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
    stream: EventStream[TraceEvent] = EventStream(path, msgspec.json.Decoder(list[TraceEvent]))
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
    operators: Numbered = field(default_factory=lambda: Numbered(operator_class))
    kernels: Numbered = field(default_factory=lambda: Numbered(kernel_class))
    kernel_names: Numbered = field(default_factory=Numbered)
    strays: int = 0
    repeated: int = 0
    thinned: int = 0
    devices: set[str] = field(default_factory=set)

    def add(self, piece: Sequence[TraceEvent]) -> None:
        """Add the events of one piece."""
        groups: defaultdict[str, list[TraceEvent]] = defaultdict(list)
        for event in piece:
            groups[event.cat].append(event)
        self.devices.update(DEVICE_OF_CATEGORY[name] for name in groups if name in DEVICE_OF_CATEGORY)
        self._add("operators", groups["cpu_op"], self._operator_columns)
        # Nested operators are most of a trace; dropping them early bounds the memory.
        if len(self.parts["operators"]) - self.thinned >= PIECES_TO_THIN:
            self._thin_operators()
        self._add("annotations", groups["user_annotation"], self._named_columns("thread"))
        self._add("device_annotations", groups["gpu_user_annotation"], self._named_columns("stream"))
        for category in LAUNCHES:
            self._add("launches", groups[category], self._launch_columns)
        for category in KERNELS:
            self._add("kernels", groups[category], self._kernel_columns)
        self._add("flows", [x for x in groups["fwdbwd"] if isinstance(x.id, int)], _flow_columns)

    def tables(self, base_ns: int) -> dict[str, pl.DataFrame]:
        """Return every table of TABLES; `base_ns` is the origin of the trace's timestamps."""
        self._thin_operators()
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
            times = {"ts": _floats(events, "ts"), "dur": _floats(events, "dur")}
            self.parts[table].append(columns(events, times))

    def _threads(self, events: Sequence[TraceEvent]) -> Any:
        numbers = map(self.threads.__getitem__, map(attrgetter("tid"), events))
        return np.fromiter(numbers, np.int32, len(events))

    def _named_columns(self, place: str) -> Columns:
        return lambda events, times: {"name": [e.name for e in events], place: self._threads(events), **times}

    def _launch_columns(self, events: Sequence[TraceEvent], times: Times) -> dict[str, Any]:
        return {"correlation": correlations(arguments_of(events)), "thread": self._threads(events), **times}

    def _operator_columns(self, events: Sequence[TraceEvent], times: Times) -> dict[str, Any]:
        numbers = map(self.operators.__getitem__, map(attrgetter("name"), events))
        what = np.fromiter(numbers, np.int8, len(events))
        calls = np.flatnonzero(what == CALL)
        if len(calls):
            self._add_rows(
                "calls", [call_facts(one) for one in arguments_of([events[row] for row in calls.tolist()])]
            )
            what[calls] = OTHER
        return {"what": what, "thread": self._threads(events), **times}

    def _thin_operators(self) -> None:
        """Drop operators of class OTHER that are nested in another one: most operators of a trace."""
        parts = self.parts["operators"][self.thinned :]
        if parts:
            columns = {name: _joined([part[name] for part in parts]) for name in parts[0]}
            known = np.isfinite(columns["ts"] + columns["dur"])
            if not known.all():
                self.strays += len(known) - int(known.sum())
                columns = {name: column[known] for name, column in columns.items()}
            kept = columns["what"] != OTHER
            kept |= ~_is_inner(columns["thread"], columns["ts"], columns["dur"])
            self.parts["operators"][self.thinned :] = [
                {name: column[kept] for name, column in columns.items()}
            ]
            self.thinned += 1

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


def _floats(events: Sequence[TraceEvent], name: str) -> Any:
    return np.fromiter(map(attrgetter(name), events), np.float64, len(events))


def _flow_columns(events: Sequence[TraceEvent], times: Times) -> dict[str, Any]:
    starts = [e.ph == "s" for e in events]
    return {"flow": [e.id for e in events], "is_start": starts, **times, "dur": np.zeros(len(events))}


def _joined(parts: Sequence[Any]) -> Any:
    """Return the concatenated parts of one column."""
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else list(chain.from_iterable(parts))


def _is_inner(thread: Any, ts: Any, dur: Any) -> Any:
    """Return for each event whether it is nested in an earlier one of its thread: in the one that ends last."""
    inner = np.zeros(len(ts), np.bool_)
    for number in np.unique(thread):
        own = np.flatnonzero(thread == number)
        start, end = ts[own], ts[own] + dur[own]
        latest = np.maximum.accumulate(end)
        parent = np.maximum.accumulate(np.where(end == latest, np.arange(len(own)), 0))[:-1]
        inner[own[1:]] = (start[parent] <= start[1:]) & (end[1:] <= end[parent])
    return inner
